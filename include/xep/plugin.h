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

#include <xep/cuda.h>
#include <xep/direct.h>
#include <xep/inspect.h>
#include <xep/launch.h>
#include <xep/wire.h>
#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Goes up with every change of meaning here, in wire.h or launch.h; changes of layout also show in the sizes. */
#define XEP_PLUGIN_ABI 21u

/** By nodes modes count rows in so many bits of a word, below its epoch. */
#define XEP_FEED_ROWS_BITS 24

/** The shape of a buffer: the params with every default filled in, and the place of every rank. */
typedef struct xep_shape {
    uint32_t rank, nranks;
    /* Ranks of one node map each other's heaps, and ranks of different nodes do not: the core makes sure. */
    uint32_t nodes;
    const uint32_t *node;       /* [R] node of each rank, 0 .. nodes - 1, in the order of their lowest ranks */
    const uint32_t *place;      /* [R] place of each rank among the ranks of its node, from 0 */
    const uint32_t *node_ranks; /* [nodes] ranks of each node */
    /* Modes number experts by rank: those of rank r are first_expert[r] .. first_expert[r + 1] - 1. With an owner map
     * these are other numbers than the caller's, and the core has put them into topk_idx, unless that is device memory:
     * there the mode's kernels do. */
    uint32_t experts;             /* E */
    const uint32_t *first_expert; /* [R + 1] first expert of each rank, then E */
    const uint32_t *expert;       /* [E + 1] the caller's number of each, then E */
    uint32_t local_experts;       /* L: experts of this rank */
    uint32_t most_experts;        /* of any rank */
    uint32_t topk;                /* most selections of a token */
    uint32_t hidden;              /* most elements of a row */
    uint32_t scales;              /* most words of 4 bytes beside a row: scales, payloads */
    uint32_t elem_bytes;          /* most bytes of a dispatched element */
    uint32_t combine_elem_bytes;  /* most bytes of a combined element */
    uint32_t slots;
    uint64_t tokens;       /* most tokens a rank dispatches */
    const uint32_t *sends; /* [R] 0: a rank that never has tokens; its memory for what it sends stays untouched */
    /* most rows a rank receives; 0: the mode computes the worst case or, in pieces, an even load and a quarter more */
    uint64_t recv_rows;
    int sends_in_place; /* there is memory for rows that peers read in place */
    /* Rows for other nodes go once to each (XEP_PATH_NODES), to the rank there whose place is the sender's, modulo the
     * ranks of that node: it forwards them, and the sender is one of its upstream ranks. tokens is less than 2 to the
     * power of XEP_FEED_ROWS_BITS then. 0: they go to each rank */
    int by_nodes;
    uint32_t upstreams; /* most that a rank has; 0 where it is not by nodes */
    /* By nodes: rows that a rank has room for while they pass through it, for each upstream rank. Flat, where the mode
     * tells pass_rows: for each rank, 0: for all that can come */
    uint64_t feed_rows;
    int in_pieces;         /* dispatches may come in pieces (XEP_BUFFER_PIECES); never by nodes */
    int sums_by_selection; /* ranks are summed by a token's last selection of each (XEP_BUFFER_SUM_BY_SELECTION) */
} xep_shape_t;

/**
 * Expects how many of tokens, each with topk different experts, select at least one of these; all are equally likely.
 */
static inline double xep_even_tokens(double tokens, double these, double all, uint32_t topk)
{
    /* drawing without replacement: the chance that the k-th draw misses these, too, after k misses */
    double missed = 1;
    for (uint32_t k = 0; k < topk && missed > 0; k++) missed *= all - these - k > 0 ? (all - these - k) / (all - k) : 0;
    return tokens * (1 - missed);
}

/**
 * What a dispatch or a combine costs on the path of a shape: its rows, and other messages (counts, heads and words).
 * Sizes are those of the largest rows of the shape.
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
     * mode; sources are upstream ranks, or flat all ranks. 0: rows never wait for room */
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

/** Instruction sets that a kernel may use; of a processor's family each includes the ones before it. */
typedef enum {
    XEP_SIMD_SCALAR,
    XEP_SIMD_AVX2,
    XEP_SIMD_NEON = XEP_SIMD_AVX2, /* of aarch64 */
    XEP_SIMD_AVX512,
    XEP_SIMD_AVX512VBMI,
    XEP_ENUM_IS_INT(XEP_SIMD)
} xep_simd_t;

#define XEP_NO_SLOT UINT32_MAX
#define XEP_NO_RANK UINT32_MAX

/**
 * Whether an operation waits for the first thing that a rank sends in it. Other ranks read it, so values never change.
 */
