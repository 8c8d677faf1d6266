/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a mode is: a shared object xep_<name>.so that exports one const object, xep_plugin, and imports nothing of xep.
 * Everything it may use arrives in its xep_env_t. It has no mutable globals, reads no environment, prints nothing and
 * starts no thread.
 *
 * A mode is built for exactly the library that loads it, in this tree or outside: the ABI number and all sizes must be
 * equal, and there are no adapters for older ones.
 *
 * How a mode is called. open is called when a buffer is created, close when it is destroyed, and both once more by a
 * reset. In between, one thread at a time calls dispatch, combine, progress, input and explain. None of them blocks. An
 * operation is begun by dispatch or combine and then taken further by progress until that returns something other than
 * XEP_INPROGRESS. Several operations may be in flight, each with a slot of its own; every rank begins the operations of
 * a buffer in the same order.
 */
#ifndef XEP_PLUGIN_H
#define XEP_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include <xep/launch.h>
#include <xep/wire.h>
#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Goes up with every change of meaning here, in wire.h or launch.h; a change of layout also shows in the sizes. */
#define XEP_PLUGIN_ABI 17u

/** By nodes modes count rows in so many bits of a word, below its epoch. */
#define XEP_FEED_ROWS_BITS 24

/** The shape of a buffer: the params with every default filled in, and the place of every rank. */
typedef struct xep_shape {
    uint32_t rank, nranks;
    /* Ranks of one node map each other's heaps, and ranks of different nodes do not. The core has seen to it. */
    uint32_t nodes;
    const uint32_t *node;       /* [R] node of each rank, 0 .. nodes - 1, in the order of their lowest ranks */
    const uint32_t *place;      /* [R] place of each rank among the ranks of its node, from 0 */
    const uint32_t *node_ranks; /* [nodes] ranks of each node */
    /* Modes number experts by rank: those of rank r are first_expert[r] .. first_expert[r + 1] - 1. With an owner map
     * these are other numbers than the caller's, and the core has put them into topk_idx. */
    uint32_t experts;             /* E */
    const uint32_t *first_expert; /* [R + 1] first expert of each rank, then E */
    const uint32_t *expert;       /* [E + 1] the caller's number of each, then E */
    uint32_t local_experts;       /* L: experts of this rank */
    uint32_t most_experts;        /* of any rank */
    uint32_t topk;                /* most selections of a token */
    uint32_t hidden;              /* most elements of a row */
    uint32_t scales;              /* most 4-byte scales of a token */
    uint32_t elem_bytes;          /* most bytes of a dispatched element */
    uint32_t combine_elem_bytes;  /* most bytes of a combined element */
    uint32_t slots;
    uint64_t tokens; /* most tokens a rank dispatches */
    const uint32_t *sends; /* [R] 0: a rank that never has tokens; its memory for what it sends stays untouched */
    /* most rows a rank receives; 0: the mode works out the worst case; in pieces, an even load and a quarter more */
    uint64_t recv_rows;
    int sends_in_place; /* there is memory for rows that peers read in place */
    /* Rows for other nodes go once to each (XEP_PATH_NODES), to the rank there whose place is the sender's, modulo the
     * ranks of that node: it forwards them, and the sender is one of its feeders. tokens is less than 2 to the power of
     * XEP_FEED_ROWS_BITS then. 0: they go to each rank */
    int by_nodes;
    uint32_t feeders; /* most that a rank has; 0 where it is not by nodes */
    /* By nodes: rows that a rank has room for while they pass through it, for each feeder. Flat, where the mode tells
     * pass_rows: for each rank, 0: for all that can come */
    uint64_t feed_rows;
    int wide_sums; /* by nodes: what a node sends of a token is fp32 (XEP_NODE_SUMS_FP32) */
    int in_pieces; /* dispatches may come in pieces (XEP_BUFFER_PIECES); never by nodes */
} xep_shape_t;

