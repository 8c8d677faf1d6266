/* SPDX-License-Identifier: BSD-3-Clause */

/** The ranks that work together: bootstrap, transport, nodes, liveness, and progress of all buffers. */
#ifndef XEP_CORE_GROUP_H
#define XEP_CORE_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include <xep/xep.h>

#include "boot.h"
#include "config.h"
#include "transport.h"
#include "waiting.h"

typedef struct xep_progress_thread xep_progress_thread_t;

typedef struct xep_peer {
    uint32_t node;
    int mapped;      /* by the control heap; the same on both sides */
    int32_t pid;
    uint64_t start;  /* of the process, so that its number used again is noticed */
    uint64_t host;   /* identity: boot id, IPC and process namespaces */
} xep_peer_t;

struct xep_group {
    xep_config_t config;
    xep_boot_t *boot;             /* owned */
    xep_transport_t *transport;   /* owned */
    uint32_t rank, nranks;
    uint32_t nnodes;
    uint32_t spins;               /* of a waiting loop, before it yields */
    int32_t timeout_ms;
    xep_peer_t *peers;            /* [nranks] */
    xep_heap_wire_t *control;     /* group_control.c */
    int connected;                /* every rank has been reached through it */
    uint64_t barriers;            /* entered so far */
    uint64_t gathers, parts;      /* allgathers over the control heap, and parts of them */
    int gave_up;                  /* in an allgather: others may be in it still */
    atomic_int aborted;
    atomic_uint active;           /* operations in flight on all buffers */
    pthread_mutex_t buffers_lock; /* guards the list; taken at create, destroy, and tried in slow turns of waits */
    xep_buffer_t *buffers;
    xep_progress_thread_t *progress_thread; /* NULL: progress is made inside calls */
};

/** Takes boot and transport over, also on error. Collective. */
xep_status_t xep_group_open(const xep_config_t *config, int32_t timeout_ms, xep_boot_t *boot,
                            xep_transport_t *transport, xep_group_t **group_p);

/** Makes the control heap. Collective. */
xep_status_t xep_group_open_control(xep_group_t *group);

/** Allgather over the control heap of a connected group. */
xep_status_t xep_group_gather(xep_group_t *group, const void *send, void *recv, size_t bytes);

/**
 * Allgather: over the control heap of a connected group, before by the bootstrap. The former keeps the transport and the
 * operations of all buffers going: a rank that waits here must not stop those that still wait for its bytes.
 */
xep_status_t xep_group_exchange(xep_group_t *group, const void *send, void *recv, size_t bytes);

/** As exchange, for blobs whose lengths differ: (*blobs_p)[r] points into *storage_p, which the caller frees. */
typedef struct xep_blobs {
    const void **blob; /* [nranks] */
    size_t *bytes;     /* [nranks] */
    void *storage;
} xep_blobs_t;
xep_status_t xep_group_exchange_blobs(xep_group_t *group, const void *send, size_t bytes, xep_blobs_t *blobs_p);
void xep_blobs_free(xep_blobs_t *blobs);

/** One look at everything in flight: transport, operations of all buffers that nobody else is at. */
void xep_group_progress(xep_group_t *group);

/** xep_waiting_rest(), which does not rest while the transport moves bytes. */
static inline int xep_group_rest(const xep_group_t *group, xep_waiting_t *waiting)
{
    return xep_waiting_rest(waiting, atomic_load_explicit(&group->transport->moves, memory_order_relaxed));
}

/** A thread that makes progress until it is stopped. */
xep_status_t xep_progress_start(xep_group_t *group, xep_progress_thread_t **thread_p);
void xep_progress_stop(xep_progress_thread_t *thread);

/** XEP_OK, or XEP_ERR_PEER naming a rank that is known to have died. Slow: every 100 ms is enough. */
xep_status_t xep_group_check_peers(xep_group_t *group);

/** Waits until words[r * stride_words] >= value for all r; the reason names the ranks that are missing. */
xep_status_t xep_group_wait_words(xep_group_t *group, const void *words, size_t stride, uint64_t value,
                                  int32_t timeout_ms, const char *what);

/** XEP_ERR_ABORTED after xep_group_abort(), else XEP_OK. */
xep_status_t xep_group_usable(const xep_group_t *group);

void xep_group_add_buffer(xep_group_t *group, xep_buffer_t *buffer);
void xep_group_remove_buffer(xep_group_t *group, xep_buffer_t *buffer);

/** The public calls, arguments checked. */
xep_status_t xep_group_barrier_run(xep_group_t *group);
void xep_group_close(xep_group_t *group);

#endif
