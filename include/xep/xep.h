/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * xep: expert parallelism on host memory.
 *
 * A mixture-of-experts layer sends each token to the ranks of its top-k experts
 * (dispatch) and brings the results back, summed (combine).
 *
 * Letters used in shapes: T tokens of this rank, K top-k, E experts of the whole
 * group, H hidden elements, R ranks, L experts of this rank.
 *
 * Rules that hold everywhere:
 *  - Every params and args struct starts with its size, set by its _INIT macro;
 *    a zero field means the default. Bytes beyond what the library knows must be 0.
 *  - Errors are negative. xep_last_error() then says which argument, which rank,
 *    which values. Outputs are written on success only, unless said otherwise.
 *  - Nothing aborts the process. The library prints only warnings and errors, to
 *    stderr, unless XEP_LOG or xep_log_set() says otherwise.
 *  - Collective calls are made by every rank of the group, in the same order.
 *  - One thread per buffer at a time; different buffers of one group may be used
 *    by different threads. Calls on a group itself are made by one thread at a time.
 */
#ifndef XEP_H
#define XEP_H

#include <stddef.h>
#include <stdint.h>

#include <xep/status.h>
#include <xep/version.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define XEP_API __attribute__((visibility("default")))
#else
#define XEP_API
#endif

/* the initialiser behind the _INIT macros: size set, all else 0, no warning in C or C++ */
#ifdef __cplusplus
extern "C++" {
template <class Struct> inline Struct xep_init_()
{
    Struct s = Struct();
    s.size = sizeof(Struct);
    return s;
}
}
#define XEP_INIT_(_struct) xep_init_<_struct>()
#else
#define XEP_INIT_(_struct) { .size = sizeof(_struct) }
#endif

typedef struct xep_group xep_group_t;     /* the ranks that work together */
typedef struct xep_buffer xep_buffer_t;   /* one MoE shape on a group */
typedef struct xep_handle xep_handle_t;   /* one dispatch: its routing and received rows */
typedef struct xep_request xep_request_t; /* one operation in flight */

/** The operations. */
typedef enum { XEP_OP_DISPATCH = 0, XEP_OP_COMBINE = 1 } xep_op_kind_t;

/** Element types. 0 in a params or args struct stands for the field's default. */
typedef enum {
    XEP_DTYPE_DEFAULT = 0,
    XEP_BF16 = 1,
    XEP_FP16 = 2,
    XEP_FP32 = 3,
    XEP_E4M3 = 4, /* 8-bit float, 4 exponent bits, finite only (OCP e4m3fn) */
    XEP_E5M2 = 5,
    XEP_U8 = 6,
    XEP_INT32 = 7,
    XEP_INT64 = 8,
    XEP_FP64 = 9
} xep_dtype_t;

/** Bytes of one element; 0 for a value that is not a type. Local, thread-safe. */
XEP_API size_t xep_dtype_size(xep_dtype_t dtype);

/* ---- library ---------------------------------------------------------------- */

/** "1.2.3" of the library at run time; static storage. */
XEP_API const char *xep_version_string(void);

/** Name ("XEP_ERR_BUSY") and meaning ("no free slot") of a status; static storage, never NULL. */
XEP_API const char *xep_status_name(xep_status_t status);
XEP_API const char *xep_status_text(xep_status_t status);

/**
 * The reason of this thread's last error, a full sentence; "" when there was none.
 * Valid until this thread's next call into the library.
 */
XEP_API const char *xep_last_error(void);

typedef enum { XEP_LOG_ERROR, XEP_LOG_WARN, XEP_LOG_INFO, XEP_LOG_DEBUG } xep_log_level_t;

/** Receives every message of a level that is enabled; called from any thread, must not call xep. */
typedef void (*xep_log_fn)(void *arg, xep_log_level_t level, const char *message);

/** Sends log messages to fn; NULL restores stderr. Process-wide. */
XEP_API void xep_log_set(xep_log_fn fn, void *arg);

/** What the process is bound to. Strings are owned by the library and stay valid. */
typedef struct xep_library_info {
    size_t size;
    const char *version;      /* of xep */
    const char *build;        /* compiler, and flags that matter */
    const char *library_path; /* file xep itself was loaded from */
    const char *ucx_version;
    const char *ucx_path;     /* file of the libucp in use */
    const char *pmix_version; /* "" when libpmix cannot be loaded; then pmix_path says why */
    const char *pmix_path;
    const char *simd;         /* kernels in use: "avx512", "avx2", "scalar" */
} xep_library_info_t;