/** Of so many tokens, each with topk different experts, those that select some of these, where all are as likely. */
static inline double xep_even_tokens(double tokens, double these, double all, uint32_t topk)
{
    /* drawn without putting any back: the k-th misses these with the chance that is left when k others are gone */
    double missed = 1;
    for (uint32_t k = 0; k < topk && missed > 0; k++) missed *= all - these - k > 0 ? (all - these - k) / (all - k) : 0;
    return tokens * (1 - missed);
}

/**
 * What a dispatch, or a combine, costs on the path of a shape: its rows, and the messages besides, which are counts,
 * heads and words. Sizes are those of the largest rows of the shape.
 */
typedef struct xep_traffic {
    int by_nodes;     /* rows go once to each node, by a forwarder; in a combine it sums them. 0: once to each rank */
    int by_selection; /* a row for each selection; 0: one for each rank that has experts of a token */
    int pulled;       /* a receiver copies a row for each selection when all are there; 0: rows are stored in place */
    int messages_by_nodes;  /* messages besides rows go to forwarders alone; 0: to each rank */
    uint32_t messages;      /* besides rows: to each rank, or to each forwarder */
    uint32_t rounds;        /* of messages over the network, each sent when the one before is there */
    uint64_t message_bytes; /* besides rows: of these messages together */
    uint64_t row_bytes;     /* of a row in memory, with its metadata */
    uint64_t sent_bytes;    /* of a row on its way to another node */
    /* of a dispatch: rows in passing that a rank has room for, of all sources together, if the caller leaves it to the
     * mode; sources are feeders, or flat all ranks. 0: rows never wait for room */
    uint64_t pass_rows;
} xep_traffic_t;

/** The parts of a rank's heap, in this order. */
typedef enum {
    XEP_REGION_CONTROL,  /* words by which ranks signal one another */
    XEP_REGION_METADATA, /* counts, indices, weights, scales */
    XEP_REGION_ROWS,     /* tokens and expert outputs */
    XEP_REGIONS
} xep_region_id_t;

/**
 * A part of the heap. heap_size fills the first three fields; the core fills the others before open. A rank has a heap
 * for each kind of memory that a region has: the wire's, and the device's.
 */
typedef struct xep_region {
    uint64_t bytes;
    uint32_t alignment; /* of its first byte: a power of two, 64 .. 4096 */
    xep_memory_t memory;
    uint64_t offset; /* where it begins in every rank's heap of this kind; offsets count from the heap's begin */
    void *base;      /* where it begins in this rank's heap; in that of a mapped rank: map() + offset */
} xep_region_t;

/** Instruction sets that a kernel may use; each includes the ones before it. */
typedef enum { XEP_SIMD_SCALAR, XEP_SIMD_AVX2, XEP_SIMD_AVX512, XEP_SIMD_AVX512VBMI } xep_simd_t;

#define XEP_NO_SLOT UINT32_MAX
#define XEP_NO_RANK UINT32_MAX

/** Whether what an operation waits for is the first that a rank sends in it; others read it, so values never change. */
typedef enum xep_opens {
    XEP_OPENS_NOT = 0,      /* it comes later: a rank that is late has begun the operation */
    XEP_OPENS_DIRECTLY = 1, /* it is: one that is late may not have */
    XEP_OPENS_THROUGH = 2   /* it is, and comes through another rank for some of those who are late */
} xep_opens_t;

/**
 * For which ranks an operation waits, and how long it has waited for each. A mode that leaves it alone works, and its
 * waits count for nobody (xep_buffer_waits()).
 */
typedef struct xep_late {
    uint32_t count;  /* set by the mode: how many ranks' words it did not find when it looked last */
    uint32_t *ranks; /* [R] set by the mode: which ranks these are */
    /* set by the core: when a caller began to wait for them, 0 if no caller waits; the mode sets it to 0 when count
     * becomes 0 */
    uint64_t since_ns;
    uint64_t *wait_ns; /* [R] the mode adds now - since_ns for a rank whose word it finds, if since_ns is not 0 */
    const char *what;  /* set by the mode with count: what is late, in the plural ("counts"), or NULL */
    xep_opens_t opens; /* the same */
} xep_late_t;

