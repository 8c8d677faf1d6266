/* SPDX-License-Identifier: BSD-3-Clause */

/** One MoE shape on a group: its shared memory, its mode, its slots (handles) and requests. */
#ifndef XEP_BUFFER_H
#define XEP_BUFFER_H

#include <pthread.h>
#include <stdatomic.h>

#include <xep/plugin.h>

#include "device.h"
#include "error.h"
#include "group.h"
#include "heap.h"
#include "plugin_loader.h"
#include "team.h"
#include "wait_times.h"

/* One for the dispatch of a slot and one for its combine, each in flight and, ended, still with the user. */
enum { XEP_REQUESTS_PER_SLOT = 4 };

typedef struct xep_members xep_members_t;   /* members.h */
typedef struct xep_staging xep_staging_t;   /* staging.h */
typedef struct xep_owners xep_owners_t;     /* owners.h */
typedef struct xep_announce xep_announce_t; /* announce.h */
typedef struct xep_balancer xep_balancer_t; /* balance.h */

/** Where each area behind the mode's bytes begins in a heap: at a cache line. One that a buffer lacks has no bytes. */
typedef struct xep_areas {
    uint64_t lines; /* of each rank, buffer_give_up.h */
    uint64_t members, balance, announce, staging;
} xep_areas_t;

/**
 * Who is in the buffer. 0: nobody. BY_CALL: a call that may wait. BRIEFLY: the task, or a call that never waits, as a
 * release. MARKED, with one of the two: another thread has left marks. One word: no thread leaves without seeing one.
 */
enum { XEP_ENTERED_BY_CALL = 1, XEP_ENTERED_BRIEFLY = 2, XEP_ENTERED_MARKED = 4 };

struct xep_buffer {
    xep_group_t *group;
    xep_group_task_t task;   /* while it is open */
    atomic_int entered;      /* by a thread: XEP_ENTERED_* */
    atomic_int abort_called; /* a mark, for that thread */
    xep_plugin_ref_t plugin;
    xep_mode_info_t can; /* what the mode is asked for: nothing else */
    void *mode;          /* the plugin's */
    xep_shape_t shape;
    xep_buffer_params_t params; /* that it was made with, defaults filled in; mode is the plugin's name */
    xep_env_t env;
    xep_heap_wire_t *heap;
    xep_areas_t areas;
    xep_heap_device_t *device; /* NULL: all in host memory */
    xep_staging_t *staging;    /* NULL: the mode works where the rows are */
    char *packed;              /* [slots] device memory for scales and payloads that are sent (packed_payloads.h) */
    xep_pointers_t *pointers;  /* of host memory, in a process that has devices; else NULL */
    uint64_t quiesces;         /* done so far */
    uint64_t resets;           /* that all ranks have come to */
    xep_team_t *team;
    uint64_t most_tokens; /* of a dispatch of this rank; 0: it never has any */
    int32_t timeout_ms;
    uint64_t epoch, turn; /* of the next operation; of the next one that is no combine */
    uint64_t reset_epoch; /* that operations have gone on from since the last reset */
    uint32_t active;      /* requests deferred or active */
    uint32_t deferred;    /* dispatches among them that are deferred */
    /* calls since create or reset that this rank has refused, and the most it knows of any rank: request.h */
    uint32_t refused, refused_most;
    char refused_reason[XEP_REASON_BYTES];
    int broken; /* until reset */
    char broken_reason[XEP_REASON_BYTES];
    xep_handle_t *handles;   /* [slots] */
    xep_request_t *requests; /* [nrequests] */
    uint32_t nrequests;
    xep_ranks_t everybody; /* that operations are with */
    char *states;          /* [nrequests][state_bytes], of the mode */
    xep_wait_times_t waits;
    uint64_t prefault_left;       /* bytes of XEP_PREFAULT not used yet */
    xep_page_ranges_t peer_pages; /* that the mode wants, until all ranks have opened theirs */
    uint32_t trace_number;        /* in the trace */
    uint32_t number;              /* of the group's buffers, from 1 */
    int goes_on;                  /* without ranks that are out: by members, or by kernels (members_device.c) */
    xep_members_t *members;       /* NULL: an operation is with all ranks or fails, or is a device's */
    xep_owners_t *owners;         /* NULL: experts are owned by blocks, and served by no other rank */
    xep_balancer_t *balancer;     /* NULL: no dispatch is balanced */
    /* makes what the mode gets of what the caller gave a dispatch that begins; NULL: they are the same */
    xep_status_t (*take_dispatch)(xep_request_t *req);
    xep_announce_t *announce;                        /* NULL: no rank serves */
    xep_status_t (*progress)(xep_request_t *req);    /* takes an operation that has begun further */
    xep_status_t (*before_mode)(xep_request_t *req); /* before the mode is called for what begins; NULL: nothing */
};

