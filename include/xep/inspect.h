/* SPDX-License-Identifier: BSD-3-Clause */

/** What there is and what goes on: library, configuration, modes, peers, layouts, buffers, waits, traces. */
#ifndef XEP_INSPECT_H
#define XEP_INSPECT_H

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- this installation --------------------------------------------------------- */

/** What this process is bound to. The strings belong to the library and stay valid as long as it is loaded. */
typedef struct xep_library_info {
    size_t size;
    const char *version;      /* of xep */
    const char *build;        /* compiler, and flags that matter */
    const char *library_path; /* file xep itself was loaded from */
    const char *ucx_version;
    const char *ucx_path;     /* file of the libucp in use */
    const char *pmix_version; /* "" if libpmix cannot be loaded; pmix_path then says why */
    const char *pmix_path;
    const char *simd; /* kernels in use: "avx512", "avx2", "neon", "scalar" */
} xep_library_info_t;

#define XEP_LIBRARY_INFO_INIT XEP_INIT_(xep_library_info_t)

/** Fills info. Errors: XEP_ERR_INVALID. */
XEP_API xep_status_t xep_library_query(xep_library_info_t *info);

/** Called for a configuration variable, with the value in force. Returns 0 to go on, anything else to stop. */
typedef int (*xep_config_fn)(void *arg, const char *name, const char *value, const char *def, const char *help);

/** Calls fn for every configuration variable. */
XEP_API void xep_config_each(xep_config_fn fn, void *arg);

/**
 * Called for a plugin file; brief describes the mode in one line. reason: NULL if the mode can be loaded, else why it
 * was refused (brief is "" then). Returns 0 to go on, anything else to stop.
 */
typedef int (*xep_mode_fn)(void *arg, const char *name, const char *path, const char *brief, const char *reason);

/** Calls fn for every plugin file in the folders where modes are looked for. Loads each of them. */
XEP_API void xep_mode_each(xep_mode_fn fn, void *arg);

/** What a mode can: bits of xep_mode_info_t.features, each with what asks for it. */
enum {
    XEP_CAN_MASK = 1,                /* XEP_ON_FAILURE_MASK; xep_combine_args_t.missing */
    XEP_CAN_PIECES = 2,              /* XEP_BUFFER_PIECES */
    XEP_CAN_IN_PLACE = 4,            /* XEP_BUFFER_SEND_MEMORY */
    XEP_CAN_NODES = 8,               /* XEP_PATH_NODES, where there are several nodes */
    XEP_CAN_OWNERS = 16,             /* xep_buffer_params_t.owners */
    XEP_CAN_EXPAND = 32,             /* xep_handle_expand(), xep_handle_reduce(), xep_combine_args_t.slots */
    XEP_CAN_CAPTURE = 64,            /* operations may be captured into a CUDA graph (xep/cuda.h) */
    XEP_CAN_WEIGH = 128,             /* xep_combine_args_t.weights */
    XEP_CAN_RETURN_WEIGHTS = 256,    /* xep_combine_args_t.topk_weights, out_weights */
    XEP_CAN_SUM_AT_OWNER = 512,      /* XEP_COMBINE_SUM_AT_OWNER */
    XEP_CAN_SCALES_BY_COLUMN = 1024, /* XEP_DISPATCH_SCALES_BY_COLUMN */
    XEP_CAN_EXPERT_STATS = 2048,     /* xep_dispatch_args_t.expert_stats */
    XEP_CAN_PAYLOADS = 4096          /* xep_dispatch_args_t.payloads; in host memory scales_dtype of any type, too */
};

/** Sets are words with the bit 1 << value of each element. */
typedef struct xep_mode_info {
    size_t size;
    xep_memory_t memory;     /* that was asked about */
    uint32_t features;       /* XEP_CAN_*; what else is asked for is XEP_ERR_UNSUPPORTED */
    uint32_t casts;          /* set of XEP_QUANT_*: xep_dispatch_args_t.quant */
    uint32_t combine_casts;  /* set of XEP_QUANT_*: xep_combine_args_t.quant */
    uint32_t arrangements;   /* set of XEP_ROWS_*: xep_dispatch_args_t.arrangement */
    uint32_t dtypes;         /* set of element types that a dispatch moves as they are */
    uint32_t cast_dtypes;    /* set of element types that it casts from */
    uint32_t combine_dtypes; /* set of element types that a combine sums; with quant XEP_BF16 alone */
} xep_mode_info_t;

#define XEP_MODE_INFO_INIT XEP_INIT_(xep_mode_info_t)

/**
 * Tells what a mode can where rows are in a kind of memory. mode as in xep_buffer_params_t. Local, needs neither a
 * group nor a device; loads the mode. A buffer in device memory that is staged can what there is for XEP_MEMORY_HOST,
 * without masks, pieces, rows in place and payloads. Errors: XEP_ERR_INVALID, XEP_ERR_PLUGIN (the mode cannot
 * be loaded, or is not there for this memory), XEP_ERR_NO_MEMORY.
 */
