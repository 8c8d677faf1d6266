/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The objects of the UCP transport and what its files offer one another.
 *
 *   transport   one context and one worker of a group        ucp_transport.c, ucp_context.c
 *   peer        a rank: its endpoint                         ucp_peer.c
 *   heap        memory of a buffer, a wire                   ucp_heap.c, ucp_wire.c
 *   link        a heap on a peer: mapped, or a strategy      ucp_link.c
 *   strategy    how bytes go to a link that is not mapped    ucp_strategy.c, ucp_rma.c, ucp_gather.c
 *   op          one UCX operation in flight                  ucp_op.c
 *
 * Locking. The worker is SERIALIZED, and buffers of one group are used from several threads: every call into
 * UCX, and everything the callbacks touch, is under transport->lock. Mapped peers need neither.
 */
#ifndef XEP_UCP_INTERNAL_H
#define XEP_UCP_INTERNAL_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <ucp/api/ucp.h>

#include "config.h"
#include "cpu.h"
#include "error.h"
#include "log.h"
#include "transport.h"
#include "ucp_inbox.h"

#define XEP_UCP_ALLOC_PRIO "ALLOC_PRIO" /* which memory UCX allocates: ours unless the user set it */

typedef struct xep_ucp_transport xep_ucp_transport_t;
typedef struct xep_ucp_peer xep_ucp_peer_t;
typedef struct xep_ucp_heap xep_ucp_heap_t;
typedef struct xep_ucp_link xep_ucp_link_t;
typedef struct xep_ucp_op xep_ucp_op_t;
typedef struct xep_ucp_chunk xep_ucp_chunk_t;

enum {
    XEP_UCP_SECOND_PROTOCOLS = 116, /* libucp from which its second generation of protocols is the default */
    XEP_UCP_AM_ID = 0,
    XEP_UCP_MESSAGE_BYTES = 60 * 1024, /* most payload of a message: with headers it stays within one TCP segment
                                          of UCX (64 KB); larger ones took 1.6 times as long on 1.13 */
    XEP_UCP_MESSAGE_RUNS = 256,
    XEP_UCP_STAGING = 64 << 20, /* most staging memory of a heap when XEP_INFLIGHT would allow more */
    XEP_UCP_HEADROOM = XEP_UCP_MESSAGE_RUNS * sizeof(xep_ucp_run_t)
};

/** How bytes go to a peer that is not mapped. Called with the lock held. No NULL slots. */
typedef struct xep_ucp_strategy {
    const char *name; /* as in XEP_PUT */
    const char *text; /* for describe */

    /** Whether put of bytes and a signal can be taken now; false: something in flight will make room. */
    bool (*has_room)(xep_ucp_link_t *link, size_t bytes);

    /** Takes a put that there is room for; bytes > 0. */
    xep_status_t (*put)(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes);

    /** Takes a signal: ordered after every put and signal taken before. */
    xep_status_t (*signal)(xep_ucp_link_t *link, uint64_t offset, uint64_t value);

    /** Sends a signal of the link's line whose turn has come: op->offset, op->value. */
    xep_status_t (*post_signal)(xep_ucp_op_t *op);

    /** Sends what put held back. */
    xep_status_t (*push)(xep_ucp_link_t *link);
} xep_ucp_strategy_t;

extern const xep_ucp_strategy_t xep_ucp_rma, xep_ucp_pack, xep_ucp_am;

/** An operation UCX has, or a signal that waits for its turn. Lives until its completion. */
struct xep_ucp_op {
    xep_ucp_op_t *next;     /* in the free list, or in the link's waiting signals */
    xep_ucp_link_t *link;
    xep_ucp_chunk_t *chunk; /* given back with the op; NULL: none */
    size_t bytes;           /* counted in heap->inflight */
    bool needed;            /* an error counts even when the rank has left */
    uint64_t offset, value; /* of a signal */
    uint64_t mark;          /* signal: goes when link->flushed has reached this; flush: what it covers */
    xep_ucp_message_t message; /* header of a message: UCX reads it until completion */
};

