/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The objects of the UCP transport, and how they belong together. Each has a header with its functions.
 *
 *   transport   one context and one worker of a group        ucp_transport.c, ucp_context.c
 *   peer        a rank: its endpoint                         ucp_peer.c
 *   heap        memory of a buffer, a wire                   ucp_heap.c, ucp_heap_wire.c, ucp_memory.c
 *   link        a heap on a peer: mapped, or a protocol      ucp_link.c, ucp_link_signals.c
 *   twin        of a part of a heap, on a device             ucp_heap_direct.c
 *   protocol    how bytes go to a link that is not mapped    ucp_protocol_gather.c, ucp_protocol_rma.c
 *   bounce buffer       staging memory, of a heap's pool             ucp_memory.c
 *   op          one UCX operation in flight                  ucp_op.c
 *   message     an eager active message                      ucp_message.c; taken in by ucp_intake.c
 *   heartbeat   a thread that looks for ranks that are gone  ucp_heartbeat.c
 *   ctl         a message that belongs to no heap            ucp_message.c; without ranks ucp_transport_unranked.c
 *
 * Locking. The worker is SERIALIZED, and buffers of one group are used from several threads: every call into UCX, and
 * everything the callbacks touch, is under transport->lock. Mapped peers need neither. Functions are
 * called with the lock held unless their header says otherwise.
 */
#ifndef XEP_UCP_OBJECTS_H
#define XEP_UCP_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <ucp/api/ucp.h>

#include "transport.h"
#include "ucp_intake.h"
#include "ucp_shared.h"

typedef struct xep_ucp_transport xep_ucp_transport_t;
typedef struct xep_ucp_peer xep_ucp_peer_t;
typedef struct xep_ucp_heap xep_ucp_heap_t;
typedef struct xep_ucp_link xep_ucp_link_t;
typedef struct xep_ucp_op xep_ucp_op_t;
typedef struct xep_ucp_bounce xep_ucp_bounce_t;
typedef struct xep_ucp_msg xep_ucp_msg_t;             /* ucp_transport_unranked.c */
typedef struct xep_ucp_heartbeat xep_ucp_heartbeat_t; /* ucp_heartbeat.c */

enum {
    XEP_UCP_AM_ID = 0,
    XEP_UCP_MESSAGE_BYTES = 120 * 1024, /* most payload of a message. With headers it must fit the memory that a socket
                                           is read into (ucp_settings.c): what does not is cut, and takes longer */
    XEP_UCP_MESSAGE_RUNS = 256,
    XEP_UCP_STAGING = 64 << 20, /* most staging memory of a heap when XEP_INFLIGHT would allow more */
    XEP_UCP_HEADROOM = XEP_UCP_MESSAGE_RUNS * sizeof(xep_ucp_run_t)
};

/** How bytes go to a peer that is not mapped. Called with the lock held. No NULL slots. */
typedef struct xep_ucp_protocol {
    const char *text; /* for describe */
    bool by_messages; /* messages themselves say how much of it was received */

    /** Whether a put of bytes and a signal can be taken now; false: something in flight will make room. */
    bool (*has_room)(xep_ucp_link_t *link, size_t bytes);

    /** Takes a put, for which there is room; bytes > 0. */
    xep_status_t (*put)(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes);

    /** Takes a signal: ordered after every put and signal taken before. */
    xep_status_t (*signal)(xep_ucp_link_t *link, uint64_t offset, uint64_t value);

    /** Takes a signal that may stay here until something else goes, or push. */
    xep_status_t (*signal_later)(xep_ucp_link_t *link, uint64_t offset, uint64_t value);

    /** Sends what put held back. */
    xep_status_t (*push)(xep_ucp_link_t *link);
} xep_ucp_protocol_t;

/** An operation UCX has, or a signal that is queued. Lives until its completion. */
struct xep_ucp_op {
    xep_ucp_op_t *next;          /* in the free list, or among the link's queued signals */
    uint64_t number;             /* of the heap's, in the order in which they were taken */
    xep_ucp_op_t *older, *newer; /* of the heap's that are outstanding */
    xep_ucp_link_t *link;
    xep_ucp_bounce_t *bounce;  /* returned with the op; NULL: none */
    void *ctl;                 /* freed with the op; NULL: none */
    size_t bytes;              /* counted in heap->inflight */
    bool needed;               /* an error counts even when the rank has left */
    uint64_t offset, value;    /* of a signal */
    uint64_t mark;             /* signal: goes when link->flushed has reached this; flush: what it covers */
    xep_ucp_message_t message; /* header of a message: UCX reads it until completion */
};