#define XEP_LIBRARY_INFO_INIT XEP_INIT_(xep_library_info_t)

XEP_API xep_status_t xep_library_query(xep_library_info_t *info);

/** Visits every configuration variable: name, value in force, default, help. Non-zero from fn stops. */
typedef int (*xep_config_fn)(void *arg, const char *name, const char *value, const char *def, const char *help);
XEP_API void xep_config_each(xep_config_fn fn, void *arg);

/** Visits every plugin file found: mode, path, brief; reason is NULL when it loads, else why it was refused. */
typedef int (*xep_mode_fn)(void *arg, const char *name, const char *path, const char *brief, const char *reason);
XEP_API void xep_mode_each(xep_mode_fn fn, void *arg);

/* ---- group ------------------------------------------------------------------ */

/**
 * A blocking allgather: send holds bytes, recv holds nranks * bytes, rank order.
 * Returns 0, or anything else on failure. Called only by xep_group_create(), in the thread that calls it.
 */
typedef int (*xep_allgather_fn)(void *ctx, const void *send, void *recv, size_t bytes);

typedef struct xep_group_params {
    size_t size;
    xep_allgather_fn allgather; /* NULL: PMIx when there is a server, else a group of one */
    void *allgather_ctx;        /* the caller's, for allgather */
    uint32_t rank;              /* with allgather: this rank */
    uint32_t nranks;            /* with allgather: R */
    int32_t timeout_ms;         /* for each wait of a group call; 0: XEP_TIMEOUT; < 0: none */
} xep_group_params_t;

#define XEP_GROUP_PARAMS_INIT XEP_INIT_(xep_group_params_t)

/**
 * Joins the ranks of a job. Collective, blocking. params may be NULL.
 * Errors: XEP_ERR_INVALID, XEP_ERR_BOOT (no way to the other ranks; the text has the
 * remedy), XEP_ERR_TIMEOUT, XEP_ERR_MISMATCH, XEP_ERR_TRANSPORT. After an error nothing is left.
 */
XEP_API xep_status_t xep_group_create(const xep_group_params_t *params, xep_group_t **group_p);

/**
 * Leaves the group and frees it. Collective, blocking; never waits longer than the
 * group's timeout, never for peers after xep_group_abort(). Its buffers must be
 * destroyed before. NULL is a no-op.
 */
XEP_API void xep_group_destroy(xep_group_t *group);

/**
 * Gives up: every later call on the group and its buffers returns XEP_ERR_ABORTED,
 * destroy calls free without waiting for peers. Local, does not block. NULL is a no-op.
 */
XEP_API void xep_group_abort(xep_group_t *group);

/** Returns when every rank has called it. Collective, blocking. */
XEP_API xep_status_t xep_group_barrier(xep_group_t *group);

/**
 * An allgather for the caller, over the group's own connections, whatever bootstrapped it: bytes from each rank, any
 * number > 0, the same on all, into recv in rank order. Collective, blocking; operations in flight go on meanwhile.
 * Errors: XEP_ERR_MISMATCH on every rank when bytes differ, and the next call works; XEP_ERR_TIMEOUT, XEP_ERR_PEER
 * and others after which later ones return XEP_ERR_BOOT, as some ranks may still be in this one.
 */
XEP_API xep_status_t xep_group_allgather(xep_group_t *group, const void *send, void *recv, size_t bytes);

typedef struct xep_group_info {
    size_t size;
    uint32_t rank, nranks;
    uint32_t node, nnodes; /* ranks that can map one another's memory are one node */
    const char *boot;      /* "callback", "pmix", "single" */
} xep_group_info_t;

#define XEP_GROUP_INFO_INIT XEP_INIT_(xep_group_info_t)

XEP_API xep_status_t xep_group_query(const xep_group_t *group, xep_group_info_t *info);

typedef struct xep_peer_info {
    size_t size;
    uint32_t node;         /* 0 .. nnodes - 1, numbered by first rank */
    int mapped;            /* 1: plain loads and stores; 0: UCX moves the bytes */
    const char *transport; /* "self", "mapped", or what UCX chose and how it is used, as "tcp, packed messages"; valid as long as the group */
} xep_peer_info_t;