/** Staging memory in which puts to one rank are gathered. */
struct xep_ucp_chunk {
    xep_ucp_chunk_t *next;
    uint8_t *data; /* XEP_UCP_HEADROOM bytes before it are ours too */
    size_t bytes;
    uint32_t nruns;
    xep_ucp_run_t runs[XEP_UCP_MESSAGE_RUNS];
};

typedef enum { XEP_UCP_LINK_NEW, XEP_UCP_LINK_MAPPED, XEP_UCP_LINK_REMOTE, XEP_UCP_LINK_BROKEN } xep_ucp_link_state_t;

/** One heap on one rank. */
struct xep_ucp_link {
    xep_ucp_link_state_t state; /* the heap's thread only; never changes again once it is not NEW */
    uint32_t rank;
    xep_ucp_heap_t *heap;
    uint8_t *base;              /* MAPPED: the rank's region here */
    const void *rkey_buffer;    /* the rank's, within heap->keys */
    ucp_rkey_h rkey;
    uint64_t remote_base, remote_heap;
    const xep_ucp_strategy_t *strategy; /* REMOTE */
    uint64_t sequence;          /* of the next message */
    xep_ucp_chunk_t *chunk;     /* being filled, or NULL */
    bool touched;               /* in heap->touched: something was sent or held back since the last flush */
    bool socket;                /* UCX writes to one: it may keep a rest that it says was sent */
    xep_ucp_link_t *next_touched;
    uint64_t puts, flushed;     /* RMA operations posted; of these, known to be in the peer's memory */
    bool flushing;
    xep_ucp_op_t *waiting, **waiting_tail; /* signals whose earlier puts are not known to be there yet */
    bool ready;                 /* in transport->ready */
    xep_ucp_link_t *next_ready;
};

/** The staging memory of a heap. */
typedef struct xep_ucp_pool {
    uint8_t *slab;
    size_t slab_bytes;
    xep_ucp_chunk_t *chunks, *free;
    size_t chunk_bytes; /* data of a chunk */
} xep_ucp_pool_t;

struct xep_ucp_heap {
    xep_heap_wire_t super;
    xep_ucp_transport_t *transport;
    uint64_t id;
    ucp_mem_h memory;
    uint8_t *keys;          /* copies of all */
    xep_ucp_link_t *links;  /* [nranks], NULL before heap_connect */
    xep_ucp_inbox_t *inbox; /* NULL for a heap opened before connect */
    xep_ucp_pool_t pool;
    uint64_t inflight;      /* bytes UCX has */
    uint64_t outstanding;   /* ops UCX has, and signals that wait */
    xep_ucp_link_t *touched;
    bool used;              /* some link is REMOTE; the heap's thread only */
    _Atomic int status;     /* XEP_OK, or what flush and progress return from now on */
    char reason[256];       /* written once, before status */
    xep_ucp_heap_t *next;   /* abandoned ones */
};

struct xep_ucp_peer {
    xep_ucp_transport_t *transport;
    uint32_t rank;
    bool may_map;
    const void *address;    /* the worker's, within transport->addresses */
    ucp_ep_h endpoint;      /* NULL: not connected */
    uint64_t sent, acknowledged, taken; /* weights of messages: to it, of these known to be there, from it */
    bool left;              /* it has said goodbye */
    ucs_status_t failed;    /* UCS_OK, or why it cannot be used any more */
    char lanes[64];         /* what UCX chose: "sysv, posix, cma"; "": not looked at yet */
    xep_ucp_link_state_t reach; /* of the first of its links that was opened; NEW: none yet */
    char text[96];          /* describe: once reach is known */
};

