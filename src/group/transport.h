/* SPDX-License-Identifier: BSD-3-Clause */

/** What the core needs of a transport: connections of a group, and symmetric heaps on them. */
#ifndef XEP_GROUP_TRANSPORT_H
#define XEP_GROUP_TRANSPORT_H

#include <stdatomic.h>

#include <xep/wire.h>
#include <xep/xep.h>

#include "config.h"
#include "interfaces.h"

typedef struct xep_transport xep_transport_t; /* of one group */
typedef struct xep_heap_wire xep_heap_wire_t; /* of one buffer: a wire and its memory */

struct xep_heap_wire {
    xep_wire_t wire; /* first, so that the mode's pointer is ours */
    void *base;      /* this rank's region, zeroed */
    uint64_t bytes;
    int exposed; /* set by the core before closing: peers that are gone may come back and write or read by address */
    /*
     * set by the core: the loss of a rank is no error of the heap. If set before heap_connect, bytes come only in
     * messages, which heap_fence_off can refuse, and are copied before they leave; and a rank that has taken all its
     * bytes can be sent more, however much others have not taken
     */
    atomic_int spares;
    /*
     * set by the core before heap_connect, or by heap_open: bytes of messages bypass the caches if all ranks together
     * send so many at once
     */
    uint64_t stream_bytes;
    /*
     * set by the core before heap_close, or NULL: called once no operation of the heap reads its source any more,
     * before the memory is freed; at the latest when the transport is closed
     */
    void (*release)(void *arg);
    void *release_arg;
    _Atomic uint64_t *moved; /* set by the core: bytes that UCX has taken to put or get, counted up under its lock */
    const void *key;         /* what peers need to reach it; exchanged by the core */
    size_t key_bytes;        /* differs from rank to rank */
};

/**
 * A word that another rank waits for in a call of its own, behind bytes that this rank has at the same place: as the
 * wire's put_signal, but what the wire would hold back leaves, too, as this rank may be in no call of the library soon.
 */
static inline xep_status_t xep_heap_tell(xep_heap_wire_t *heap, uint32_t rank, uint64_t offset, size_t bytes,
                                         uint64_t word, uint64_t value)
{
    xep_wire_t *wire = &heap->wire;
    xep_status_t status = wire->ops->put_signal(wire, rank, offset, (char *)heap->base + offset, bytes, word, value);
    (void)wire->ops->flush(wire);
    return status;
}

/** Memory of a device. */
typedef struct xep_memory_range {
    void *base;
    uint64_t bytes;
} xep_memory_range_t;

/** Shared memory of one kind, from which a rank's heaps may come. Exchanged as bytes. */
typedef struct xep_shared_room {
    uint64_t id;    /* equal for ranks that draw from the same; 0: this rank has none of the kind */
    uint64_t bytes; /* that are free */
    uint64_t heaps; /* how many of the size asked about can be had of it now */
} xep_shared_room_t;
enum { XEP_SHARED_SYSV, XEP_SHARED_POSIX, XEP_SHARED_KINDS };

/** What is known of a peer before it is connected. */
enum {
    XEP_PEER_MAY_MAP = 1, /* without it map() is NULL, and mapping is not tried */
    XEP_PEER_VISIBLE = 2  /* its process can be looked up here by its number */
};

/** One kind of shared memory, as all ranks of a host see it. */
typedef struct xep_shared_least {
    uint64_t ranks;   /* the least that a rank has room for */
    uint32_t seen_by; /* that rank */
} xep_shared_least_t;

/** The ranks of this rank's host, this one included. The same on all of them. */
typedef struct xep_neighbours {
    uint32_t count;
    xep_shared_least_t shared[XEP_SHARED_KINDS];
    uint64_t users;    /* the user namespace of the first */
    int is_split;      /* there are several */
    int has_stranger;  /* a process of another user is among them: */
    uint32_t stranger; /* the first that this rank sees */
} xep_neighbours_t;

/** An IPv4 address that this rank and a rank in another network both have, so that it cannot lead there. */
typedef struct xep_twin {
    uint32_t address; /* in network order */
    uint32_t rank;
} xep_twin_t;

/** Where the ranks of a group are, as they have said. */
typedef struct xep_whereabouts {
    uint32_t nranks;
    uint32_t elsewhere; /* of these, on other hosts than this rank's, or in containers that look like some */
    int local;          /* all share the network's interfaces, and need none but loopback */
    uint32_t ntwins;
    xep_twin_t twins[XEP_INTERFACES];
} xep_whereabouts_t;