typedef enum xep_opens {
    XEP_OPENS_NOT = 0,      /* it comes later: a rank that is late has begun the operation */
    XEP_OPENS_DIRECTLY = 1, /* it is: one that is late may not have */
    XEP_OPENS_THROUGH = 2,  /* it is, and for some late ranks comes through another rank */
    XEP_ENUM_IS_INT(XEP_OPENS)
} xep_opens_t;

/**
 * For which ranks an operation waits, and how long it has waited for each. If a mode does not use it,
 * xep_buffer_waits() shows no waits.
 */
typedef struct xep_late {
    /* set by the mode: how many ranks' words were missing at its last look, and which; the core drops those that leave
     * the operation */
    uint32_t count;
    uint32_t *ranks; /* [R] */
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

/**
 * How an operation goes on without a rank: it sends nothing to it, waits for nothing from it and reads none of its
 * rows.
 */
enum {
    XEP_OUT_SILENT = 1, /* nothing that it said counts */
    XEP_OUT_HEARD = 2   /* its first word counts, as some rank may have acted on it; its last one does not */
};

/** One operation. The core owns the memory and fills everything but state, recv and late. */
typedef struct xep_op {
    xep_op_kind_t kind;
    uint32_t slot;        /* slot of this rank, 0 .. slots-1; peers may use other ones for the same operation */
    uint32_t cached_slot; /* dispatch: slot of the handle whose routing is used again, or XEP_NO_SLOT */
    /*
     * calls of this buffer that this rank has refused so far. If ranks differ, this is not the same call everywhere:
     * the mode ends the operation with XEP_ERR_MISMATCH on all ranks, and sets this to the highest number of any rank
     */
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
    uint32_t waits;     /* 1: the call returns at its end, so nothing of this rank comes between its phases */
    /*
     * of the slot: zeroed before a dispatch, which fills all of it at once, size included, as soon as it knows the rows
     * and their places; read by combine; filled again by next
     */
    xep_recv_t *recv;
    void *state; /* [state_bytes] of the mode, zeroed before dispatch or combine */
    xep_late_t late;
    /*
     * with: the ranks that take part in this operation, all but those that are out. heard: these and the ranks with
     * XEP_OUT_HEARD, whose first word counts. Set before it begins; a rank may leave between two calls of progress
     */
    xep_ranks_t with, heard;
    /* [R] XEP_OUT_* of each rank, 0 for those that take part; NULL: all do */
    const uint8_t *out;
    /* set by the core together with out, where a rank is added whose word others had: what they have concluded is the
     * verdict here, too, whatever the words say that are here; refused is as they have it */
    int is_ruled;
    xep_status_t decision;
    /*
     * rows at the end of x that are not there yet, nor are the biases and what follows them; the core lowers it between
     * two calls of progress. Always 0 if begins_early is not set
     */
    uint64_t coming;
} xep_op_t;

/** Asks for one rank; loops use with. */
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
    /*
     * this rank's heap. When a buffer is created it is all zeros, with untouched pages if the system allows (see
     * prefault). A reset leaves it as it was, and epochs go on
     */
    void *heap;
    uint64_t heap_bytes;
    xep_region_t regions[XEP_REGIONS]; /* the parts of the heap that heap_size asked for */
    xep_wire_t *wire;
    xep_device_t *device;     /* NULL: all regions are host memory */
    uint32_t threads;         /* of the team */
    uint32_t multiprocessors; /* of the device, to use; 0 without one */
    xep_simd_t simd;          /* widest kernels to use */
    uint32_t fewest;          /* multiprocessors that any rank asks for: the same on all */
    /*
     * a dispatch that writes at least so many bytes, or a combine that loads and writes as many, bypasses the caches;
     * UINT64_MAX: none does
     */
    uint64_t stream_bytes;

    /** Runs fn(arg, 0 .. threads-1, threads) on the team and returns when all have finished. Must not be nested. */
    void (*parallel)(const xep_env_t *env, xep_parallel_fn fn, void *arg);

    /**
     * Makes pages present in this process that it will touch, in its own heap or in that of a mapped peer; in a peer's
     * only after all ranks have opened their modes. It stops at the limit of XEP_PREFAULT. Slow: for open, and for
     * memory at its first use.
     */
    void (*prefault)(const xep_env_t *env, void *base, uint64_t bytes);

    /** Nanoseconds of a monotonic clock; never 0. */
    uint64_t (*now_ns)(const xep_env_t *env);

    /**
     * Sets the sentence that xep_last_error() returns for an error of op, or of this call if op is NULL; returns
     * status. With format NULL op keeps the sentence it has, or else takes the one that the wire has just set in this
     * thread: for an error of the wire that the mode returns only later.
     */
    xep_status_t (*fail)(const xep_env_t *env, xep_op_t *op, xep_status_t status, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

    /** Logs a message, with the rank and the mode put in front. */
    void (*log)(const xep_env_t *env, xep_log_level_t level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

    /*
     * whether a trace is written (XEP_TRACE); without one a mode neither reads the clock for it nor calls span. The
     * same from open to close
     */
    int tracing;

    /**
     * Writes into the trace what op did between two times of now_ns: a phase, of which the first 31 bytes of the name
     * are kept; or, with a rank that is not XEP_NO_RANK, a wait for that rank, and name is NULL. Phases of an operation
     * follow one another, and a wait lies within one.
     */
    void (*span)(const xep_env_t *env, const xep_op_t *op, const char *name, uint32_t rank, uint64_t begin_ns,
                 uint64_t end_ns);

    /*
     * NULL: all ranks take part in all operations. Else [R] 1 for a rank that is out of all operations that begin: it
     * reads nothing any more. Only if it is not NULL, the functions up to leave_out:
     */
    const uint8_t *out;

    /** Whether others have told this rank that it is out. */
    int (*is_told)(const xep_env_t *env);

    /** Whether the process of rank, which is out, has ended: it stores nothing any more. Asks the system. */
    int (*has_ended)(const xep_env_t *env, uint32_t rank);

    /**
     * Excludes rank, which is out of all operations that begin, from op, too: its last word is here, but its rows are
     * of no use to the others. From now on it is XEP_OUT_HEARD. All survivors decide the same.
     */
    void (*leave_out)(const xep_env_t *env, xep_op_t *op, uint32_t rank);

    /**
     * NULL: no rank sleeps. Else to be called after storing a word for a mapped rank, which may sleep until then: on
     * hosts with more ranks than processors, waiting ranks leave these to the others. It would wake up by itself, but
     * late.
     */
    void (*wake)(const xep_env_t *env, uint32_t rank);

    /**
     * NULL: not needed. Else the mode says: all rows that rank sends in the dispatch op are where op->recv shows them,
     * by rank, with their scales, and will not change. Does not wait; a second call is a no-op.
     */
    void (*rows_came)(const xep_env_t *env, const xep_op_t *op, uint32_t rank);

    /* rows that receivers can use one by one are announced each time so many bytes are on their way */
    uint64_t part_bytes;

    const xep_direct_ops_t *direct; /* NULL: all rows are in host memory; else rows that are cast are, no others */
};

/** Which words of a rank in an operation are here. */
typedef enum {
    XEP_HOLDS_NOTHING,
    XEP_HOLDS_FIRST, /* its first word, where there are two: what the others compute with */
    XEP_HOLDS_ALL    /* its last or only word: all its rows are there */
} xep_holds_t;

/**
 * What a mode does so that a buffer can go on without ranks (XEP_ON_FAILURE_MASK). In an operation each rank has a last
 * word, which says that all its rows are there, and may have a first word before it.
 */
typedef struct xep_mask_ops {
    /** Which of rank's words for op are here. */
    xep_holds_t (*holds)(void *mode, const xep_op_t *op, uint32_t rank);

    /**
     * Some rank has the last word of rank, which is dead or out: fetches it from there, if it is not here. What it
     * announces is used as always. XEP_ERR_PROTOCOL: no rank has it.
     */
    xep_status_t (*fetch)(void *mode, xep_op_t *op, uint32_t rank);

    /**
     * The verdict of op, made from the words of all ranks that take part, with which it will end unless it fails:
     * XEP_OK, or an error that all ranks get. XEP_INPROGRESS: words are missing, or it has not looked yet. NULL: the
     * mode goes on without ranks only if all map one another.
     */
    xep_status_t (*verdict)(void *mode, const xep_op_t *op);

    /** Whether rank has not yet read what the last combine of a slot left in its input: input() waits for it. */
    int (*reads)(void *mode, uint32_t slot, uint32_t rank);
} xep_mask_ops_t;

/** What a mode does so that peers may read rows in place (XEP_BUFFER_SEND_MEMORY). */
typedef struct xep_place_ops {
    /**
     * Returns where rows of the next dispatch may be written, and the bytes between them; the same until a dispatch has
     * used it. XEP_INPROGRESS: peers have not yet released rows there; call again. XEP_ERR_BUSY: all of it has rows
     * that this rank has not released. After an error the reason is set.
     */
    xep_status_t (*memory)(void *mode, void **base_p, size_t *stride_p);

    /** The handle of a slot ends: this rank no longer reads rows of its dispatch. */
    void (*release)(void *mode, uint32_t slot);
} xep_place_ops_t;

/** Which rows of an operation must be there when it begins. */
typedef enum xep_begins {
    XEP_BEGINS_WITH_ALL = 0,
    XEP_BEGINS_EARLY = 1,   /* none; the call returns when it has begun */
    XEP_BEGINS_IN_CALL = 2, /* none; the call advances it until all are there, so that it has sent what it can */
    XEP_ENUM_IS_INT(XEP_BEGINS)
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
    /* What it can beside what its functions tell (xep_mode_info_t): it is asked for nothing else */
    uint32_t can;                  /* XEP_CAN_NODES (with traffic), XEP_CAN_CAPTURE and those that follow it */
    uint32_t casts, combine_casts; /* sets of bits 1 << XEP_QUANT_* */
    uint32_t arrangements;         /* of bits 1 << XEP_ROWS_*; XEP_ROWS_DEFAULT goes without saying */

    /**
     * Returns the bytes and the alignment of the regions that this shape needs (all zero before the call; 0 bytes: the
     * region is not needed), and how many rows a slot can hold. The same on every rank, as all heaps have one layout:
     * it may depend on the nodes, but not on rank and local_experts. xep_buffer_size() knows no nodes, and asks twice:
     * for rank 0 of a single node, and of as many nodes as ranks; the latter by nodes, if the mode supports that, and
     * with as many upstream ranks as possible.
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
     * Advances the operation as far as it goes without waiting. XEP_INPROGRESS: not done, call again. XEP_OK: done.
     * XEP_ERR_OVERFLOW, XEP_ERR_MISMATCH, XEP_ERR_INVALID: done, nothing was moved, and every rank gets the same. Any
     * other error: the operation cannot be finished, and the core breaks the buffer. Operations of different slots are
     * advanced in any order.
     */
    xep_status_t (*progress)(void *mode, xep_op_t *op);

    /**
     * Returns where the slot's combine input is, and the bytes between its rows. XEP_INPROGRESS: a peer has not yet
     * read the input of an earlier combine; call again.
     */
    xep_status_t (*input)(void *mode, uint32_t slot, void **base_p, size_t *stride_p);

    /**
     * Writes into text, for the sentence of a timeout, what op waits for: the phase, the ranks, the values expected and
     * seen; at most bytes, with the final 0. For an op without a state, which has only a slot: what its input waits
     * for.
     */
    void (*explain)(void *mode, const xep_op_t *op, char *text, size_t bytes);

    /* NULL: the mode needs all ranks; or in device memory, where can has XEP_CAN_MASK, its kernels know what to do */
    const xep_mask_ops_t *masks;
    const xep_place_ops_t *place; /* NULL: every row is copied */
    /* device memory: enqueues the work that fills out on args->stream; args are checked. NULL: XEP_ERR_UNSUPPORTED */
    xep_status_t (*layout)(void *mode, const xep_layout_args_t *args, const xep_layout_t *out);

    /**
     * Returns what a dispatch and a combine cost: the core chooses the path and the room for rows in passing by it, and
     * xep_perf --simulate says what a job would need. The same on every rank. Called with by_nodes 0 and 1: a mode that
     * does not support the latter answers by_nodes 0 to both, and is never opened by nodes. NULL: it does not say, and
     * rows never wait for room.
     */
    void (*traffic)(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine);
    xep_begins_t begins_early; /* if it may begin before all rows are there: then it looks at xep_op_t.coming */

    /**
     * Begins to send the outputs of the slot's current piece to the ranks of its tokens, and to bring the next piece;
     * as dispatch and combine. There is a next piece, and the outputs of all pieces are of one kind. NULL: the mode has
     * no dispatches in pieces.
     */
    xep_status_t (*next)(void *mode, xep_op_t *op);

    /* device memory: enqueue what args ask for, which are checked, on args->stream. NULL: XEP_ERR_UNSUPPORTED */
    xep_status_t (*expand)(void *mode, const xep_recv_t *recv, const xep_expand_args_t *args);
    xep_status_t (*reduce)(void *mode, const xep_recv_t *recv, const xep_reduce_args_t *args);

    const void *(*direct_image)(void); /* device memory: kernels of direct.h and captured.h, for the mode of the host */
    uint64_t goes_direct;              /* host memory: flat it can leave rows to env->direct */
} xep_plugin_t;

/** The first members of a mode's table: what it was compiled with. */
#define XEP_PLUGIN_SIZES                                                                                            \
    .abi = XEP_PLUGIN_ABI, .size = sizeof(xep_plugin_t), .env_size = sizeof(xep_env_t),                             \
    .shape_size = sizeof(xep_shape_t), .op_struct_size = sizeof(xep_op_t), .wire_ops_size = sizeof(xep_wire_ops_t), \
    .device_ops_size = sizeof(xep_device_ops_t)

#ifdef __cplusplus
}
#endif

#endif