#define XEP_PEER_INFO_INIT XEP_INIT_(xep_peer_info_t)

/** What is known of a rank. Local; connects to it if nothing did before. */
XEP_API xep_status_t xep_group_peer(xep_group_t *group, uint32_t rank, xep_peer_info_t *info);

/* ---- layout ----------------------------------------------------------------- */

/**
 * Expert e lives on one rank: blocks in rank order, the first E % R ranks own one
 * expert more. first and count of a rank, NULL leaves one out; count is 0 where E < R and for a
 * rank that is none of nranks. Local, pure.
 */
XEP_API void xep_expert_range(uint32_t experts, uint32_t nranks, uint32_t rank, uint32_t *first_p, uint32_t *count_p);

typedef struct xep_layout_args {
    size_t size;
    uint64_t tokens;           /* T */
    uint32_t topk;             /* K */
    uint32_t experts;          /* E */
    uint32_t nranks;           /* R */
    uint32_t ranks_per_node;   /* ranks n*this .. are node n; 0: one node */
    const void *topk_idx;      /* [T][K], expert or -1; may be NULL when T is 0 */
    size_t topk_idx_stride;    /* bytes between rows; 0: dense */
    xep_dtype_t topk_idx_dtype; /* XEP_INT64 (default) or XEP_INT32 */
} xep_layout_args_t;

#define XEP_LAYOUT_ARGS_INIT XEP_INIT_(xep_layout_args_t)

/** Arrays of the caller, all written; NULL leaves one out. */
typedef struct xep_layout {
    size_t size;
    int32_t *tokens_per_rank;   /* [R] distinct tokens that go to each rank */
    int32_t *tokens_per_node;   /* [nodes] distinct tokens that go to each node */
    int32_t *tokens_per_expert; /* [E] selections, duplicates of a row counted */
    uint8_t *token_in_rank;     /* [T][R] 1 where the token goes */
} xep_layout_t;

#define XEP_LAYOUT_INIT XEP_INIT_(xep_layout_t)

/** Who gets what. Local, pure, any shape. Errors: XEP_ERR_INVALID, XEP_ERR_NO_MEMORY (R > 4096 only). */
XEP_API xep_status_t xep_layout(const xep_layout_args_t *args, xep_layout_t *out);

/* ---- buffer ----------------------------------------------------------------- */

/** Collective parameters unless marked "per rank": every rank passes the same values. */
typedef struct xep_buffer_params {
    size_t size;
    const char *mode;          /* plugin; NULL: XEP_MODE, else "normal" */
    uint32_t experts;          /* E, 1 .. 2^31 - 1 */
    uint32_t topk;             /* most selections of a token, 1 .. E */
    uint32_t hidden;           /* most elements of a row, at least 1 */
    uint32_t scales;           /* most 4-byte scales of a token; 0: none */
    uint64_t tokens;           /* most tokens a rank dispatches at once, at least 1 */
    uint64_t recv_rows;        /* most rows a rank receives at once; 0: the worst case, any routing fits */
    xep_dtype_t dtype;         /* widest element dispatched; default XEP_BF16 */
    xep_dtype_t combine_dtype; /* widest element combined: XEP_BF16 (default), XEP_FP16, XEP_FP32 */
    uint32_t slots;            /* dispatches whose handles live at once; default 2 */
    uint32_t threads;          /* per rank: threads that copy and reduce; 0: XEP_THREADS */
    int32_t timeout_ms;        /* per rank: for each operation; 0: XEP_TIMEOUT; < 0: none */
} xep_buffer_params_t;

#define XEP_BUFFER_PARAMS_INIT XEP_INIT_(xep_buffer_params_t)

typedef struct xep_buffer_size {
    size_t size;
    uint64_t bytes;     /* of memory a rank shares with its peers: exactly what create maps */
    uint64_t recv_rows; /* rows a slot holds */
} xep_buffer_size_t;

#define XEP_BUFFER_SIZE_INIT XEP_INIT_(xep_buffer_size_t)

/** The size hint. Local, pure but for loading the mode. Errors: XEP_ERR_INVALID, XEP_ERR_PLUGIN, XEP_ERR_NO_MEMORY (more than 64 bits can count). */
XEP_API xep_status_t xep_buffer_size(const xep_buffer_params_t *params, uint32_t nranks, xep_buffer_size_t *size);