struct xep_ucp_transport {
    xep_transport_t super;
    _Atomic unsigned lock;
    _Atomic unsigned calls; /* of progress, while it is not urgent */
    atomic_bool urgent;     /* UCX moves bytes for some peer of ours */
    ucp_context_h context;
    ucp_worker_h worker;
    unsigned version;       /* of libucp: major * 100 + minor */
    int map, put;           /* XEP_MAP_, XEP_PUT_ */
    uint64_t inflight;      /* most bytes a heap may have on their way */
    uint64_t stream_bytes;  /* XEP_STREAM */
    uint8_t *address;
    size_t address_bytes;
    uint32_t rank, nranks;  /* 0, 0 before connect */
    xep_ucp_peer_t *peers;
    uint8_t *addresses;
    xep_ucp_heap_t *probe;  /* a page of its own: can this peer's memory be mapped? */
    xep_ucp_heap_t **heaps; /* by the low half of their id */
    uint32_t nheaps, generation;
    xep_ucp_heap_t *abandoned; /* UCX still had operations of them when they were closed */
    xep_ucp_op_t *free_ops;
    void **op_blocks;       /* what free_ops is made of */
    size_t nop_blocks;
    xep_ucp_link_t *ready;  /* links whose flush is done */
};

static inline void xep_ucp_lock(xep_ucp_transport_t *transport)
{
    unsigned spins = 0;
    while (atomic_exchange_explicit(&transport->lock, 1, memory_order_acquire) != 0)
        if (++spins % 128 != 0) xep_cpu_relax();
        else sched_yield(); /* the holder may have lost its core */
}

static inline bool xep_ucp_trylock(xep_ucp_transport_t *transport)
{
    return atomic_load_explicit(&transport->lock, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&transport->lock, 1, memory_order_acquire) == 0;
}

static inline void xep_ucp_unlock(xep_ucp_transport_t *transport)
{
    atomic_store_explicit(&transport->lock, 0, memory_order_release);
}

/* All below: with the lock held, unless said otherwise. */

/* ucp_context.c */
xep_status_t xep_ucp_context_open(ucp_context_h *context_p, ucp_worker_h *worker_p); /* no lock yet */
unsigned xep_ucp_version_number(void);                                               /* any time */

/* ucp_transport.c */

/** Progress of everything; then what became possible by it. */
void xep_ucp_advance(xep_ucp_transport_t *transport);

/* ucp_peer.c */

/** Makes the endpoint when there is none. XEP_ERR_PEER: the rank is gone or cannot be reached. */
xep_status_t xep_ucp_peer_connect(xep_ucp_peer_t *peer);

/** Whether UCX uses TCP for everything. Connected. */
bool xep_ucp_peer_is_tcp(xep_ucp_peer_t *peer);

/** Whether UCX can copy between the two processes by system calls. Connected. */
bool xep_ucp_peer_has_cma(xep_ucp_peer_t *peer);

/** Notes how the first of its links reaches the rank. */
void xep_ucp_peer_found(xep_ucp_peer_t *peer, xep_ucp_link_state_t reach);

/** How the rank is reached: as the first of its links, the probe's when there is none. */
const char *xep_ucp_peer_describe(xep_ucp_peer_t *peer);

/** Says why peer->failed. */
xep_status_t xep_ucp_peer_fail(const xep_ucp_peer_t *peer);

/* ucp_heap.c */
xep_status_t xep_ucp_heap_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p); /* takes the lock */
xep_status_t xep_ucp_heap_connect(xep_heap_wire_t *heap, const void *const *keys, const size_t *bytes);
void xep_ucp_heap_close(xep_heap_wire_t *heap);                                          /* takes the lock */
void xep_ucp_heap_free(xep_ucp_heap_t *heap); /* UCX has nothing of it any more */

/** Gives the peers' keys back: while there is a worker. */
void xep_ucp_heap_unlink(xep_ucp_heap_t *heap);

/** Sends what the links hold back. */
xep_status_t xep_ucp_heap_push(xep_ucp_heap_t *heap);

/** Faults every heap that has UCX move bytes to or from rank. */
void xep_ucp_heaps_lost(xep_ucp_transport_t *transport, uint32_t rank, const char *reason);

/** The open heap of that id, or NULL. */
xep_ucp_heap_t *xep_ucp_heap_find(const xep_ucp_transport_t *transport, uint64_t id);