/** Staging memory in which puts to one rank are gathered. */
struct xep_ucp_bounce {
    xep_ucp_bounce_t *next;
    uint8_t *data; /* XEP_UCP_MESSAGE_BYTES; the XEP_UCP_HEADROOM bytes before it are ours too */
    size_t bytes;
    uint32_t nruns;
    xep_ucp_run_t runs[XEP_UCP_MESSAGE_RUNS];
};

typedef enum { XEP_UCP_LINK_NEW, XEP_UCP_LINK_MAPPED, XEP_UCP_LINK_REMOTE, XEP_UCP_LINK_BROKEN } xep_ucp_link_state_t;

/**
 * The process that has made a heap, in the heap's key: the memory lives as long as this process, or as long as others
 * have it attached.
 */
typedef struct xep_ucp_owner {
    uint64_t start;
    int32_t pid;
    uint32_t is_sysv; /* its memory is a System V segment */
} xep_ucp_owner_t;

/** One heap on one rank. */
struct xep_ucp_link {
    xep_ucp_link_state_t state; /* the heap's thread only; never changes again once it is not NEW */
    xep_status_t broken;        /* BROKEN: why */
    uint32_t rank;
    xep_ucp_heap_t *heap;
    uint8_t *base;           /* MAPPED: the rank's region here */
    const void *rkey_buffer; /* the rank's, within heap->keys */
    ucp_rkey_h rkey;
    uint64_t remote_base, remote_heap;
    const void *twin_buffer; /* key and address of the rank's twin (ucp_heap_direct.c); NULL: it has none */
    ucp_rkey_h twin_rkey;
    uint64_t twin_base, direct_puts;  /* puts into it that UCX has */
    uint64_t segment, segment_offset; /* where the rank has its region; segment 0: not known */
    xep_ucp_owner_t owner;
    const xep_ucp_protocol_t *protocol; /* REMOTE */
    size_t cut;                         /* of a put: most bytes that go as one of UCX */
    uint64_t sequence;                  /* of the next message */
    xep_ucp_bounce_t *bounce;           /* being filled, or NULL */
    uint64_t held_offset, held_value;   /* a signal for the next message to take along; XEP_UCP_NO_SIGNAL: none */
    bool touched;                       /* in heap->touched: something was sent or held back since the last flush */
    bool socket;                        /* UCX writes to a socket: it may keep part of what it calls sent */
    bool fenced_off;                    /* the heap goes on without the rank */
    uint64_t inflight, outstanding;     /* its share of the heap's; once fenced off, of what UCX still has of it */
    xep_ucp_link_t *next_touched;
    uint64_t puts, flushed; /* RMA operations posted; of these, known to be in the peer's memory */
    bool flushing;
    xep_ucp_op_t *queued, **queued_tail; /* signals whose earlier puts are not known to be there yet */
    bool ready;                          /* in transport->ready */
    xep_ucp_link_t *next_ready;
};

/** Bounce buffers that were made together. */
typedef struct xep_ucp_slab {
    struct xep_ucp_slab *next;
    void *memory;
    size_t bytes;
    xep_ucp_bounce_t bounces[];
} xep_ucp_slab_t;

/** The staging memory of a heap; slabs NULL: it has none. */
typedef struct xep_ucp_pool {
    xep_ucp_slab_t *slabs;
    xep_ucp_bounce_t *free;
} xep_ucp_pool_t;

struct xep_ucp_heap {
    xep_heap_wire_t super;
    xep_ucp_transport_t *transport;
    uint64_t id;
    ucp_mem_h memory;
    struct {
        ucp_mem_h memory; /* NULL: there is none */
        uint64_t begin;
        xep_memory_range_t rows, inputs; /* inputs: what is put from, too */
        ucp_mem_h inputs_memory;
    } twin;                   /* of this part of the heap, in the memory of a device */
    uint8_t *keys;            /* copies of all */
    xep_ucp_link_t *links;    /* [nranks], NULL before heap_connect */
    xep_ucp_intake_t *intake; /* NULL: transport->ctl, to which no bytes come */
    xep_ucp_pool_t pool;
    uint64_t inflight;             /* bytes UCX has */
    uint64_t outstanding;          /* ops UCX has, and queued signals */
    uint64_t numbered;             /* ops there have been */
    xep_ucp_op_t *oldest, *newest; /* those outstanding */
    uint64_t left_over;            /* ops UCX has for ranks that it has fenced off: nobody waits for them */
    xep_ucp_link_t *touched;
    bool used;            /* some link is REMOTE; the heap's thread only */
    _Atomic int status;   /* XEP_OK, or what flush and progress return from now on */
    char reason[256];     /* written once, before status */
    xep_ucp_heap_t *next; /* abandoned ones */
};