/** Some of the ranks, ascending; this rank is one of them. */
typedef struct xep_ranks {
    uint32_t count;
    uint32_t self;        /* which of them this rank is */
    const uint32_t *rank; /* [count] */
} xep_ranks_t;

/** How an operation is without a rank. Nothing is sent to the rank, waited for from it, or read of its rows. */
enum {
    XEP_OUT_SILENT = 1, /* nothing that it said counts */
    XEP_OUT_HEARD = 2   /* its first word counts, as some rank may have acted on it; its last one does not */
};

/** One operation. The core owns the memory and fills everything but state, recv and late. */
typedef struct xep_op {
    xep_op_kind_t kind;
    uint32_t slot;        /* slot of this rank, 0 .. slots-1; peers may use other ones for the same operation */
    uint32_t cached_slot; /* dispatch: slot of the handle whose routing is used again, or XEP_NO_SLOT */
    /* calls of this buffer that this rank has refused so far. Where ranks differ it is not the same call everywhere:
     * the mode ends the operation with XEP_ERR_MISMATCH on all ranks, and leaves the most of any rank here */
    uint32_t refused;
    uint64_t epoch; /* 1, 2, ... over the operations of the buffer; the same on every rank */
    /* 0, 1, ... over the dispatches and next pieces of the buffer; the core begins turn n only after turn n - slots is
     * complete on this rank. In a combine: the turn of the handle's dispatch */
    uint64_t turn;
    /* checked, defaults filled in, strides never 0. Next: that of the handle */
    const xep_dispatch_args_t *dispatch;
    /* likewise; x is NULL if the outputs are in the slot's input already. Next: the outputs of the piece that is shown,
     * without out; NULL: it has none */
    const xep_combine_args_t *combine;
    int32_t timeout_ms; /* its deadline; < 0: none */
    /* of the slot: zeroed before a dispatch, which fills all of it in one go, size included, as soon as it knows the
     * rows and their places; read by combine; written anew by next */
    xep_recv_t *recv;
    void *state; /* [state_bytes] of the mode, zeroed before dispatch or combine */
    xep_late_t late;
    /* the ranks that this operation is with: all, but for those that are out; and those whose first word counts, which
     * are XEP_OUT_HEARD besides. Set before it begins; a rank may leave them between two calls of progress */
    xep_ranks_t with, heard;
    /* of the others: [R] XEP_OUT_* for a rank that it is without, 0 for those that it is with; NULL: it is with all */
    const uint8_t *out;
    /* set by the core together with out, where a rank is added whose word others had: what they have concluded is the
     * verdict here, too, whatever the words say that are here; refused is as they have it */
    int is_ruled;
    xep_status_t ruling;
    /* rows at the end of x that are not there yet, with all else from the biases on; the core lowers it between two
     * calls of progress. Always 0 where the mode does not say begins_early */
    uint64_t coming;
} xep_op_t;

/** For one rank; with has them all. */
static inline int xep_op_is_without(const xep_op_t *op, uint32_t rank)
{
    return op->out != NULL && op->out[rank] != 0;
}

typedef struct xep_env xep_env_t;
typedef void (*xep_parallel_fn)(void *arg, uint32_t thread, uint32_t nthreads);

/** Everything a mode may use. Valid from open to close; it belongs to the core. */
struct xep_env {
    size_t size; /* of this struct */
    const xep_shape_t *shape;
    /* this rank's heap. When a buffer is created it is all zeros, with its pages not yet touched if the system allows
     * (see prefault). After a reset it is as it was before, and epochs go on */
    void *heap;
    uint64_t heap_bytes;
    xep_region_t regions[XEP_REGIONS]; /* the parts of the heap that heap_size asked for */
    xep_wire_t *wire;
    xep_device_t *device; /* NULL: all regions are host memory */
    uint32_t threads;     /* of the team; with a device: multiprocessors to use */
    xep_simd_t simd;      /* widest kernels to use */
    /* a dispatch that writes at least so many bytes, or a combine that loads and writes as many, stores them past the
     * caches; UINT64_MAX: none does */
    uint64_t stream_bytes;