/** Sets what flush and progress return from now on, unless they have an error already. */
void xep_ucp_heap_fault(xep_ucp_heap_t *heap, xep_status_t status, const char *reason);

/* ucp_link.c */

static inline xep_ucp_peer_t *xep_ucp_link_peer(const xep_ucp_link_t *link)
{
    return &link->heap->transport->peers[link->rank];
}

/** Finds out how the rank is reached. After it link->state is not NEW. */
xep_status_t xep_ucp_link_open(xep_ucp_link_t *link);
void xep_ucp_link_close(xep_ucp_link_t *link);

/** Puts a signal in the link's line and sends what may be sent. */
xep_status_t xep_ucp_link_queue(xep_ucp_link_t *link, uint64_t offset, uint64_t value);

/** Sends the waiting signals whose turn it is; flushes for the next one. */
xep_status_t xep_ucp_link_advance(xep_ucp_link_t *link);

/** Flushes what was put so far. XEP_OK: link->flushed has it already, XEP_INPROGRESS: it will. */
xep_status_t xep_ucp_link_flush(xep_ucp_link_t *link);

/** Notes that something was sent or held back. */
void xep_ucp_link_touch(xep_ucp_link_t *link);

/* ucp_strategy.c */
const xep_ucp_strategy_t *xep_ucp_strategy(xep_ucp_peer_t *peer);

/** Data bytes of a chunk of what strategy puts together; 0: it does not. */
size_t xep_ucp_strategy_chunk(const xep_ucp_transport_t *transport, const xep_ucp_strategy_t *strategy);

/* ucp_pool.c */
xep_status_t xep_ucp_pool_open(xep_ucp_pool_t *pool, size_t chunk_bytes, size_t nchunks); /* no lock */
void xep_ucp_pool_close(xep_ucp_pool_t *pool);                                            /* no lock */
xep_ucp_chunk_t *xep_ucp_pool_get(xep_ucp_pool_t *pool); /* an empty one; NULL: all are in use */
void xep_ucp_pool_put(xep_ucp_pool_t *pool, xep_ucp_chunk_t *chunk);

/* ucp_op.c */

/** A zeroed op of link, counted as outstanding; NULL: no memory, with the reason set. */
xep_ucp_op_t *xep_ucp_op_get(xep_ucp_link_t *link, size_t bytes);

/** Completion: gives back what the op holds. */
void xep_ucp_op_done(xep_ucp_op_t *op, ucs_status_t status);

/** For op's UCX call: completion comes to op. */
ucp_request_param_t xep_ucp_op_param(xep_ucp_op_t *op);

/** What the UCX call for op returned, as a status; op is not to be touched after it. */
xep_status_t xep_ucp_op_posted(xep_ucp_op_t *op, ucs_status_ptr_t request);

void xep_ucp_ops_close(xep_ucp_transport_t *transport);

/* ucp_am.c */

/** Sends a message to the link's heap: payload stays until op is done. */
xep_status_t xep_ucp_message_send(xep_ucp_op_t *op, const void *payload, size_t bytes);

/** Sees to it that all that was sent to the link's rank leaves UCX, before this heap's ops are done. */
xep_status_t xep_ucp_message_settle(xep_ucp_link_t *link);

/** Sends a message without contents: XEP_UCP_NO_HEAP, XEP_UCP_GOODBYE. */
xep_status_t xep_ucp_message_notice(xep_ucp_link_t *link, uint64_t notice);

/** Makes the worker take messages in. */
xep_status_t xep_ucp_message_listen(xep_ucp_transport_t *transport);

/* ucp_rma.c */

/** One put from src, which stays until done. */
xep_status_t xep_ucp_rma_put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes, xep_ucp_chunk_t *chunk);

xep_status_t xep_ucp_rma_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes);

/** Whether the caps allow bytes more. */
bool xep_ucp_rma_has_room(xep_ucp_link_t *link, size_t bytes);

/* ucp_wire.c */
extern const xep_wire_ops_t xep_ucp_wire_ops;

#endif