/**
 * Maps the memory of one shape on every rank and opens its mode. Collective, blocking.
 * Errors: XEP_ERR_INVALID, XEP_ERR_PLUGIN, XEP_ERR_NO_MEMORY, XEP_ERR_MISMATCH (every
 * rank gets it; the text names the parameter, the ranks and both values), XEP_ERR_TIMEOUT,
 * XEP_ERR_TRANSPORT. An error of one rank is an error on all. After an error nothing is left.
 */
XEP_API xep_status_t xep_buffer_create(xep_group_t *group, const xep_buffer_params_t *params, xep_buffer_t **buffer_p);

/**
 * Frees the buffer, its handles and requests. Collective, blocking; waits for peers no
 * longer than the timeout, not at all after xep_group_abort(). NULL is a no-op.
 */
XEP_API void xep_buffer_destroy(xep_buffer_t *buffer);

/**
 * Makes a buffer usable again after an error that left it broken (XEP_ERR_BROKEN):
 * operations in flight end with XEP_ERR_ABORTED, all handles are released. Collective, blocking.
 */
XEP_API xep_status_t xep_buffer_reset(xep_buffer_t *buffer);

/** This rank's shared memory: base and its length in bytes. Valid as long as the buffer. */
XEP_API xep_status_t xep_buffer_memory(xep_buffer_t *buffer, void **base_p, size_t *bytes_p);

typedef struct xep_buffer_info {
    size_t size;
    const char *mode;       /* valid as long as the buffer */
    uint64_t bytes;         /* as xep_buffer_size() said */
    uint64_t recv_rows;     /* rows a slot holds */
    uint32_t slots, free_slots;
    uint32_t threads;
    uint32_t mapped_peers;  /* ranks, this one included, reached by loads and stores */
    uint64_t operations;    /* dispatches and combines begun so far */
} xep_buffer_info_t;

#define XEP_BUFFER_INFO_INIT XEP_INIT_(xep_buffer_info_t)

XEP_API xep_status_t xep_buffer_query(const xep_buffer_t *buffer, xep_buffer_info_t *info);

/** Arrays of the caller, all written; NULL leaves one out. */
typedef struct xep_waits {
    size_t size;
    uint64_t *operations; /* [1] of this kind that have ended, in whatever way */
    uint64_t *count;      /* [R] of them, those in which this rank waited for each rank */
    uint64_t *sum_ns;     /* [R] how long, all together, in nanoseconds */
    uint64_t *max_ns;     /* [R] how long in one operation, at most */
} xep_waits_t;

#define XEP_WAITS_INIT XEP_INIT_(xep_waits_t)

/**
 * For whom this rank has waited in the operations of one kind that ended since the buffer was created: the rank that holds
 * the others up is the one they all wait for. Local, does not block. Any thread, at any time until the buffer is destroyed:
 * while another is in a call on it each number is right, but they may be from before and after the end of an operation.
 *
 * The wait for a rank begins when a call that blocks on the operation looks for what that rank sends and it is not there; it
 * ends when it is seen, or with the call. In a dispatch that is the rank's rows, in normal mode also its counts before
 * them; in a combine the outputs of its experts, and before them that it has read what the last combine left for it. What is
 * there at the first look costs nothing, and no look at a clock. Not counted: computing between an operation's begin
 * and the wait for it, time in and between tests, waiting for a request that another comes after, for room on the wire, or for
 * memory of xep_handle_combine_input(). Ranks that are late together each have the whole of their time.
 *
 * Errors: XEP_ERR_INVALID.
 */
XEP_API xep_status_t xep_buffer_waits(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_waits_t *waits);

/* ---- dispatch --------------------------------------------------------------- */

/** How received rows are arranged. 0 in args: the mode's own, in which 0 .. rows - 1 are all the rows there are. */
typedef enum {
    XEP_ROWS_DEFAULT = 0,
    XEP_ROWS_BY_RANK = 1,          /* one row per (token, this rank): source rank ascending, then source token
                                      ascending; normal, its default */
    XEP_ROWS_BY_EXPERT_COMPACT = 2, /* one row per selection: local expert, then source rank, then source token, all
                                      ascending; each expert begins at a multiple of expert_alignment; ll, its default */
    XEP_ROWS_BY_EXPERT_PADDED = 3  /* the same order, expert e begins at row e * R * params.tokens: [L][R * tokens][H]; ll */
} xep_rows_t;