struct xep_ucp_peer {
    xep_ucp_transport_t *transport;
    uint32_t rank;
    bool may_map, visible;              /* XEP_PEER_* */
    const void *address;                /* the worker's, within transport->addresses */
    const char *interfaces;             /* what the rank says it has, likewise; it may lack its end */
    ucp_ep_h endpoint;                  /* NULL: not connected */
    uint64_t sent, acknowledged, taken; /* weights of messages: to it, of these known to be there, from it */
    bool left;                          /* it has said goodbye */
    bool watched, heard;                /* by the heartbeat; something has come since the last beat */
    unsigned silent;                    /* beats since then */
    ucs_status_t failed;                /* UCS_OK, or why it cannot be used any more */
    char gone[128];                     /* the reason, if the peer itself has failed */
    char lanes[64];                     /* what UCX chose: "sysv, posix, cma"; "": not looked at yet */
    bool described;                     /* by the first of its links that was opened */
    char text[96];                      /* how it is reached, for describe */
};

struct xep_ucp_transport {
    xep_transport_t super;
    pthread_mutex_t lock;
    _Atomic unsigned calls; /* of progress, while it is not urgent */
    atomic_bool urgent;     /* UCX moves bytes for some peer */
    ucp_context_h context;
    ucp_worker_h worker;
    unsigned version;    /* of libucp: major * 100 + minor */
    bool fence_orders;   /* ucp_worker_fence does, and does not wait: see ucp_protocol_rma.c */
    int map, put;        /* XEP_MAP_, XEP_PUT_ */
    size_t copied_below; /* a put of so many bytes is not copied into shared memory by UCX; 0: not known */
    xep_ucp_shared_t shared;
    bool shares_memory;    /* heaps are shared memory, or cannot be had */
    uint64_t inflight;     /* most bytes a heap may have on their way */
    uint64_t stream_bytes; /* XEP_STREAMING */
    uint32_t rank, nranks; /* 0, 0 before connect */
    xep_ucp_msg_t *msgs;   /* without ranks: control messages that UCX has, either way */
    uint32_t leaving;      /* of these, what it sends */
    xep_ucp_peer_t *peers;
    uint8_t *addresses;
    xep_ucp_heap_t *ctl;    /* without memory: its links carry the messages that belong to no heap */
    xep_ucp_heap_t **heaps; /* by the low half of their id */
    uint32_t nheaps, generation;
    xep_ucp_heap_t *abandoned; /* UCX still had operations of them when they were closed */
    xep_ucp_op_t *free_ops;
    void **op_blocks; /* what free_ops is made of */
    size_t nop_blocks;
    xep_ucp_link_t *ready;          /* links whose flush is done */
    xep_ucp_heartbeat_t *heartbeat; /* NULL: no rank is watched */
};

static inline xep_ucp_peer_t *xep_ucp_peer_of(const xep_ucp_link_t *link)
{
    return &link->heap->transport->peers[link->rank];
}

/** Whether the rank is gone but the heap goes on: bytes to it are dropped. */
static inline bool xep_ucp_link_is_spared(const xep_ucp_link_t *link)
{
    return link->heap->super.spares && (link->fenced_off || xep_ucp_peer_of(link)->failed != UCS_OK);
}

/* ---- the lock ---- */

static inline void xep_ucp_lock(xep_ucp_transport_t *transport)
{
    pthread_mutex_lock(&transport->lock);
}

static inline bool xep_ucp_trylock(xep_ucp_transport_t *transport)
{
    return pthread_mutex_trylock(&transport->lock) == 0;
}

static inline void xep_ucp_unlock(xep_ucp_transport_t *transport)
{
    pthread_mutex_unlock(&transport->lock);
}

#endif