typedef struct xep_transport_ops {
    /** How many ranks each kind of shared memory has room for, with all that a rank needs to begin. Local. */
    void (*shared_look)(uint64_t ranks[XEP_SHARED_KINDS]);

    /** Begins, once the ranks are known, and makes the address. Local; makes no connections. */
    xep_status_t (*start)(xep_transport_t *transport, const xep_neighbours_t *neighbours,
                          const xep_whereabouts_t *where);

    /**
     * All ranks' addresses, in rank order; copied. peers[r]: XEP_PEER_* flags.
     * Connections are made on first use.
     */
    xep_status_t (*connect)(xep_transport_t *transport, uint32_t rank, uint32_t nranks, const void *const *addresses,
                            const size_t *bytes, const uint8_t *peers);

    /**
     * In place of start and connect: a transport without ranks, to which any process with its address can send. From
     * then on it has admit, progress, ctl, is_gone and close alone, and the from of on_ctl() means nothing.
     * most: how many processes are admitted at most. Local.
     */
    xep_status_t (*meet)(xep_transport_t *transport, const xep_whereabouts_t *where, uint32_t most);

    /**
     * Of such a transport: a control message to this index, below most and new, goes to the process of this address,
     * which stays the caller's until close. Connects. Whose address it is, and of which version, is checked; the rest
     * UCX believes.
     */
    xep_status_t (*admit)(xep_transport_t *transport, uint32_t index, const void *address, size_t bytes);

    /** What heaps of so many bytes could come from; all ids are 0 if they need no shared memory. Local. */
    void (*shared_room)(xep_transport_t *transport, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS]);

    /** Allocates bytes (the first touch is the caller's where the kind of memory allows it). Local. */
    xep_status_t (*heap_open)(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p);

    /** All ranks' keys of one heap, in rank order; copied. After it the wire works. Local. */
    xep_status_t (*heap_connect)(xep_heap_wire_t *heap, const void *const *keys, const size_t *bytes);

    /** Frees it. Peers must be done with it; operations in flight are abandoned, and what they read stays as it is. */
    void (*heap_close)(xep_heap_wire_t *heap);

    /**
     * For a heap that spares ranks: this rank is out. Nothing from it is stored any more, nothing is sent to it, and no
     * flush waits for what it has not taken. Any thread.
     */
    void (*heap_fence_off)(xep_heap_wire_t *heap, uint32_t rank);

    /** Likewise: whether this rank, which is in, has not taken all that was sent to it. */
    int (*heap_is_behind)(xep_heap_wire_t *heap, uint32_t rank);

    /**
     * Tells a heap, before it is connected, that its bytes from begin on have a twin in device memory. Peers put there,
     * from their own twins and inputs. XEP_ERR_UNSUPPORTED: UCX does not know such memory. Local.
     */
    xep_status_t (*heap_twin)(xep_heap_wire_t *heap, uint64_t begin, const xep_memory_range_t *rows,
                              const xep_memory_range_t *inputs);

    /**
     * As the wire's put, from this heap's twin or inputs into the twin of a rank that is not mapped: offset is that in
     * the heap. None is refused; but before the first one bytes 0 says whether there may be any: XEP_INPROGRESS: call
     * again, this rank's first signal is on its way.
     */
    xep_status_t (*heap_put_direct)(xep_heap_wire_t *heap, uint32_t rank, uint64_t offset, const void *src,
                                    size_t bytes);

    /** Progress of all heaps. Any thread; returns at once when another thread is at it. */
    xep_status_t (*progress)(xep_transport_t *transport);

    /** Copies bytes and sends them to another rank's on_ctl(). Any thread. An error: it cannot be reached. */
    xep_status_t (*ctl)(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes);

    /** Whether all control messages are on their way, so that this rank may stop making progress. */
    int (*ctl_has_left)(xep_transport_t *transport);

    /** How rank is reached ("tcp, packed messages"), once it was. Valid as long as the transport. */
    const char *(*describe)(xep_transport_t *transport, uint32_t rank);

    /**
     * ranks[r] 1: from now on this transport notices if that rank, reached before, is silent for a few intervals. Once,
     * at most.
     */
    xep_status_t (*watch)(xep_transport_t *transport, const uint8_t *ranks, int32_t interval_ms);

    /** Whether the rank cannot be reached any more though it has not left, and the sentence for that. Any thread. */
    int (*is_gone)(xep_transport_t *transport, uint32_t rank, char *why, size_t bytes);

    void (*close)(xep_transport_t *transport);
} xep_transport_ops_t;

struct xep_transport {
    const xep_transport_ops_t *ops;
    const void *address; /* of this rank, from start or meet on; sizes differ from rank to rank */
    size_t address_bytes;
    atomic_uint moves; /* rounds of progress that have moved something: a waiting loop does not sleep then */
    /*
     * The core's, set before connect: control messages of a rank, not checked. Called inside progress; it calls nothing
     * here
     */
    void (*on_ctl)(void *arg, uint32_t from, const void *data, size_t bytes);
    void *on_ctl_arg;
};

/** Local. config is read here only. */
typedef xep_status_t (*xep_transport_open_fn)(const xep_config_t *config, xep_transport_t **transport_p);

#endif