/**
 * Casting on the way (ll): e4m3 with a scale for each 128 channels, the last group of a row may be shorter.
 * amax = max(1e-4, |x| of the group); a channel is near q * scale.
 *   E4M3       scale = amax * (1 / 448), q = e4m3(x * (448 / amax)): fp32 arithmetic, nearest even, saturating
 *   E4M3_POW2  scale = 2^e, the least power of two not below amax / 448; q = e4m3(x * 2^-e)
 *   UE8M0      the same, scales as the exponent bytes (e + 127), four to an int32, the lowest byte first
 * A NaN is a NaN on arrival and does not count for amax. A group with an Inf has the scale Inf (byte 255), its
 * channels are NaN or NaN once multiplied by the scale.
 */
typedef enum { XEP_QUANT_NONE = 0, XEP_QUANT_E4M3 = 1, XEP_QUANT_E4M3_POW2 = 2, XEP_QUANT_UE8M0 = 3 } xep_quant_t;

/** Bits of xep_dispatch_args_t.flags. */
enum {
    XEP_DISPATCH_SCALES_BY_COLUMN = 1, /* ll: received scales are [nscales][capacity]; padded: [L][nscales][R * params.tokens] */
    XEP_DISPATCH_SEND_WEIGHTS = 2      /* ll, collective: weights travel with the rows, the receiver applies them and
                                          combine does not unless it is given some; normal always sends them */
};

/**
 * Inputs stay the caller's; with a request they must not change before it is done.
 * dtype, hidden, topk, topk_idx_dtype (normal), nscales, scales_dtype, quant, whether weights are sent, and a
 * cached handle are collective; tokens, pointers, strides, alignment, arrangement, capacity, timeout are per rank.
 * What a mode does not do it refuses with XEP_ERR_UNSUPPORTED.
 */
typedef struct xep_dispatch_args {
    size_t size;
    uint64_t tokens;            /* T, 0 .. params.tokens; with cached: that dispatch's T */
    const void *x;              /* [T][H]; may be NULL when T is 0 */
    size_t x_stride;            /* bytes between rows; 0: dense */
    xep_dtype_t dtype;          /* of x; 0: the buffer's; no row wider than the buffer's */
    uint32_t hidden;            /* H of this call; 0: the buffer's */
    uint32_t topk;              /* K of this call; 0: the buffer's; at most that */
    const void *topk_idx;       /* [T][K]: expert, or -1; must be NULL with cached */
    size_t topk_idx_stride;     /* bytes between rows; 0: dense */
    xep_dtype_t topk_idx_dtype; /* XEP_INT64 (default) or XEP_INT32: also what is received */
    const float *topk_weights;  /* [T][K]; NULL: none */
    size_t topk_weights_stride; /* bytes between rows; 0: dense */
    const void *scales;         /* [T][nscales] 4-byte words, moved untouched; NULL: none */
    uint32_t nscales;           /* scales of a token, at most params.scales */
    xep_dtype_t scales_dtype;   /* XEP_FP32 (default) or XEP_INT32 */
    ptrdiff_t scales_token_stride; /* bytes from a token's scale to the next token's; 0: dense rows */
    ptrdiff_t scales_stride;       /* bytes from a scale of a token to its next; 0: 4 */
    uint32_t expert_alignment;  /* received expert counts are rounded up to a multiple; 0: 1 */
    uint64_t capacity;          /* fixed-capacity reception: rows the received arrays have
                                   (num_worst_tokens); 0: exactly the rows received */
    xep_handle_t *cached;       /* routing to use again; NULL: route by topk_idx. May be released as soon as the call
                                   returns: its slot is free once the dispatch has begun, which with after is later */
    xep_request_t *after;       /* a request of any buffer of the group: begins when that is done, and if that ends with
                                   an error, ends with the same. May be freed as soon as the call returns. NULL: at once */
    int32_t timeout_ms;         /* 0: the buffer's; < 0: none */
    uint64_t *recv_rows_p;      /* NULL, or receives the rows sent to this rank, after
                                   XEP_ERR_OVERFLOW too; written when the operation ends */
    xep_quant_t quant;          /* cast of x, which is XEP_BF16, XEP_FP16 or XEP_FP32 then; ll */
    xep_rows_t arrangement;     /* of the received rows; 0: the mode's own */
    uint32_t flags;             /* XEP_DISPATCH_* */
    uint32_t reserved;          /* 0 */
    int32_t *expert_stats;      /* NULL, or [L]: the rows received are added for each local expert when the operation ends; ll */
    uint64_t *wait_ns;          /* NULL, or [R]: the nanoseconds this rank waited for each rank, as xep_buffer_waits() has it, are
                                   added when the operation ends; not where something else ends it (XEP_ERR_BROKEN, _ABORTED) */
} xep_dispatch_args_t;