XEP_API xep_status_t xep_mode_query(const char *mode, xep_memory_t memory, xep_mode_info_t *info);

/* ---- groups --------------------------------------------------------------------- */

typedef struct xep_peer_info {
    size_t size;
    uint32_t node;  /* 0 .. nnodes - 1, in the order of the lowest rank of each */
    int32_t mapped; /* 1: reached by plain loads and stores; 0: UCX moves the bytes */
    /* "self", "mapped", or what UCX chose and how xep uses it, such as "tcp, packed messages"; valid as long as the
     * group */
    const char *transport;
} xep_peer_info_t;

#define XEP_PEER_INFO_INIT XEP_INIT_(xep_peer_info_t)

/**
 * Tells how a rank was reached when the group was made. Local.
 * Errors: XEP_ERR_INVALID.
 */
XEP_API xep_status_t xep_group_peer(xep_group_t *group, uint32_t rank, xep_peer_info_t *info);

/* ---- layouts -------------------------------------------------------------------- */

typedef struct xep_layout_args {
    size_t size;
    uint64_t tokens;            /* T */
    uint32_t topk;              /* K */
    uint32_t experts;           /* E */
    uint32_t nranks;            /* R */
    uint32_t ranks_per_node;    /* so many consecutive ranks are a node; 0: all ranks are one node */
    const void *topk_idx;       /* [T][K] expert, or -1: masked; may be NULL if T is 0 */
    size_t topk_idx_stride;     /* bytes between rows; 0: dense */
    xep_dtype_t topk_idx_dtype; /* XEP_INT64 (default) or XEP_INT32 */
    uint32_t reserved;          /* must be 0 */
    /* NULL: all arrays are in host memory; one in device memory is XEP_ERR_INVALID, where the process has loaded the
     * driver of CUDA devices. A buffer with XEP_MEMORY_CUDA, of whatever shape: they are on its device */
    xep_buffer_t *buffer;
    void *stream;           /* as in xep_dispatch_args_t; NULL without such a buffer */
    const uint32_t *owners; /* [E], as in xep_buffer_params_t; NULL: blocks. NULL with a buffer */
} xep_layout_args_t;

#define XEP_LAYOUT_ARGS_INIT XEP_INIT_(xep_layout_args_t)

/** Arrays of the caller, which xep_layout() fills; a NULL array is left out. */
typedef struct xep_layout_counts {
    size_t size;
    int32_t *tokens_per_rank;   /* [R] distinct tokens that go to each rank */
    int32_t *tokens_per_node;   /* [nodes] distinct tokens that go to each node */
    int32_t *tokens_per_expert; /* [E] selections of each expert; a repeated one counts again */
    uint8_t *token_in_rank;     /* [T][R] 1 if the token goes to the rank, else 0 */
} xep_layout_t;

#define XEP_LAYOUT_INIT XEP_INIT_(xep_layout_t)

/**
 * Counts what a dispatch of topk_idx would send where. Local; depends on the arguments alone.
 * Errors: XEP_ERR_INVALID (also for an index that is neither -1 nor an expert), XEP_ERR_NO_MEMORY (with more than 4096
 * ranks only).
 *
 * On a device the counting is enqueued on args.stream, which alone orders it, and the call returns at once: out is
 * filled when the stream has come so far, and an index that is not an expert counts for nobody. Staged, the host
 * counts, and the call returns when out is filled. Also XEP_ERR_UNSUPPORTED (more experts and ranks than fit into a
 * multiprocessor's memory; a mode of your own without a layout there), XEP_ERR_BROKEN.
 */
XEP_API xep_status_t xep_layout(const xep_layout_args_t *args, xep_layout_t *out);

/* ---- buffers -------------------------------------------------------------------- */

/** The shared host memory of this rank: where it begins and its length in bytes. It stays the buffer's. Local. */
XEP_API xep_status_t xep_buffer_memory(xep_buffer_t *buffer, void **base_p, size_t *bytes_p);

typedef struct xep_buffer_info {
    size_t size;
    const char *mode;   /* valid as long as the buffer */
    uint64_t bytes;     /* of shared memory: node_bytes to bytes of xep_buffer_size() */
    uint64_t recv_rows; /* rows that a slot can hold */
    uint32_t slots, free_slots;
    uint32_t threads;      /* of the host */
    uint32_t mapped_peers; /* ranks, this one included, reached by loads and stores */
    uint64_t operations;   /* dispatches and combines begun so far */
    xep_memory_t memory;
    int32_t device; /* number of the CUDA device that has the rows; -1 with XEP_MEMORY_HOST */
    /* its params, which a rank that called xep_buffer_follow() has not chosen itself */
    uint32_t experts, topk, hidden, scales;
    uint64_t tokens;
    xep_dtype_t dtype, combine_dtype;
    xep_on_failure_t on_failure;
    int32_t timeout_ms;
    xep_path_t path; /* that is used: XEP_PATH_FLAT or XEP_PATH_NODES */
    uint32_t flags;  /* as the param, and XEP_BUFFER_PIECES where there was no memory for the worst case */
    /* as the param, with the default filled in; 0: there is room for all, or none is needed */
    uint64_t pass_rows;
    uint32_t local_experts;   /* L: experts of this rank */
    uint32_t multiprocessors; /* of the device; 0: host memory, or staged */
} xep_buffer_info_t;