/**
 * Claims the buffer for a call of this thread, until leave. Not recursive. If another thread is in a call, claim
 * returns XEP_ERR_INVALID at once, as the other ranks may wait for either of the two; enter, for calls that cannot
 * fail, waits for its end. try_enter, for what does not wait in the buffer: whether no other thread had it. enter_now,
 * for calls that neither fail nor wait: 1, or 0 where another thread has it; then *mark is set, and that thread does
 * what it says: while it waits, or when it leaves (xep_request_take_over()).
 */
xep_status_t xep_buffer_claim(xep_buffer_t *buffer);
void xep_buffer_enter(xep_buffer_t *buffer);
int xep_buffer_try_enter(xep_buffer_t *buffer);
int xep_buffer_enter_now(xep_buffer_t *buffer, atomic_int *mark);
void xep_buffer_leave(xep_buffer_t *buffer);

/** XEP_OK, or XEP_ERR_PEER: the others have left this rank out. After the loads of an operation. */
xep_status_t xep_buffer_check_in(const xep_buffer_t *buffer);

/** XEP_OK, or why the buffer takes no operation: aborted group, broken buffer. */
xep_status_t xep_buffer_usable(const xep_buffer_t *buffer);

/* ---- buffer_create.c ---- */

/* Creates a buffer: all ranks agree on it, map its memory and open its mode. Arguments are checked. */

/**
 * xep_buffer_create(). status: of this rank so far; params is used only if it is XEP_OK. device belongs to the buffer
 * from then on, even after an error; NULL: host memory.
 */
xep_status_t xep_buffer_open(xep_group_t *group, const xep_buffer_params_t *params, xep_heap_device_t *device,
                             xep_status_t status, xep_buffer_t **buffer_p);

/* ---- buffer_end.c ---- */

/** Frees everything a buffer has, as far as it was made. Sends nothing to peers. */
void xep_buffer_free(xep_buffer_t *buffer);

/** xep_buffer_destroy(), arguments checked. */
xep_status_t xep_buffer_close(xep_buffer_t *buffer);

/** xep_buffer_reset(), inside xep_buffer_enter(). */
xep_status_t xep_buffer_restart(xep_buffer_t *buffer);

/* ---- buffer_env.c ---- */

/** Operations that move so many bytes bypass the caches (XEP_STREAMING). The heaps are open. */
uint64_t xep_buffer_stream_bytes(const xep_buffer_t *buffer);

/** All but the threads and the regions, which are known before there is a heap; and begins to count. */
void xep_buffer_fill_env(xep_buffer_t *buffer);

/* ---- buffer_agree.c ---- */

enum { XEP_FOLLOWED_MODE = 64 };

typedef struct xep_followed {
    xep_buffer_params_t params;   /* mode points behind them */
    char mode[XEP_FOLLOWED_MODE]; /* as they came from another rank: not checked */
} xep_followed_t;

/** The params of the lowest rank with an old buffer, except those of each rank. Collective over group. */
xep_status_t xep_buffer_find_params(const xep_buffer_t *old, xep_group_t *group, xep_followed_t *followed);

#endif