#define XEP_DISPATCH_ARGS_INIT XEP_INIT_(xep_dispatch_args_t)

/**
 * What a dispatch brought: views into the buffer, valid until the handle is released. In every arrangement but
 * the padded one a program that adds weight * expert(x) for each row and k with topk_idx >= 0 and combines
 * that is right in every mode: rows of ll have K = 1, the weight 1, and combine applies the weights.
 */
typedef struct xep_recv {
    size_t size;
    xep_rows_t arrangement;
    uint64_t rows;             /* rows received; by expert, compact: with those that alignment leaves unused, whose topk_idx is -1 */
    uint64_t capacity;         /* rows of the arrays below: rows, or args.capacity */
    void *x;                   /* [capacity][H] */
    size_t x_stride;           /* bytes between rows: dense where a row is a multiple of 64 bytes, else rounded up to 64 */
    xep_dtype_t dtype;
    uint32_t hidden;
    uint32_t topk;
    xep_dtype_t topk_idx_dtype;
    void *topk_idx;            /* [capacity][K] local expert 0 .. L-1, or -1: not here; rows from "rows" on are all -1 */
    float *topk_weights;       /* [capacity][K], 0 where topk_idx is -1; NULL when none were sent */
    void *scales;              /* [capacity][nscales]; NULL when none were sent */
    uint32_t nscales;
    xep_dtype_t scales_dtype;
    int32_t *src_token;        /* [capacity] token index on its source rank */
    const uint64_t *src_begin; /* [R + 1] rows src_begin[r] .. src_begin[r+1]-1 came from rank r; NULL by expert */
    const uint32_t *rank_rows; /* [R][R] rows that went from rank i to rank j; NULL by expert */
    uint32_t first_expert;     /* global id of local expert 0 */
    uint32_t local_experts;    /* L */
    const uint64_t *expert_rows; /* [L] selections of each local expert, rounded up to expert_alignment */
    ptrdiff_t scales_token_stride; /* bytes from a row's scale to the next row's (by column, padded: of the same expert) */
    ptrdiff_t scales_stride;       /* bytes from a scale of a row to its next */
    xep_quant_t quant;         /* as asked for; then dtype is XEP_E4M3 */
    uint32_t reserved;
    /* by expert; NULL by rank: */
    const uint64_t *expert_begin; /* [L] first row of each local expert */
    const uint64_t *expert_count; /* [L] its rows */
    const uint32_t *pair_begin;   /* [L][R] first row of an expert that came from a rank */
    const uint32_t *pair_count;   /* [L][R] and how many did */
} xep_recv_t;

/**
 * Sends every token once to each rank that owns one of its experts. Collective. With req_p NULL
 * it blocks until all rows are here; else it returns once the operation is begun, and *handle_p's rows
 * may be read when the request is done. handle_p may not be NULL; the caller releases the handle.
 *
 * Errors, nothing begun: XEP_ERR_INVALID, XEP_ERR_BUSY (no free slot, or too many unfreed requests),
 * XEP_ERR_BROKEN, XEP_ERR_ABORTED. Errors of the operation, from here (there is no handle then) or from the
 * request (the handle has no rows: release it); the buffer stays usable: XEP_ERR_OVERFLOW (every rank gets it, nothing was moved), XEP_ERR_MISMATCH
 * (every rank gets it, nothing was moved). Broken until xep_buffer_reset(): XEP_ERR_TIMEOUT,
 * XEP_ERR_PEER, XEP_ERR_PROTOCOL, XEP_ERR_TRANSPORT.
 */
XEP_API xep_status_t xep_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p,
                                  xep_request_t **req_p);

/** The received rows, or NULL while the dispatch is in flight (but see xep_request_wait_counts()) or failed. */
XEP_API const xep_recv_t *xep_handle_recv(const xep_handle_t *handle);

/* ---- combine ---------------------------------------------------------------- */