    /** Runs fn(arg, 0 .. threads-1, threads) on the team and returns when all have finished. Must not be nested. */
    void (*parallel)(const xep_env_t *env, xep_parallel_fn fn, void *arg);

    /**
     * Makes the pages present, in this process, of bytes that it will touch in its own heap or in that of a mapped
     * peer: those of peers not before all have opened their modes. It stops at the limit of XEP_PREFAULT. Slow: for
     * open, and for what is first used.
     */
    void (*prefault)(const xep_env_t *env, void *base, uint64_t bytes);

    /** Nanoseconds of a monotonic clock; never 0. */
    uint64_t (*now_ns)(const xep_env_t *env);

    /**
     * Sets the sentence that xep_last_error() returns for an error of op, or of this call if op is NULL; returns
     * status. With format NULL op keeps the sentence it has, or else takes the one that the wire has just set in this
     * thread: for an error of the wire that the mode returns later than it met it.
     */
    xep_status_t (*fail)(const xep_env_t *env, xep_op_t *op, xep_status_t status, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

    /** Logs a message, with the rank and the mode put in front. */
    void (*log)(const xep_env_t *env, xep_log_level_t level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

    /* whether a trace is written (XEP_TRACE): without one a mode reads no clock for it and does not call span. The
     * same from open to close */
    int tracing;

    /**
     * Writes into the trace what op did between two times of now_ns: a phase, of which the first 31 bytes of the name
     * are kept; or, with a rank that is not XEP_NO_RANK, a wait for that rank, and name is NULL. Phases of an operation
     * follow one another, and a wait lies within one.
     */
    void (*span)(const xep_env_t *env, const xep_op_t *op, const char *name, uint32_t rank, uint64_t begin_ns,
                 uint64_t end_ns);

    int checks_rows; /* XEP_CHECK_ROWS: rows that peers read in place are looked at again when they may change */

    /* NULL: operations are with all ranks, or fail. Else [R] 1 for a rank that is out of all operations that begin: it
     * reads nothing any more. Only with it: */
    const uint8_t *out;

    /** Whether others have told this rank that it is out. */
    int (*is_told)(const xep_env_t *env);

    /** Whether the process of rank, which is out, has ended: it stores nothing any more. Asks the system. */
    int (*has_ended)(const xep_env_t *env, uint32_t rank);

    /**
     * Op is without rank, whose last word is here, but what it brings is of no use to the others. Rank is out of all
     * operations that begin, and all survivors come to the same. As XEP_OUT_HEARD, from now on.
     */
    void (*leave_out)(const xep_env_t *env, xep_op_t *op, uint32_t rank);

    /**
     * NULL: no rank sleeps. Else to be called after a word was stored for a mapped rank, which may sleep until then:
     * on hosts with more ranks than processors those who wait leave these to the others. It would wake up by itself,
     * but late.
     */
    void (*rouse)(const xep_env_t *env, uint32_t rank);

    /**
     * NULL: nobody asks. Else: all rows that rank sends in the dispatch op are where op->recv has them, by rank, with
     * their scales, and stay as they are. Does not wait; again: a no-op.
     */
    void (*rows_came)(const xep_env_t *env, const xep_op_t *op, uint32_t rank);

    /* rows that receivers can use one by one are told of each time so many bytes are on their way */
    uint64_t part_bytes;
};

/** How much of what a rank says in an operation is here. */
typedef enum {
    XEP_HOLDS_NOTHING,
    XEP_HOLDS_FIRST, /* its first word, where there are two: what the others compute with */
    XEP_HOLDS_ALL    /* its last word, or only one: all that it brings is there */
} xep_holds_t;

/**
 * What a mode does so that a buffer can go on without ranks (XEP_ON_FAILURE_MASK). In an operation there is one word of
 * each rank by which all that it brings is known to be there, and there may be another one before.
 */
typedef struct xep_mask_ops {
    /** Which of rank's words for op are here. */
    xep_holds_t (*holds)(void *mode, const xep_op_t *op, uint32_t rank);

    /**
     * The last word of rank, which is dead or out, is at some rank: takes it from there, if it is not here. What it
     * announces is used as always. XEP_ERR_PROTOCOL: nobody has it.
     */
    xep_status_t (*fetch)(void *mode, xep_op_t *op, uint32_t rank);

    /**
     * What op has concluded from the words of all that it is with, and will end with unless it fails: XEP_OK, or an
     * error that all ranks get. XEP_INPROGRESS: it waits for words, or has not come so far. NULL: the mode goes on
     * without ranks only where all map one another.
     */
    xep_status_t (*verdict)(void *mode, const xep_op_t *op);

    /** Whether rank has not yet read what the last combine of a slot left in its input: input() waits for it. */
    int (*reads)(void *mode, uint32_t slot, uint32_t rank);
} xep_mask_ops_t;

/** What a mode does so that peers may read rows in place (XEP_BUFFER_SEND_MEMORY). */
typedef struct xep_place_ops {
    /**
     * Tells where rows of the next dispatch may be written, and the bytes between them; the same until a dispatch has
     * taken it. XEP_INPROGRESS: peers have not yet released rows that are there; call again. XEP_ERR_BUSY: all of it
     * has rows that this rank has not released. An error has set its sentence.
     */
    xep_status_t (*memory)(void *mode, void **base_p, size_t *stride_p);

    /** A slot's handle ends: this rank reads no rows of its dispatch any more. */
    void (*release)(void *mode, uint32_t slot);
} xep_place_ops_t;

/** How much of an operation's rows a mode wants there when it begins. */
typedef enum xep_begins {
    XEP_BEGINS_WITH_ALL = 0,
    XEP_BEGINS_EARLY = 1,  /* none; the call returns when it has begun */
    XEP_BEGINS_IN_CALL = 2 /* none; the call takes it further until all are there, so that it has sent what it can */
} xep_begins_t;

typedef struct xep_plugin {
    uint32_t abi;             /* XEP_PLUGIN_ABI */
    uint32_t size;            /* sizeof(xep_plugin_t) */
    uint32_t env_size;        /* sizeof(xep_env_t) */
    uint32_t shape_size;      /* sizeof(xep_shape_t) */
    uint32_t op_struct_size;  /* sizeof(xep_op_t) */
    uint32_t wire_ops_size;   /* sizeof(xep_wire_ops_t) */
    uint32_t device_ops_size; /* sizeof(xep_device_ops_t) */
    uint32_t state_bytes;     /* private state of one operation (xep_op_t.state) */
    const char *name;         /* as in the file's name, xep_<name>.so */
    const char *brief;        /* one line that describes the mode, for xep_info */

    /**
     * Tells the bytes and the alignment of the regions that this shape needs (all zero before the call; 0 bytes: the
     * region is not needed), and how many rows a slot can hold. The same on every rank, as all heaps have one layout:
     * it may depend on the nodes, but not on rank and local_experts. xep_buffer_size() knows no nodes, and asks twice:
     * for rank 0 of a single node, and of as many nodes as ranks; the latter by nodes, if the mode knows that, and with
     * the most feeders that there can be.
     */
    xep_status_t (*heap_size)(const xep_shape_t *shape, xep_region_t regions[XEP_REGIONS], uint64_t *recv_rows_p);

    /**
     * Prepares a buffer: allocates everything it will ever need and connects to every peer. Local. Called again after a
     * reset, on the heap as it was. On an error nothing is left.
     */
    xep_status_t (*open)(const xep_env_t *env, void **mode_p);

    /** Frees what open made. Operations that were still in flight are never continued. */
    void (*close)(void *mode);

    /**
     * Begin an operation: check what only the mode can check, then send what can be sent without waiting.
     *
     * XEP_OK: the operation has begun. An error: nothing was sent and nothing is remembered; the core uses op's epoch
     * again for another operation. So once a byte or a word may have reached a peer, an error must wait: return XEP_OK,
     * and return the error from the next progress.
     */
    xep_status_t (*dispatch)(void *mode, xep_op_t *op);
    xep_status_t (*combine)(void *mode, xep_op_t *op);

    /**
     * Takes the operation as far as it goes without waiting. XEP_INPROGRESS: not done, call again. XEP_OK: done.
     * XEP_ERR_OVERFLOW, XEP_ERR_MISMATCH, XEP_ERR_INVALID: done, nothing was moved, and every rank gets the same. Any
     * other error: the operation cannot be finished, and the core breaks the buffer. Operations of different slots are
     * taken further in any order.
     */
    xep_status_t (*progress)(void *mode, xep_op_t *op);

    /**
     * Tells where the slot's combine input is, and the bytes between its rows. XEP_INPROGRESS: a peer has not yet read
     * what an earlier combine left there; call again.
     */
    xep_status_t (*input)(void *mode, uint32_t slot, void **base_p, size_t *stride_p);

    /**
     * Writes, for the sentence of a timeout, what op waits for into text: the phase, the ranks, the values expected and
     * seen; at most bytes, with the final 0. An op without a state has a slot alone: what its input waits for.
     */
    void (*explain)(void *mode, const xep_op_t *op, char *text, size_t bytes);

    const xep_mask_ops_t *masks;  /* NULL: the mode needs all ranks */
    const xep_place_ops_t *place; /* NULL: every row is copied */
    /* device memory: enqueues what fills out on args->stream; args are checked. NULL: XEP_ERR_UNSUPPORTED */
    xep_status_t (*layout)(void *mode, const xep_layout_args_t *args, const xep_layout_t *out);

    /**
     * Tells what a dispatch and a combine cost: by it the core chooses the path and the room for rows in passing, and
     * xep_perf --simulate says what a job would need. The same on every rank. Asked with by_nodes 0 and 1: a mode that
     * does not know the latter says by_nodes 0 of both, and is never opened so. NULL: it does not, and rows never wait
     * for room.
     */
    void (*traffic)(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine);
    xep_begins_t begins_early; /* otherwise than with all rows there: it looks at xep_op_t.coming */

    /**
     * Begins to take the outputs of the piece that the slot shows to the ranks of its tokens, and to bring the next
     * one; as dispatch and combine. There is a next one, and the outputs of all pieces are of one kind. NULL: the mode
     * has no dispatches in pieces.
     */
    xep_status_t (*next)(void *mode, xep_op_t *op);

    /* device memory: enqueue what args ask for, which are checked, on args->stream. NULL: XEP_ERR_UNSUPPORTED */
    xep_status_t (*expand)(void *mode, const xep_recv_t *recv, const xep_expand_args_t *args);
    xep_status_t (*reduce)(void *mode, const xep_recv_t *recv, const xep_reduce_args_t *args);
} xep_plugin_t;

/** The first members of a mode's table: what it was built against. */
#define XEP_PLUGIN_SIZES                                                                                            \
    .abi = XEP_PLUGIN_ABI, .size = sizeof(xep_plugin_t), .env_size = sizeof(xep_env_t),                             \
    .shape_size = sizeof(xep_shape_t), .op_struct_size = sizeof(xep_op_t), .wire_ops_size = sizeof(xep_wire_ops_t), \
    .device_ops_size = sizeof(xep_device_ops_t)

#ifdef __cplusplus
}
#endif

#endif