#define XEP_BUFFER_INFO_INIT XEP_INIT_(xep_buffer_info_t)

/** Fills info. Local. Errors: XEP_ERR_INVALID. */
XEP_API xep_status_t xep_buffer_query(const xep_buffer_t *buffer, xep_buffer_info_t *info);

/** Sums over all dispatches with XEP_DISPATCH_BALANCE that began since the buffer was created. */
typedef struct xep_loads {
    size_t size;
    uint64_t dispatches;
    uint64_t selections;  /* of all ranks */
    uint64_t most_before; /* those of the rank with the most, if each went to its owner */
    uint64_t most_after;  /* as they were sent. most_* * R / selections is the imbalance, max / mean */
} xep_loads_t;

#define XEP_LOADS_INIT XEP_INIT_(xep_loads_t)

/** Fills loads, the same on all ranks. Local. Errors: XEP_ERR_INVALID. */
XEP_API xep_status_t xep_buffer_loads(const xep_buffer_t *buffer, xep_loads_t *loads);

/** Arrays of the caller, which xep_buffer_waits() fills; a NULL array is left out. */
typedef struct xep_waits {
    size_t size;
    uint64_t *operations; /* [1] operations of this kind that have ended, with or without an error */
    uint64_t *count;      /* [R] in how many of them this rank waited for each rank */
    uint64_t *sum_ns;     /* [R] how long it waited for each rank, all together, in nanoseconds */
    uint64_t *max_ns;     /* [R] how long it waited in one operation, at most */
} xep_waits_t;

#define XEP_WAITS_INIT XEP_INIT_(xep_waits_t)

/**
 * Tells for which ranks this one has waited, in the operations of one kind that ended since the buffer was created. The
 * rank that holds the others up is the one they all wait for. Local, does not block. Any thread may call it at any time
 * until the buffer is destroyed; while an operation ends in another thread, some numbers may include it and others not.
 *
 * The wait for a rank begins when a blocking call does not find what that rank sends; it ends when it is found, or with
 * the call. In a dispatch that is the rank's rows (in mode normal first its counts), and in a combine the outputs of
 * its experts, after its word that it has read what the last combine left for it. What is there at the first look costs
 * nothing, not even a look at the clock; on one host with a core for each rank that look takes up to two microseconds.
 *
 * These do not count: computing between the begin of an operation and the wait for it; the time in tests and between
 * them; waiting for the request that another one comes after; waiting for room on the wire, or for the memory of
 * xep_handle_combine_input(). If several ranks are late at the same time, each gets the whole of its own time.
 *
 * Errors: XEP_ERR_INVALID.
 */
XEP_API xep_status_t xep_buffer_waits(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_waits_t *waits);

/** What the operations of one kind have done that ended since the buffer was created: numbers that only grow. */
typedef struct xep_counters {
    size_t size;
    uint64_t operations;  /* that have ended, with or without an error */
    uint64_t errors;      /* of these, with an error */
    uint64_t peer_errors; /* of these, as a rank has died (XEP_ERR_PEER) */
    /* of those without an error: xep_recv_t.rows that came, with a combine those whose outputs went back; and the bytes
     * of their elements, without what travels beside them. On devices rows may be the capacity, see xep_recv_t */
    uint64_t rows, bytes;
    uint64_t waits;   /* operations that waited for some rank, as xep_buffer_waits() counts it */
    uint64_t wait_ns; /* the longest wait of each of them, added up */
    /* of the whole buffer, whatever the kind: */
    uint64_t wire_bytes; /* that this rank gave UCX to move, forwarded ones too; all others are stored and loaded */
    uint64_t ranks_out;  /* of the group that the buffer goes on without (XEP_ON_FAILURE_MASK) */
    uint64_t age_ns;     /* since it was created */
} xep_counters_t;

#define XEP_COUNTERS_INIT XEP_INIT_(xep_counters_t)

/**
 * Fills counters. Local, does not block. Any thread may call it at any time until the buffer is destroyed, as
 * xep_buffer_waits(). Other processes of the user read the same numbers by xep_info --metrics PID.
 * Errors: XEP_ERR_INVALID.
 */
XEP_API xep_status_t xep_buffer_counters(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_counters_t *counters);

/* ---- trace ------------------------------------------------------------------ */

/**
 * The caller's own spans in the trace of this process (XEP_TRACE), beside those of the library: what it computes
 * between its operations. Begin returns the time, and end writes what has lasted since then; 31 bytes of the name are
 * kept. Spans of a thread nest as its blocks do. Local, from any thread, without locks. Without a trace, which begins
 * with the first group, begin returns 0; end does nothing for a begin of 0.
 */
XEP_API uint64_t xep_trace_begin(void);
XEP_API void xep_trace_end(const char *name, uint64_t begin);

#ifdef __cplusplus
}
#endif

#endif