/** Bits of xep_combine_args_t.flags. */
enum {
    XEP_COMBINE_LOGFMT = 1 /* ll, bf16, collective: rows to ranks that are not mapped go as 10-bit LogFMT; lossy */
};

/**
 * dtype, hidden, flags and whether there are weights are collective; all else is per rank.
 * Inputs and outputs stay the caller's; with a request they must not be touched before it is done.
 */
typedef struct xep_combine_args {
    size_t size;
    const void *x;             /* [recv.rows][H] expert outputs, in the order received; NULL or what
                                  xep_handle_combine_input() returned: zero copy */
    size_t x_stride;           /* bytes between rows; 0: dense; with zero copy: not used */
    xep_dtype_t dtype;         /* XEP_BF16, XEP_FP16, XEP_FP32; 0: the buffer's combine_dtype */
    uint32_t hidden;           /* H of this call; 0: the buffer's */
    const float *topk_weights; /* [recv.rows][K] sent back and summed; NULL: none */
    size_t topk_weights_stride;
    const void *bias[2];       /* [T][H] of dtype, added first; NULL: none */
    size_t bias_stride[2];     /* bytes between rows; 0: dense */
    void *out;                 /* [T][H] of dtype: +0 + bias[0] + bias[1] + contributions, source of each
                                  ascending by rank, in fp32, rounded once to nearest even */
    size_t out_stride;         /* bytes between rows; 0: dense */
    float *out_weights;        /* [T][K]; with topk_weights only */
    size_t out_weights_stride;
    xep_request_t *after;
    int32_t timeout_ms;
    uint32_t flags;            /* XEP_COMBINE_* */
    const float *weights;      /* ll: [T][K] of this rank's own tokens; NULL: those given to dispatch, or 1 where none were
                                  or they were sent with the rows. out is then +0 + biases, then fma(weight, y, sum) in
                                  fp32 for each selection, k ascending, rounded once to nearest even */
    size_t weights_stride;     /* bytes between rows; 0: dense */
    uint64_t *wait_ns;         /* as in xep_dispatch_args_t */
} xep_combine_args_t;

#define XEP_COMBINE_ARGS_INIT XEP_INIT_(xep_combine_args_t)

/**
 * Brings the received rows back to the ranks of their tokens and sums them. Collective; blocking
 * when req_p is NULL. A handle may be combined any number of times, one operation at a time.
 * Errors as xep_dispatch(); XEP_ERR_INVALID also for a handle that was released, failed, or has an operation in flight.
 */
XEP_API xep_status_t xep_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p);

/**
 * Memory in which expert outputs need no copy before combine: [recv.rows][H] of the combine
 * type, *stride_p bytes between rows (the type of the buffer decides it, not that of a call).
 * Waits until peers have read what an earlier combine left there. Valid for writing until the combine
 * begins; ask again before writing again. A combine of another x puts its rows there, in any order: what was written is
 * gone then. NULL on error (timeout; handle in flight).
 */
XEP_API void *xep_handle_combine_input(xep_handle_t *handle, size_t *stride_p);

/**
 * Gives the slot back; its views end. With an operation in flight, the slot is free when that is done.
 * Local, does not block. NULL is a no-op.
 */
XEP_API void xep_handle_release(xep_handle_t *handle);

/* ---- requests --------------------------------------------------------------- */

/**
 * XEP_OK, XEP_INPROGRESS, or the operation's error. Makes progress; does not block. The deadline counts from
 * the first test; a peer that died is noticed as by a wait.
 */
XEP_API xep_status_t xep_request_test(xep_request_t *req);

/** Blocks until the operation is done, or its deadline. The operation's status; again if called again. */
XEP_API xep_status_t xep_request_wait(xep_request_t *req);

/**
 * Blocks until this rank's rows of a dispatch are counted; then xep_handle_recv() has their counts and places. (Those of
 * a cached dispatch of normal are known when it begins.) What is at those places, x, topk_idx, topk_weights, scales and
 * src_token, may be read when the request is done. XEP_OK, or the operation's error. Of a combine: as xep_request_wait().
 */
XEP_API xep_status_t xep_request_wait_counts(xep_request_t *req);

/** Forgets the request, which is not to be used again; an operation in flight goes on. NULL is a no-op. */
XEP_API void xep_request_free(xep_request_t *req);

#ifdef __cplusplus
}
#endif

#endif
