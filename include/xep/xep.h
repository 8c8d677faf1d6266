/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * xep: expert parallelism on host memory, and on the memory of CUDA devices.
 *
 * A mixture-of-experts layer sends each token to the ranks of its top-k experts
 * (dispatch) and brings the results back, summed (combine).
 *
 * Letters used in shapes: T tokens of this rank, K top-k, E experts of the whole
 * group, H hidden elements, R ranks, L experts of this rank.
 *
 * Rules that hold everywhere:
 *  - Every params, args and info struct starts with its size, which the _INIT macro sets. Start
 *    with that macro: it makes all other fields 0, and 0 means the default. A program that was
 *    compiled with a newer header works as long as the fields this library does not know are 0.
 *  - A function that can fail returns XEP_OK (0) or a negative status, and xep_last_error()
 *    then has a sentence: which argument, which rank, which values. Outputs (names that end in
 *    _p, and structs to be filled) are written on success only, unless their comment says more.
 *  - Arrays and structs that a call fills must not lie in the memory of any buffer of this process, its own or a peer's
 *    that is mapped here (XEP_ERR_INVALID): peers read and write there.
 *  - NULL for a group, buffer, handle, request or output that is needed, and values out of
 *    range, are XEP_ERR_INVALID; this is not repeated below. Nothing was done then.
 *  - Nothing aborts the process. The library prints only warnings and errors, to stderr,
 *    unless XEP_LOG or xep_log_set() says otherwise.
 *  - A collective call is made by every rank of the group, in the same order on all of them.
 *    A local call involves no other rank.
 *  - One thread at a time uses a buffer, its handles and its requests; different buffers of one group may be used by
 *    different threads at once. A call on a buffer while another thread is in one returns XEP_ERR_INVALID at once.
 *    Calls on a group itself are made by one thread at a time. Functions without a group or buffer may be called by any
 *    thread.
 *  - Objects belong to the process that made them. After fork(), a call on one in the child returns XEP_ERR_INVALID,
 *    and destroy, release, free and abort do nothing there, so that the child may exit as it likes. It may create a
 *    group of its own.
 *  - A blocking call waits for other ranks, never longer than its deadline. Every other call
 *    returns without waiting.
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
#define XEP_INIT_(_struct)      \
    {                           \
        .size = sizeof(_struct) \
    }
#endif

typedef struct xep_group xep_group_t;     /* the ranks that work together */
typedef struct xep_buffer xep_buffer_t;   /* one MoE shape on a group */
typedef struct xep_handle xep_handle_t;   /* one dispatch: its routing and the rows it brought */
typedef struct xep_request xep_request_t; /* one operation in flight */

/** The operations. */
typedef enum { XEP_OP_DISPATCH = 0, XEP_OP_COMBINE = 1, XEP_OP_NEXT = 2 } xep_op_kind_t;

/** The element types: X(name, value, bytes of an element, text). Values never change. */
#define XEP_DTYPE_LIST(X)       \
    X(XEP_BF16, 1, 2, "bf16")   \
    X(XEP_FP16, 2, 2, "fp16")   \
    X(XEP_FP32, 3, 4, "fp32")   \
    X(XEP_E4M3, 4, 1, "e4m3")   \
    X(XEP_E5M2, 5, 1, "e5m2")   \
    X(XEP_U8, 6, 1, "u8")       \
    X(XEP_INT32, 7, 4, "int32") \
    X(XEP_INT64, 8, 8, "int64") \
    X(XEP_FP64, 9, 8, "fp64")   \
    X(XEP_INT8, 10, 1, "int8")  \
    X(XEP_E2M1X2, 11, 1, "e2m1x2")

#define XEP_DTYPE_ENUM_(_name, _value, _bytes, _text) _name = _value,

/**
 * XEP_DTYPE_DEFAULT (0) in a params or args struct means the default of that field. XEP_E4M3 and XEP_E5M2 are the 8-bit
 * floats of OCP; E4M3 is the one without infinities (e4m3fn). An element of XEP_E2M1X2 is two 4-bit floats of OCP, the
 * first in the lower half of the byte (torch.float4_e2m1fn_x2).
 */
typedef enum {
    /* clang-format off */
    XEP_DTYPE_LIST(XEP_DTYPE_ENUM_)
    XEP_DTYPE_DEFAULT = 0
    /* clang-format on */
} xep_dtype_t;

#undef XEP_DTYPE_ENUM_

/** Bytes of one element; 0 for a value that is not a type. */
XEP_API size_t xep_dtype_size(xep_dtype_t dtype);

/** "bf16" and so on; "unknown" for a value that is not a type. Static storage, never NULL. */
XEP_API const char *xep_dtype_name(xep_dtype_t dtype);

/* ---- library ---------------------------------------------------------------- */

/** Version of the library that runs, as "1.2.3". Static storage, never NULL. */
XEP_API const char *xep_version_string(void);

/** Name ("XEP_ERR_BUSY") and meaning ("no free slot") of a status. Static storage, never NULL. */
XEP_API const char *xep_status_name(xep_status_t status);
XEP_API const char *xep_status_text(xep_status_t status);

/**
 * The reason of the last error in this thread, a full sentence; "" if there was none.
 * Never NULL. Valid until this thread's next call into the library.
 */
XEP_API const char *xep_last_error(void);

typedef enum { XEP_LOG_ERROR, XEP_LOG_WARN, XEP_LOG_INFO, XEP_LOG_DEBUG } xep_log_level_t;

/** Receives every message whose level is enabled (XEP_LOG). Called from any thread; must not call xep. */
typedef void (*xep_log_fn)(void *arg, xep_log_level_t level, const char *message);

/** Sends the log messages of this process to fn from now on; fn NULL: to stderr, as at the start. */
XEP_API void xep_log_set(xep_log_fn fn, void *arg);

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
    const char *simd; /* kernels in use: "avx512", "avx2", "scalar" */
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

/* ---- group ------------------------------------------------------------------ */

/**
 * An allgather that the caller provides: it blocks until recv holds, in rank order, the bytes that every rank gave in
 * send: nranks * bytes. ctx is params.allgather_ctx. Returns 0, or anything else on failure. It is called only inside
 * xep_group_create(), in the thread that makes that call.
 */
typedef int (*xep_allgather_fn)(void *ctx, const void *send, void *recv, size_t bytes);

typedef struct xep_group_params {
    size_t size;
    xep_allgather_fn allgather; /* NULL: PMIx if a launcher serves it, else a group of one */
    void *allgather_ctx;        /* passed to allgather */
    uint32_t rank;              /* with allgather: this rank, 0 .. nranks - 1 */
    uint32_t nranks;            /* with allgather: R */
    int32_t timeout_ms;         /* deadline of each wait in calls on the group; 0: XEP_TIMEOUT; < 0: none */
    uint32_t reserved;          /* must be 0 */
    /* NULL, or asked about every 100 ms by a call that waits for other ranks, in the thread that waits. If it returns
     * other than 0, the group is aborted. It must not call xep. For languages whose signal handlers run outside of
     * calls; a handler of C may call xep_group_abort() itself */
    int (*interrupted)(void *ctx);
    void *interrupted_ctx; /* passed to interrupted */
} xep_group_params_t;

#define XEP_GROUP_PARAMS_INIT XEP_INIT_(xep_group_params_t)

/**
 * Joins the ranks of a job. Collective, blocking. params may be NULL: all defaults. The caller ends the group with
 * xep_group_destroy().
 *
 * Errors, after which nothing is left to free: XEP_ERR_INVALID (also: a configuration variable that cannot be parsed),
 * XEP_ERR_BOOT (the ranks cannot find one another; the sentence has the remedy), XEP_ERR_TIMEOUT, XEP_ERR_MISMATCH
 * (ranks run different versions or settings), XEP_ERR_TRANSPORT, XEP_ERR_PEER, XEP_ERR_NO_MEMORY, XEP_ERR_ABORTED
 * (params.interrupted; or another rank has called xep_group_abort() as soon as its own call had returned).
 */
XEP_API xep_status_t xep_group_create(const xep_group_params_t *params, xep_group_t **group_p);

/**
 * Leaves the group and frees it. Destroy its buffers first. Collective, blocking: waits for the other ranks, at most
 * for the group's timeout, and not at all after xep_group_abort(). NULL is a no-op.
 */
XEP_API void xep_group_destroy(xep_group_t *group);

/**
 * Ends the group for all of its ranks: from now on every call on the group and its buffers returns XEP_ERR_ABORTED, and
 * the destroy calls free everything without waiting. What was received before stays readable until its buffer is
 * destroyed. Local, does not block. Any thread may call it, and a signal handler. NULL is a no-op.
 *
 * It ends waits that are under way, here and on the other ranks, whatever their deadlines; xep_last_error() says there
 * which rank has aborted the group, and why. Ranks of this node hear of it at once, others as soon as this rank is in a
 * call on the group again, which may be xep_group_destroy(), or at once with XEP_PROGRESS=thread. A rank that is out
 * (xep_group_mask_query()) ends nothing for those that have gone on without it.
 */
XEP_API void xep_group_abort(xep_group_t *group);

/**
 * Returns when every rank has called it. Collective, blocking. Operations in flight make progress meanwhile.
 * Errors: XEP_ERR_TIMEOUT (the sentence names the ranks that are missing), XEP_ERR_PEER, XEP_ERR_ABORTED,
 * XEP_ERR_TRANSPORT.
 */
XEP_API xep_status_t xep_group_barrier(xep_group_t *group);

/**
 * An allgather over the group's own connections: bytes of each rank (any number above 0, the same on all ranks) go into
 * recv, in rank order: nranks * bytes. Collective, blocking. Operations in flight make progress meanwhile.
 *
 * Errors: XEP_ERR_MISMATCH on every rank if bytes or calls differ; the next call works again. After XEP_ERR_TIMEOUT
 * call it again with the same arguments, recv as it was left: it goes on where it was, and what was given first counts,
 * as other ranks may have it. Until that has succeeded, or after XEP_ERR_PEER or XEP_ERR_TRANSPORT, every other
 * allgather of the group, that of xep_buffer_create() too, returns XEP_ERR_BOOT.
 */
XEP_API xep_status_t xep_group_allgather(xep_group_t *group, const void *send, void *recv, size_t bytes);

typedef struct xep_group_info {
    size_t size;
    uint32_t rank, nranks;
    uint32_t node, nnodes; /* of this rank; how many: the ranks that map one another's memory are a node */
    const char *boot;      /* "callback", "pmix", "single"; "shrink", "grow": of another group */
} xep_group_info_t;

#define XEP_GROUP_INFO_INIT XEP_INIT_(xep_group_info_t)

/** Why a rank is out of a group. */
typedef enum {
    XEP_OUT_DIED = 1, /* its process is gone */
    XEP_OUT_LATE = 2, /* it did not answer within a deadline */
    XEP_OUT_ASKED = 3 /* xep_group_mask_set() */
} xep_out_reason_t;

/** A rank that is out. */
typedef struct xep_mask {
    uint32_t rank;
    xep_out_reason_t reason; /* as this rank knows it: another may have waited for one that this one has seen die */
    uint64_t since_ns;       /* when this rank gave it up: CLOCK_MONOTONIC */
    uint64_t reserved[2];    /* 0: masks are elements of an array, whose size cannot grow */
} xep_mask_t;

/**
 * Leaves a rank out from now on, as if it had died, in all buffers of XEP_ON_FAILURE_MASK and in barriers. One rank
 * calls it; all agree on it, and on the operations that are still with that rank, and tell it that it is out. It cannot
 * come back into this group. Local, does not block: the agreement is made in the next calls of all. Errors:
 * XEP_ERR_INVALID (also: this rank itself), XEP_ERR_UNSUPPORTED (the group has no buffer that goes on without ranks).
 */
XEP_API xep_status_t xep_group_mask_set(xep_group_t *group, uint32_t rank);

/**
 * Returns which ranks are out, as far as this rank knows by now, ascending; after a barrier all ranks know. The first
 * capacity of them go to masks, which may be NULL if capacity is 0, and how many there are to *count_p. Local. Only
 * buffers with XEP_ON_FAILURE_MASK and xep_group_shrink() put ranks out: without them no rank is out, even if it has
 * died, and the sentence of the error names the rank.
 */
XEP_API xep_status_t xep_group_mask_query(const xep_group_t *group, xep_mask_t *masks, uint32_t capacity,
                                          uint32_t *count_p);

typedef struct xep_shrink_args {
    size_t size;
    int32_t
        timeout_ms;    /* most time to wait for a rank that is not known to be gone; 0: as the group's; < 0: no limit */
    uint32_t least;    /* of ranks: with fewer, XEP_ERR_PEER on all. A cut network then leaves one group at most */
    uint32_t *origins; /* NULL, or [R of group]: the rank in group of each rank of the new group */
} xep_shrink_args_t;

#define XEP_SHRINK_ARGS_INIT XEP_INIT_(xep_shrink_args_t)

/**
 * Makes a new group of the ranks of this one that are left, in the same order, without gaps. Collective over these,
 * blocking; args may be NULL. No launcher, bootstrap or callback is asked: it goes over the group's own connections,
 * also when some of them have failed, the group was aborted, or the launcher has lost ranks.
 *
 * All ranks that are left get the same new group, or an error. It leaves out ranks that have died, ranks that are out
 * already (xep_group_mask_query()), and ranks that do not call this within the timeout. They are listed by
 * xep_group_mask_query() of this group afterwards. A rank that was left out for being late gets XEP_ERR_PEER; where the
 * others have left and no memory or connection tells it so, it finds itself alone, which args.least can refuse. Ranks
 * may die meanwhile, too.
 *
 * The call aborts this group, so that ranks that still wait in an operation return and call it as well. What they have
 * received stays readable until they destroy their buffers and this group, before or after the call; that waits for no
 * rank. New buffers are made on the new group. A group can be shrunk once; the new one can be, too.
 *
 * Errors: XEP_ERR_PEER (this rank is out, or fewer than args.least are left), XEP_ERR_ABORTED (params.interrupted),
 * XEP_ERR_TRANSPORT, XEP_ERR_NO_MEMORY, XEP_ERR_INVALID (also: called before). They leave this group aborted.
 */
XEP_API xep_status_t xep_group_shrink(xep_group_t *group, const xep_shrink_args_t *args, xep_group_t **group_p);

/** Most bytes of the address of a group that grows. */
enum { XEP_ADDRESS_BYTES = 2048 };

/**
 * Publishes the address of a group, as MPI_Publish_name() does: bytes of it, valid during the call; bytes 0: withdraws
 * it. Called inside xep_group_grow(), on rank 0. Returns 0, or anything else on failure. A process that has the address
 * can become a rank: show it to the same user alone.
 */
typedef int (*xep_publish_fn)(void *ctx, const void *address, size_t bytes);

/**
 * Finds what xep_publish_fn has published: writes at most capacity bytes to address, and how many to *bytes_p; 0: not
 * there yet, and xep asks again until the deadline. Called inside xep_group_join(). Returns 0, or anything else on
 * failure.
 */
typedef int (*xep_lookup_fn)(void *ctx, void *address, size_t capacity, size_t *bytes_p);

/** Bits of xep_grow_args_t.flags. */
enum {
    /* joiners may be on any host that reaches this one: without it, a group of one host is met over the loopback
     * interface alone. A group of several hosts is met over all interfaces */
    XEP_GROW_ANYWHERE = 1
};

/** Those of rank 0 count; of other ranks only size is used. */
typedef struct xep_grow_args {
    size_t size;
    uint32_t joiners;   /* processes to wait for, at most 1024; 0: 1 */
    int32_t timeout_ms; /* most time until they are here; 0: the group's timeout; < 0: none */
    /* of the address file, which rank 0 makes and removes; or "pmix:" and a name of 1 to 127 bytes, which the launcher
     * keeps meanwhile; NULL without publish: "pmix:xep" */
    const char *path;
    xep_publish_fn publish; /* instead of path */
    void *publish_ctx;      /* passed to publish */
    uint32_t flags;         /* XEP_GROW_* */
    uint32_t reserved;      /* must be 0 */
} xep_grow_args_t;

#define XEP_GROW_ARGS_INIT XEP_INIT_(xep_grow_args_t)

/**
 * Makes a new group of all ranks of this one, with the numbers that they have, and of processes that call
 * xep_group_join(): these are the ranks behind them, in the order in which they came. Collective, blocking, and an
 * operation boundary: all have called it before any of them returns. No launcher takes part, unless path is a name.
 *
 * Rank 0 waits for the joiners; all ranks come to the same new group or to the same error, after which this group and
 * its buffers are as before, so the call can be made again: XEP_ERR_TIMEOUT (fewer joiners than asked for have come,
 * which none of them is told: they go on looking for a group), XEP_ERR_PEER (a joiner has died in the middle),
 * XEP_ERR_MISMATCH (a joiner has other settings), XEP_ERR_INVALID, XEP_ERR_BOOT (the address file cannot be written,
 * publish failed, or the name is taken), XEP_ERR_UNSUPPORTED (the launcher keeps no names), XEP_ERR_ABORTED
 * (params.interrupted), XEP_ERR_TRANSPORT, XEP_ERR_NO_MEMORY. A joiner of another version of xep is told so and not
 * let in, and the others go on waiting.
 *
 * When a rank of this group dies or does not call this within the group's timeout, the errors are those of
 * xep_group_allgather(), XEP_ERR_PEER and XEP_ERR_TIMEOUT, and name it; then xep_group_shrink() makes a group that can
 * grow. The same applies while ranks are out (XEP_ERR_PEER).
 *
 * Both groups can be used then. If a rank of this group died at the last moment, others may have got an error; then
 * every call on the new group, xep_group_shrink() too, ends with XEP_ERR_ABORTED, and all go on with this one: keep it
 * until a call on the new one has succeeded. Buffers do not move: xep_buffer_follow() makes one of the same shape on
 * the new group, and this group and its buffers are destroyed as always, by its ranks.
 */
XEP_API xep_status_t xep_group_grow(xep_group_t *group, const xep_grow_args_t *args, xep_group_t **group_p);

typedef struct xep_join_params {
    size_t size;
    const char *path;     /* of the address file, or "pmix:" and the name; NULL without lookup: "pmix:xep" */
    xep_lookup_fn lookup; /* instead of path */
    void *lookup_ctx;     /* passed to lookup */
    /* most time until a group has taken this process in, then deadline of each wait in calls on the group; 0:
     * XEP_TIMEOUT; < 0: none */
    int32_t timeout_ms;
    uint32_t reserved;             /* must be 0 */
    int (*interrupted)(void *ctx); /* as in xep_group_params_t */
    void *interrupted_ctx;         /* passed to interrupted */
} xep_join_params_t;

#define XEP_JOIN_PARAMS_INIT XEP_INIT_(xep_join_params_t)

/**
 * Makes this process a rank of a group whose ranks call xep_group_grow(), now or before the deadline. Blocking. The
 * process may come from anywhere: no launcher and no PMIx is asked, unless path is a name, which processes of the same
 * launcher find (xep_run, mpirun, prterun; Slurm's PMIx keeps no names). It needs the same user and the same settings
 * (XEP_MAP and so on). The address file is read only if it belongs to this user and nobody else can use it.
 *
 * It waits while there is no address file, or no group answers at the address in an old one. Errors, after which
 * nothing is left to free: XEP_ERR_TIMEOUT (the sentence says what was missing last), XEP_ERR_PROTOCOL (the file has no
 * valid address), XEP_ERR_BOOT (the file belongs to somebody else), XEP_ERR_MISMATCH (another version of xep, other
 * settings), XEP_ERR_PEER (a rank died in the middle), XEP_ERR_ABORTED (params.interrupted), XEP_ERR_INVALID,
 * XEP_ERR_UNSUPPORTED (no launcher that keeps names), XEP_ERR_TRANSPORT, XEP_ERR_NO_MEMORY. It may be called again.
 */
XEP_API xep_status_t xep_group_join(const xep_join_params_t *params, xep_group_t **group_p);

/** Fills info. Local. Errors: XEP_ERR_INVALID. */
XEP_API xep_status_t xep_group_query(const xep_group_t *group, xep_group_info_t *info);

typedef struct xep_peer_info {
    size_t size;
    uint32_t node; /* 0 .. nnodes - 1, in the order of the lowest rank of each */
    int mapped;    /* 1: reached by plain loads and stores; 0: UCX moves the bytes */
    /* "self", "mapped", or what UCX chose and how xep uses it, such as "tcp, packed messages"; valid as long as the
     * group */
    const char *transport;
} xep_peer_info_t;

#define XEP_PEER_INFO_INIT XEP_INIT_(xep_peer_info_t)

/**
 * Tells how a rank is reached. Local, but connects to the rank if nothing has done so before.
 * Errors: XEP_ERR_INVALID. Of a rank that cannot be reached, transport is "not reachable".
 */
XEP_API xep_status_t xep_group_peer(xep_group_t *group, uint32_t rank, xep_peer_info_t *info);

/* ---- layout ----------------------------------------------------------------- */

/**
 * The experts of a rank: *first_p .. *first_p + *count_p - 1. Experts lie in blocks in rank order, and the first E % R
 * ranks have one expert more than the others; with E < R the last ranks have none. A NULL output is left out. *count_p
 * is 0 for a rank that is not below nranks. Local; depends on the arguments alone.
 */
XEP_API void xep_expert_range(uint32_t experts, uint32_t nranks, uint32_t rank, uint32_t *first_p, uint32_t *count_p);

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
typedef struct xep_layout {
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

/* ---- buffer ----------------------------------------------------------------- */

/**
 * Where the rows of a buffer lie. All pointers to arrays in the arguments and in xep_recv_t are to memory of this kind,
 * but for the counts and places that mode normal shows in xep_recv_t (src_begin, rank_rows, expert_rows), which are in
 * host memory always, and recv_rows_p, which is host memory there. XEP_ERR_INVALID: an argument is memory of the other
 * kind, or of another device. With XEP_MEMORY_HOST that is found where the process had loaded the driver of CUDA
 * devices when it created the buffer.
 *
 * XEP_MEMORY_CUDA: in memory of the device that is current in the thread that creates the buffer. Where all ranks map
 * one another, so do their devices, and kernels move the rows; else the host does, see below. An operation is enqueued
 * on args.stream and behind the operations of this buffer that were called before, whatever their streams: what it
 * reads must be there, and what it writes is there, in the order of that stream. The call, or its request, is done when
 * the operation is enqueued and, in a dispatch, the rows are counted; that wait for the counts is the only one. So
 * received rows are read, outputs are used and a handle is released by work on the same stream, or by work that waits
 * for it.
 *
 * In mode ll nothing is waited for: rows are counted in device memory, where expert_begin, expert_count, expert_rows,
 * pair_begin and pair_count are, and xep_recv_t.rows is the capacity. A request is done when its second phase is
 * enqueued, which the first wait or test does, behind the second phases of all operations that began earlier; nothing
 * of the operation runs between the phases.
 *
 * Operations in which the host waits for nothing may be captured into a graph: all operations of ll; in mode normal
 * combines, and dispatches with XEP_DISPATCH_COUNTS_THERE, of cached handles too. (One whose counts are waited for is
 * XEP_ERR_INVALID on a stream that is being captured.) Each launch of the graph is these operations once more, with
 * what then lies at the addresses that the calls were given; all ranks launch theirs in the same order among the
 * buffer's operations. The stream of the graph orders it, the buffer does not. The handles of its dispatches are kept
 * as long as it is launched. A reset releases them: launched after it, the graph sends, brings and sums nothing, which
 * is XEP_ERR_PROTOCOL of a later call. Once the buffer is destroyed it must not be launched. Its kernels have the
 * deadline of the captured call; after a timeout later launches of that rank do nothing, and other ranks time out
 * waiting for it.
 *
 * An error that shows only while the work runs (XEP_ERR_TIMEOUT: a rank did not come; XEP_ERR_PROTOCOL: ranks disagree
 * on a combine, or, where no counts are waited for, on a dispatch, whose rows may not fit, or whose topk_idx has an
 * index that is not an expert) is returned by a later call for an operation of the buffer, which is broken until
 * xep_buffer_reset().
 *
 * Staged: where some rank is not mapped (other hosts, XEP_MAP=never) every operation goes through pinned memory of the
 * host, by the mode, the transports and the threads (XEP_THREADS) of host memory, with its sums and its errors. What
 * changes for the caller: a call waits until its stream has come to it, at most for its timeout, and for the request
 * that it comes after. Its request is done when the host has ended the operation, and copies of what it brought are
 * enqueued on the stream, or another error ended it; only tests, waits, calls of other operations and a progress thread
 * take it further. Counts are known then, in ll as well: capacity is exactly what is received where none was asked for.
 * Streams that are captured (XEP_ERR_INVALID) and XEP_DISPATCH_COUNTS_THERE (XEP_ERR_UNSUPPORTED) are refused.
 */
typedef enum { XEP_MEMORY_HOST = 0, XEP_MEMORY_CUDA = 1 } xep_memory_t;

/**
 * What becomes of a buffer when a rank dies, or does not answer within timeout_ms.
 *
 * XEP_ON_FAILURE_FAIL: operations in flight end with XEP_ERR_PEER or XEP_ERR_TIMEOUT, and the buffer is broken.
 *
 * XEP_ON_FAILURE_MASK: the rank is out. Operations go on without it, and succeed: all survivors agree which ones are
 * still with it and which are not (xep_recv_t.out, xep_combine_args_t.missing). Where ranks do not map one another, an
 * operation that was in flight when the rank went may have its rows on some survivors and not on others; those ranks go
 * on that are most of the ones alive, and others get XEP_ERR_PEER. The rank gets rows of no later
 * operation and nobody waits for it. One that was only slow and comes back gets XEP_ERR_PEER from all calls and can
 * change nothing that the others use; it destroys its buffers and its group. Modes ll and normal in host memory; all
 * else is XEP_ERR_UNSUPPORTED. A buffer with a rank out cannot be reset, and the group makes no new ones.
 */
typedef enum { XEP_ON_FAILURE_FAIL = 0, XEP_ON_FAILURE_MASK = 1 } xep_on_failure_t;

/** Bits of xep_buffer_params_t.flags. */
enum {
    /* host memory: the buffer has memory for rows that peers read in place (xep_buffer_send_memory()), of slots + 1
     * times the most tokens; not with XEP_ON_FAILURE_MASK */
    XEP_BUFFER_SEND_MEMORY = 1,
    /* normal, ll, host memory: dispatches may come in pieces (XEP_DISPATCH_PIECES), so that recv_rows need not be the
     * worst case. Of the memory for outputs that are kept until the last piece (a slot: tokens * min(topk, ranks) rows,
     * ll: tokens * topk) only what a dispatch of several pieces returns is touched. Not with XEP_ON_FAILURE_MASK */
    XEP_BUFFER_PIECES = 2
};

/**
 * How rows reach ranks of other nodes, in modes that have both ways (normal, ll). Flat: once to each rank that gets
 * them. By nodes: once to each node, to the rank there that has this rank's place on its own node. normal: that rank
 * stores them in the memory of all ranks of its node that get them; in combine it sums what its node has for a token,
 * and one row goes back. The order of sums is another one then (xep_combine_args_t.out). ll: the ranks of its node read
 * them in its memory, once it has told them; combines, and their bits, are those of the flat path. Auto: XEP_PATH, and
 * where that is auto, too, what needs less time for an even load. Where no node has two ranks, or there
 * is one node, and with XEP_ON_FAILURE_MASK or XEP_BUFFER_PIECES it is flat.
 */
typedef enum { XEP_PATH_AUTO = 0, XEP_PATH_FLAT = 1, XEP_PATH_NODES = 2 } xep_path_t;

/**
 * By nodes, in mode normal: how the sum of another node's contributions to a token travels. Of the type: rounded to the
 * type of the rows, so that it is as long as one of them. fp32: as it is, and nothing is rounded before the end: twice
 * the bytes of bf16 for a combine. Default: XEP_NODE_SUMS, which is dtype where it is not set.
 */
typedef enum { XEP_NODE_SUMS_DEFAULT = 0, XEP_NODE_SUMS_DTYPE = 1, XEP_NODE_SUMS_FP32 = 2 } xep_node_sums_t;

/** All fields but those marked "per rank" are collective: every rank passes the same values. */
typedef struct xep_buffer_params {
    size_t size;
    const char *mode; /* "normal", "ll", or a mode of your own; NULL: XEP_MODE, else "normal" */
    uint32_t experts; /* E, 1 .. 2^31 - 1 */
    uint32_t topk;    /* most selections of a token, 1 .. E */
    uint32_t hidden;  /* most elements of a row, at least 1 */
    /* most 4-byte scales of a token, in mode normal those of a cast (quant) too, and payloads (xep_payload_t); 0: none */
    uint32_t scales;
    /* most tokens a rank dispatches at once. A rank that never has any may say 0: the buffer is made for what the
     * others say, and takes no memory for rows of its own that are sent */
    uint64_t tokens;
    /* most rows a rank receives at once; 0: the worst case, so that any routing fits; with XEP_BUFFER_PIECES: what an
     * even load brings and a quarter more; in ll four times its square root beside that, for loads of few rows. Where
     * there is no memory for the worst case, a buffer that may have pieces gets that flag, and a warning is logged:
     * xep_buffer_query() tells both */
    uint64_t recv_rows;
    xep_dtype_t dtype;         /* widest element dispatched; default XEP_BF16 */
    xep_dtype_t combine_dtype; /* widest element combined: XEP_BF16 (default), XEP_FP16, XEP_FP32 */
    uint32_t slots;            /* handles that may live at once; default 2 */
    /* per rank: threads that copy and reduce; 0: XEP_THREADS. In device memory: multiprocessors that do; 0: 16; staged,
     * none do */
    uint32_t threads;
    int32_t timeout_ms;  /* per rank: deadline of each operation; 0: XEP_TIMEOUT; < 0: none */
    xep_memory_t memory; /* of the rows; default XEP_MEMORY_HOST */
    xep_on_failure_t on_failure;
    uint32_t flags; /* XEP_BUFFER_* */
    xep_path_t path;
    xep_node_sums_t node_sums;
    /* by nodes: how many rows of a dispatch a rank has room for while they pass through it: at least one for each rank
     * that passes rows to it; fewer are slower. 0: 2 * tokens, or as many as there can be. ll, on several nodes, flat
     * too: how many rows of other nodes a rank has room for until they are copied to their places, again at least one
     * for each sender; twice as many if they are cast; a rank that sends more at once waits for room. 0: all that can
     * come, if that is at most 512 MiB, else what an even load brings, with much head room. Ignored with
     * XEP_ON_FAILURE_MASK: there is room for all */
    uint64_t pass_rows;
    /* [E] the rank that owns each expert; NULL: blocks (xep_expert_range()). A rank may own any number of experts, or
     * none. Local experts are in the order of their global numbers: xep_recv_t.experts. Copied by the call */
    const uint32_t *owners;
} xep_buffer_params_t;

#define XEP_BUFFER_PARAMS_INIT XEP_INIT_(xep_buffer_params_t)

typedef struct xep_buffer_size {
    size_t size;
    /* host memory that each rank shares with its peers, at most, whatever nodes the ranks are on; with XEP_MEMORY_CUDA
     * also what its operations are staged in, on several nodes */
    uint64_t bytes;
    uint64_t recv_rows;    /* rows that a slot can hold */
    uint64_t node_bytes;   /* memory that each rank shares if all are on one node: no rows return to a rank's memory */
    uint64_t device_bytes; /* memory of its device, at most; 0 with XEP_MEMORY_HOST */
} xep_buffer_size_t;

#define XEP_BUFFER_SIZE_INIT XEP_INIT_(xep_buffer_size_t)

/**
 * Returns how much memory a buffer of this shape would take on each of nranks ranks. Local; loads the mode, and
 * allocates nothing else. Errors: XEP_ERR_INVALID, XEP_ERR_PLUGIN, XEP_ERR_NO_MEMORY (the size does not fit in 64
 * bits).
 */
XEP_API xep_status_t xep_buffer_size(const xep_buffer_params_t *params, uint32_t nranks, xep_buffer_size_t *size);

/**
 * Allocates the shared memory of one shape on every rank, maps that of the peers and opens the mode. Collective,
 * blocking. The caller ends the buffer with xep_buffer_destroy(); the strings in params need not stay.
 *
 * An error on one rank is an error on all, and nothing is left to free: XEP_ERR_INVALID, XEP_ERR_PLUGIN (the mode
 * cannot be loaded; the sentence says why), XEP_ERR_NO_MEMORY (also where what all ranks of a host want does not fit
 * there together: XEP_ROOM), XEP_ERR_MISMATCH (the sentence names the parameter, the ranks and both values),
 * XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_TRANSPORT, XEP_ERR_ABORTED.
 */
XEP_API xep_status_t xep_buffer_create(xep_group_t *group, const xep_buffer_params_t *params, xep_buffer_t **buffer_p);

/**
 * Makes a buffer on a group that xep_group_shrink() or xep_group_grow() has made of another one, as xep_buffer_create()
 * with the params of an old buffer: those of the lowest rank that has one. old is this rank's buffer, or NULL on ranks
 * that have none, which are joiners; it stays as it is. The new group has other ranks, so ranks have other experts
 * (xep_expert_range()), and recv_rows 0 is another worst case; threads and timeout_ms of a rank with a buffer are those
 * of that buffer. Collective, blocking. Errors: as of xep_buffer_create(); XEP_ERR_INVALID also if no rank has a
 * buffer.
 */
XEP_API xep_status_t xep_buffer_follow(const xep_buffer_t *old, xep_group_t *group, xep_buffer_t **buffer_p);

/**
 * Frees the buffer with all its handles, requests and views. Collective, blocking: waits for the other ranks, at most
 * for the timeout, 2 s where one of them has given the buffer up, and not at all after xep_group_abort(). NULL is a
 * no-op.
 */
XEP_API void xep_buffer_destroy(xep_buffer_t *buffer);

/**
 * Gives the buffer up on this rank: what is in flight ends with XEP_ERR_BROKEN, as every later call does until a reset.
 * Other ranks need not wait for this one until a deadline: their operations of the buffer end within milliseconds, with
 * a sentence that names this rank, and xep_buffer_destroy() there waits for it for two seconds at most. For a rank that
 * has met an error of its own and will not call the next operation. Local. NULL is a no-op. With XEP_ON_FAILURE_MASK
 * the others are not told: they find out and go on.
 */
XEP_API void xep_buffer_abort(xep_buffer_t *buffer);

/**
 * Makes a buffer usable again after an error that left it broken (XEP_ERR_BROKEN): operations in flight end with
 * XEP_ERR_ABORTED, and all handles are released. Collective, blocking. After an error the buffer is still broken:
 * XEP_ERR_TIMEOUT (a rank is late: call it again, as often as it takes), XEP_ERR_PEER, XEP_ERR_TRANSPORT,
 * XEP_ERR_ABORTED.
 */
XEP_API xep_status_t xep_buffer_reset(xep_buffer_t *buffer);

/** The shared host memory of this rank: where it begins and its length in bytes. It stays the buffer's. Local. */
XEP_API xep_status_t xep_buffer_memory(xep_buffer_t *buffer, void **base_p, size_t *bytes_p);

typedef struct xep_buffer_info {
    size_t size;
    const char *mode;   /* valid as long as the buffer */
    uint64_t bytes;     /* of shared memory: node_bytes to bytes of xep_buffer_size() */
    uint64_t recv_rows; /* rows that a slot can hold */
    uint32_t slots, free_slots;
    uint32_t threads;
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
    xep_path_t path;           /* that is used: XEP_PATH_FLAT or XEP_PATH_NODES */
    xep_node_sums_t node_sums; /* normal, by nodes: as the param, with the default filled in; else ..._DEFAULT */
    /* by nodes: as the param, likewise; ll, flat: the same, 0 where there is room for all; else 0 */
    uint64_t pass_rows;
    uint32_t flags;         /* as the param, and XEP_BUFFER_PIECES where there was no memory for the worst case */
    uint32_t local_experts; /* L: experts of this rank */
} xep_buffer_info_t;

#define XEP_BUFFER_INFO_INIT XEP_INIT_(xep_buffer_info_t)

/** Fills info. Local. Errors: XEP_ERR_INVALID. */
XEP_API xep_status_t xep_buffer_query(const xep_buffer_t *buffer, xep_buffer_info_t *info);

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
 * nothing, not even a look at the clock.
 *
 * These do not count: computing between the begin of an operation and the wait for it; the time in tests and between
 * them; waiting for the request that another one comes after; waiting for room on the wire, or for the memory of
 * xep_handle_combine_input(). If several ranks are late at the same time, each gets the whole of its own time.
 *
 * Errors: XEP_ERR_INVALID.
 */
XEP_API xep_status_t xep_buffer_waits(const xep_buffer_t *buffer, xep_op_kind_t kind, xep_waits_t *waits);

/* ---- dispatch --------------------------------------------------------------- */

/** How received rows are arranged. The default is the mode's own; in it all rows are 0 .. rows - 1. */
typedef enum {
    XEP_ROWS_DEFAULT = 0,
    /* one row for each token that goes to this rank: source rank ascending, then source token ascending; the default
     * of normal */
    XEP_ROWS_BY_RANK = 1,
    /* one row for each selection: local expert, then source rank, then source token, all ascending; each expert begins
     * at a multiple of expert_alignment; the default of ll */
    XEP_ROWS_BY_EXPERT_COMPACT = 2,
    /* the same order, but local expert e begins at row e * R * params.tokens: [L][R * tokens][H]; ll */
    XEP_ROWS_BY_EXPERT_PADDED = 3
} xep_rows_t;

/**
 * Casts on the way (on devices: ll): what a channel x becomes, and the scale of its group,
 * so that x is near q * scale. Groups are channels side by side, from the first on; the last one may be shorter. fp32
 * arithmetic, rounded to nearest, ties to even, saturating; amax is the largest |x| of the group.
 *
 * Groups of 128, DeepEP's, with amax at least 1e-4. A NaN arrives as a NaN and does not count for amax. A group with an
 * Inf has the scale Inf (byte 255), and every channel of it is NaN, or becomes NaN when it is multiplied by the scale.
 *   E4M3         fp32 scale = amax * (1 / 448), q = e4m3(x * (448 / amax))
 *   E4M3_POW2    fp32 scale = 2^e, the least power of two not below amax / 448; q = e4m3(x * 2^-e)
 *   UE8M0        as E4M3_POW2, with the scales as bytes e + 127
 *
 * All others: a group with an Inf or a NaN has a scale that is NaN (E8M0: byte 255), and every q is 0.
 *   MXFP8        groups of 32; scale 2^e with the least e for which amax <= 448 * 2^e, at least -127, as a byte e + 127
 *                (E8M0): OCP's format (MX 1.0), with NVIDIA's scale, with which nothing saturates; q = e4m3(x * 2^-e)
 *   MXFP8_E5M2   the same with e5m2 and 57344
 *   MXFP4        the same with e2m1 and 6: two channels to a byte (XEP_E2M1X2)
 *   NVFP4        groups of 16, e2m1. The row has an fp32 scale s: quant_scale, with inverse = 1 / s, or amax of the
 *                row (at least 2^-100) / 2688, with inverse = 2688 / amax. A group has a byte b = e4m3(amax * (1 / 6) *
 *                inverse); q = e2m1(x * (inverse / b)), or 0 if b is 0: x is near q * b * s. Where s is not given, that
 *                of a row with an Inf or a NaN is NaN
 *   INT8         groups of 128, amax at least 1e-10: fp32 scale = amax / 127, q = x * (127 / amax) to the nearest
 *   INT8_ROW     the same with one group, the row
 *   E4M3_STATIC  q = e4m3(x * (1 / quant_scale)), which no scale travels with; a NaN stays one, an Inf saturates
 *
 * Scales that are bytes come four to an int32, the lowest byte first, filled up with zeros; the fp32 of a row of NVFP4
 * is the bits of the word behind them. Mode normal needs room for them (params.scales): with a hidden of H, each
 * rounded up, H / 128 with E4M3, E4M3_POW2, INT8; H / 512 with UE8M0; H / 128 with MXFP8, MXFP8_E5M2, MXFP4; H / 64 + 1
 * with NVFP4; 1 with INT8_ROW; 0 with E4M3_STATIC.
 */
typedef enum {
    XEP_QUANT_NONE = 0,
    XEP_QUANT_E4M3 = 1,
    XEP_QUANT_E4M3_POW2 = 2,
    XEP_QUANT_UE8M0 = 3,
    XEP_QUANT_MXFP8 = 4,
    XEP_QUANT_MXFP8_E5M2 = 5,
    XEP_QUANT_MXFP4 = 6,
    XEP_QUANT_NVFP4 = 7,
    XEP_QUANT_INT8 = 8,
    XEP_QUANT_INT8_ROW = 9,
    XEP_QUANT_E4M3_STATIC = 10,
    XEP_QUANT_LOGFMT = 11 /* of a combine alone: 10 bits a channel, sign and logarithm */
} xep_quant_t;

/** Most payloads of a dispatch. */
enum { XEP_PAYLOADS_MOST = 8 };

/**
 * Bytes of the caller's that travel beside each row of x, untouched, and arrive as an array of their own: another row
 * of numbers, scales of any width, a hash. In host memory. params.scales is the room beside a row, in words of 4 bytes:
 * for the scales (those of a cast, too, where there are payloads) and behind them the payloads in turn, each from a
 * multiple of its alignment on and rounded up to one.
 */
typedef struct xep_payload {
    void *data;         /* sent: [T] of bytes, only read, NULL if T is 0; received: [capacity] */
    size_t stride;      /* bytes between rows. Sent: 0: dense; received: bytes, rounded up to alignment */
    uint32_t bytes;     /* of a row, 1 to 65536 */
    uint32_t alignment; /* of each row where it is received: a power of two up to 64; 0: 1 */
} xep_payload_t;

/** Bits of xep_dispatch_args_t.flags. */
enum {
    /* ll: received scales are [nscales][capacity] or, padded, [L][nscales][R * params.tokens] */
    XEP_DISPATCH_SCALES_BY_COLUMN = 1,
    /* ll, collective: weights travel with the rows and the receiver applies them; combine then applies none unless it
     * is given some. normal sends weights in any case */
    XEP_DISPATCH_SEND_WEIGHTS = 2,
    /* collective, with XEP_BUFFER_SEND_MEMORY: rows of ranks that map one another are not copied: they are read where
     * their rank has them, and xep_recv_t.row says where each is (x is NULL). Rows to other ranks travel as always.
     *
     * x is what xep_buffer_send_memory() has returned, or lies in it, and has its x_stride: its rows must not change
     * until every rank has released its handle of this dispatch, which is so when xep_buffer_send_memory() returns that
     * memory again. x may also be memory of the caller's: its rows are copied once, to where peers read them, or, while
     * peers still read in all of that, to the peers. Rows that are cast are other rows than those of x: they go to
     * send memory that the caller does not see, and x may change, or be used again, as without this flag */
    XEP_DISPATCH_IN_PLACE = 4,
    /* device memory, normal, with a capacity and without recv_rows_p: nothing is waited for. xep_recv_t.rows is the
     * capacity; src_begin, rank_rows and expert_rows are in device memory, and src_begin[R] is how many rows came.
     * topk_weights are there on a rank without tokens, too, and mean something if others sent some. Where nothing is
     * moved (ranks disagree, too little room, topk_idx has an index that is not an expert), no row has an expert,
     * combines write nothing, and a later call tells why, as XEP_ERR_PROTOCOL. ll does so in any case. All dispatches
     * of a cached handle that has it have it, too. Not staged */
    XEP_DISPATCH_COUNTS_THERE = 8,
    /* collective, with XEP_BUFFER_PIECES: where some rank gets more rows than a slot has room for, they come in pieces
     * of at most params.recv_rows rows, in the order of always, and nothing ends with XEP_ERR_OVERFLOW. The handle
     * shows the first piece; xep_handle_next() brings the next one. Until the last has come, x, topk_weights and scales
     * must not change. Not with a capacity, XEP_DISPATCH_IN_PLACE or padded rows. ll: a piece has as many rows as a
     * slot, rounded down to expert_alignment, which is XEP_ERR_OVERFLOW where it is more than a slot has; expert_stats
     * count all pieces when the first one is here. If all rows fit, it is a dispatch like any other */
    XEP_DISPATCH_PIECES = 16
};

/**
 * The inputs belong to the caller; with a request they must not change before it is done.
 *
 * Collective: dtype, hidden, topk, topk_idx_dtype (normal), nscales, scales_dtype, quant, bytes and alignments of the
 * payloads, whether weights are sent, and which dispatch is cached. All else may differ from rank to rank: tokens, pointers, strides, alignment, arrangement,
 * capacity, timeout. A mode refuses what it does not support with XEP_ERR_UNSUPPORTED.
 */
typedef struct xep_dispatch_args {
    size_t size;
    uint64_t tokens;               /* T, 0 .. params.tokens; with cached: as in that dispatch */
    const void *x;                 /* [T][H]; may be NULL if T is 0 */
    size_t x_stride;               /* bytes between rows; 0: dense */
    xep_dtype_t dtype;             /* of x; 0: the buffer's; a row may not take more bytes than in the buffer */
    uint32_t hidden;               /* H of this call; 0: the buffer's */
    uint32_t topk;                 /* K of this call, at most the buffer's; 0: the buffer's */
    xep_dtype_t topk_idx_dtype;    /* XEP_INT64 (default) or XEP_INT32; received indices have it too */
    const void *topk_idx;          /* [T][K] expert, or -1: masked; must be NULL with cached */
    size_t topk_idx_stride;        /* bytes between rows; 0: dense */
    const float *topk_weights;     /* [T][K]; NULL: none; must be NULL with cached: they travel with the indices */
    size_t topk_weights_stride;    /* bytes between rows; 0: dense */
    const void *scales;            /* [T][nscales], moved untouched; NULL: none */
    uint32_t nscales;              /* scales of each token: at most 4 * params.scales bytes */
    xep_dtype_t scales_dtype;      /* XEP_FP32 (default), or another type; device memory: XEP_FP32 or XEP_INT32 */
    ptrdiff_t scales_token_stride; /* bytes from a scale of a token to that of the next token; 0: dense rows */
    ptrdiff_t scales_stride;       /* bytes from a scale of a token to its next one; 0: those of a scale */
    uint32_t expert_alignment;     /* received expert counts are rounded up to a multiple of it; 0: 1 */
    int32_t timeout_ms;            /* deadline of this operation; 0: the buffer's; < 0: none */
    /* rows that the received arrays have, for a fixed capacity (num_worst_tokens of DeepEP); 0: exactly the rows that
     * are received */
    uint64_t capacity;
    /* handle whose routing is used again; NULL: route by topk_idx. It may be released as soon as the call returns; its
     * slot becomes free when this dispatch has begun, which is later if there is an after */
    xep_handle_t *cached;
    /* request of any buffer of the group: this operation begins when that one is done, and ends with the same error if
     * that one fails. It may be freed as soon as the call returns. NULL: begin now. Dispatches of a buffer begin in the
     * order of the calls: one behind one that has not begun waits for it too.
     *
     * Device memory: of a buffer on the same device. This operation is enqueued now, to run behind that one and all of
     * its buffer that were enqueued before; what is left of those is enqueued first, as by a test (staged: as by a
     * wait). An error of that one is not one of this one's */
    xep_request_t *after;
    /* NULL, or where the number of rows sent to this rank goes when the operation ends, after XEP_ERR_OVERFLOW too */
    uint64_t *recv_rows_p;
    xep_quant_t quant;      /* cast of x on the way, from XEP_BF16, XEP_FP16 or XEP_FP32 */
    xep_rows_t arrangement; /* of the received rows; 0: the mode's own */
    uint32_t flags;         /* XEP_DISPATCH_* */
    float quant_scale;      /* NVFP4: of the tensor, 0: each row has its own; E4M3_STATIC: at least 1e-30; else 0 */
    /* NULL, or [L]: when the operation ends, the rows that each local expert received are added; ll */
    int32_t *expert_stats;
    /* NULL, or [R]: when the operation ends, the nanoseconds that this rank waited for each rank (as xep_buffer_waits()
     * counts them) are added; not if a reset, an abort or another operation's error ends it */
    uint64_t *wait_ns;
    void *stream; /* XEP_MEMORY_CUDA: the cudaStream_t (CUstream) that orders it; NULL: the device's default stream */
    const xep_payload_t *payloads; /* [npayloads] copied by the call; NULL: none */
    uint32_t npayloads;            /* at most XEP_PAYLOADS_MOST */
    uint32_t reserved;             /* must be 0 */
} xep_dispatch_args_t;

#define XEP_DISPATCH_ARGS_INIT XEP_INIT_(xep_dispatch_args_t)

/**
 * What a dispatch brought: views into the buffer, valid until the handle is released. Nothing here is to be freed.
 *
 * Of a dispatch in pieces all arrays and counts are of the piece that is shown, but for rank_rows. They are valid until
 * the next xep_handle_next(), which writes the rows of the next piece to the same memory.
 *
 * A program that adds up weight * expert(x) for each row and each k with topk_idx >= 0, and combines that, is right in
 * every mode and in every arrangement but the padded one: in ll, rows have K = 1 and the weight 1, and combine applies
 * the weights.
 */
typedef struct xep_recv {
    size_t size;
    xep_rows_t arrangement;
    xep_quant_t quant; /* the cast that args asked for, which dtype and scales_dtype follow */
    /* rows received; by expert, compact: also counts the rows that alignment leaves unused, whose topk_idx is -1 */
    uint64_t rows;
    uint64_t capacity; /* rows that the arrays below have: rows, or args.capacity */
    void *x;           /* [capacity][H] */
    size_t x_stride;   /* bytes between rows: those of a row, rounded up to a multiple of 64 */
    xep_dtype_t dtype;
    uint32_t hidden; /* elements of dtype in a row, H; half as many, rounded up, of XEP_E2M1X2 */
    uint32_t topk;
    xep_dtype_t topk_idx_dtype;
    void *topk_idx;      /* [capacity][K] local expert 0 .. L-1, or -1: of another rank; -1 in unused rows */
    float *topk_weights; /* [capacity][K], 0 where topk_idx is -1; NULL if none were sent */
    void *scales;        /* [capacity][nscales]; NULL if none were sent */
    uint32_t nscales;
    xep_dtype_t scales_dtype;
    int32_t *src_token;          /* [capacity] index of the token on its source rank */
    const uint64_t *src_begin;   /* [R + 1] rows src_begin[r] .. src_begin[r+1]-1 came from rank r; NULL by expert */
    const uint32_t *rank_rows;   /* [R][R] rows that went from rank i to rank j; NULL by expert */
    uint32_t first_expert;       /* global number of local expert 0, where there is one */
    uint32_t local_experts;      /* L */
    const uint64_t *expert_rows; /* [L] selections of each local expert, rounded up to expert_alignment */
    /* bytes from a scale of a row to that of the next row (by column and padded: of the same expert) */
    ptrdiff_t scales_token_stride;
    ptrdiff_t scales_stride; /* bytes from a scale of a row to its next one */
    /* these are there by expert only, and NULL by rank: */
    const uint64_t *expert_begin; /* [L] first row of each local expert */
    const uint64_t *expert_count; /* [L] rows of each local expert */
    const uint32_t *pair_begin;   /* [L][R] first row of each local expert from each source rank */
    const uint32_t *pair_count;   /* [L][R] rows of each local expert from each source rank */
    /* [R] 1 for a rank that this dispatch is without, the same on all ranks that map one another (xep_on_failure_t);
     * NULL: it is with all. Set at its end */
    const uint8_t *out;
    /* XEP_DISPATCH_IN_PLACE: [capacity] where each row is, in the memory of its source or in this rank's, to be read
     * only, until the handle is released; NULL where none came: beyond rows, behind those of an expert. Else NULL: rows
     * are in x */
    const void *const *row;
    /* XEP_DISPATCH_PIECES: in how many pieces the rows of this dispatch come, the same on all ranks: as many as the
     * rank with the most rows needs, so that there may be none in the last ones; which of them this is, from 0; how
     * many rows this rank gets in all; and which of them the first row here is. Else 1, 0, rows, 0 */
    uint64_t pieces, piece, all_rows, first_row;
    const uint32_t *experts; /* [L] global number of each local expert, ascending */
    const xep_payload_t *payloads; /* [npayloads] as they were sent; NULL: none */
    uint32_t npayloads;
    uint32_t reserved;
} xep_recv_t;

/**
 * Sends every token to the ranks of its experts: once to each rank (normal), or once for each selection (ll).
 * Collective. The caller releases *handle_p with xep_handle_release().
 *
 * With req_p NULL the call blocks until all rows are here. Otherwise it returns as soon as the operation has begun; the
 * rows of *handle_p may be read when *req_p is done, and the caller frees *req_p with xep_request_free().
 *
 * Errors before anything has begun; nothing has changed: XEP_ERR_INVALID, XEP_ERR_UNSUPPORTED, XEP_ERR_BUSY (no free
 * slot, or too many requests that were not freed), XEP_ERR_BROKEN, XEP_ERR_ABORTED. XEP_ERR_INVALID and
 * XEP_ERR_UNSUPPORTED on one rank alone are XEP_ERR_MISMATCH on the others, which are in that call, and on that rank in
 * its next one; then all are in the same call again. (Where two ranks come to different kinds of calls so, both wait
 * until their deadline.)
 *
 * Errors of the operation are returned here if the call blocks (there is no handle then), else by the request (the
 * handle then has no rows; release it):
 *  - XEP_ERR_OVERFLOW (too little room on some rank: XEP_DISPATCH_PIECES), XEP_ERR_MISMATCH (ranks disagree),
 *    XEP_ERR_INVALID (device memory: topk_idx of some rank has an index that is not an expert): every rank gets the
 *    same, nothing was moved, and the buffer stays usable;
 *  - XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_PROTOCOL, XEP_ERR_TRANSPORT: the buffer is broken until xep_buffer_reset().
 *    Where some rank is not mapped, the transport may go on reading x, scales and weights (and x of a combine) until
 *    that reset has succeeded, or the group is destroyed: only then change or free them.
 */
XEP_API xep_status_t xep_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p,
                                  xep_request_t **req_p);

/**
 * The received rows; NULL if the dispatch has failed or is still in flight (but see xep_request_wait_counts()). They
 * belong to the buffer and are valid until the handle is released. Local.
 */
XEP_API const xep_recv_t *xep_handle_recv(const xep_handle_t *handle);

/**
 * Memory for the rows of this rank's next dispatch with XEP_DISPATCH_IN_PLACE: [params.tokens][H] of the buffer's
 * dtype, with *stride_p bytes between rows; what is between two rows is the library's. It may be written until a
 * dispatch takes rows from it; ask again before writing for another one, which returns other memory, or the same if no
 * dispatch was made of it. Received rows that are read in place, of whatever rank, stay where they are meanwhile.
 *
 * Blocks until the peers have released the handles of an earlier dispatch whose rows were there. Errors:
 * XEP_ERR_TIMEOUT, XEP_ERR_UNSUPPORTED (the buffer was made without XEP_BUFFER_SEND_MEMORY), XEP_ERR_INVALID (with
 * XEP_CHECK_ROWS: rows were changed too early), XEP_ERR_BROKEN, XEP_ERR_ABORTED, XEP_ERR_PEER.
 */
XEP_API xep_status_t xep_buffer_send_memory(xep_buffer_t *buffer, void **base_p, size_t *stride_p);

/**
 * Copies the received rows, wherever they are, into a dense array of the caller's: [rows][H], with stride bytes between
 * rows (0: those of a row); padded ones, if they are read in place: [capacity][H]. Where no row came (xep_recv_t.row is
 * NULL), it stays as it is. The buffer's threads do it. Local. Errors: XEP_ERR_INVALID (also: the handle has no rows;
 * out is memory of a device, as with dispatch), XEP_ERR_UNSUPPORTED (padded rows that are in x; a buffer in device
 * memory).
 */
XEP_API xep_status_t xep_handle_gather(const xep_handle_t *handle, void *out, size_t stride);

/** Bits of xep_expand_args_t.flags. */
enum {
    XEP_EXPAND_ZERO = 1 /* rows of which no selection is, between experts and behind the last one, become 0 */
};

/**
 * Rows by expert, in arrays of the caller's in the buffer's device memory: one for each selection of a received row,
 * in the order of local expert, then received row, then k; each expert begins at a multiple of expert_alignment.
 */
typedef struct xep_expand_args {
    size_t size;
    uint64_t capacity;             /* rows that there is room for; selections beyond them get no row */
    uint32_t expert_alignment;     /* 0: 1 */
    uint32_t flags;                /* XEP_EXPAND_* */
    int32_t *slots;                /* [recv.capacity][K] filled: the row of each selection, or -1 */
    uint64_t *expert_begin;        /* [L] filled: first row of each local expert */
    uint64_t *expert_count;        /* [L] filled: rows of each local expert, without those that alignment adds */
    void *x;                       /* [capacity][H] filled; NULL: left out */
    size_t x_stride;               /* bytes between rows; 0: dense */
    float *topk_weights;           /* [capacity] filled: the weight of each row's selection; NULL: left out */
    void *scales;                  /* [capacity][nscales] filled; NULL: left out */
    ptrdiff_t scales_token_stride; /* bytes from a scale of a row to that of the next row; 0: dense rows */
    ptrdiff_t scales_stride;       /* bytes from a scale of a row to its next one; 0: 4 */
    void *stream;                  /* cudaStream_t that orders it; NULL: the device's default stream */
} xep_expand_args_t;

#define XEP_EXPAND_ARGS_INIT XEP_INIT_(xep_expand_args_t)

/**
 * Copies each received row to the rows of its selections, and what belongs to it. Device memory, mode normal, not
 * staged: else XEP_ERR_UNSUPPORTED. Local; enqueued behind the dispatch on its stream, or on one that waits for it. The
 * host waits for nothing, so it can be captured. Other errors: XEP_ERR_INVALID, XEP_ERR_BROKEN.
 */
XEP_API xep_status_t xep_handle_expand(const xep_handle_t *handle, const xep_expand_args_t *args);

typedef struct xep_reduce_args {
    size_t size;
    const int32_t *slots;      /* [recv.capacity][K] as xep_handle_expand() has filled them */
    const void *x;             /* rows by expert; may be NULL if no rows came */
    size_t x_stride;           /* bytes between rows; 0: dense */
    xep_dtype_t dtype;         /* XEP_BF16, XEP_FP16, XEP_FP32; 0: the buffer's combine_dtype */
    uint32_t hidden;           /* H of this call; 0: the buffer's */
    void *out;                 /* [recv.rows][H] filled: the caller's, or xep_handle_combine_input() */
    size_t out_stride;         /* bytes between rows; 0: dense */
    xep_dtype_t out_dtype;     /* dtype (also 0), or XEP_FP32 */
    uint32_t reserved;         /* must be 0 */
    const float *topk_weights; /* one for each row by expert; NULL: none */
    float *out_weights;        /* [recv.rows][K] filled with them, 0 where a selection is another rank's; or NULL */
    void *stream;              /* as in xep_expand_args_t */
} xep_reduce_args_t;

#define XEP_REDUCE_ARGS_INIT XEP_INIT_(xep_reduce_args_t)

/**
 * Sums the rows of each received row's selections to one again, which a combine takes: from +0, k ascending, in fp32,
 * rounded once. As xep_handle_expand().
 */
XEP_API xep_status_t xep_handle_reduce(const xep_handle_t *handle, const xep_reduce_args_t *args);

/**
 * What becomes of the piece that is shown when the next one comes: the first fields of xep_combine_args_t, with the
 * same meaning. Inputs belong to the caller; with a request they must not be touched before it is done. Collective:
 * dtype, hidden, whether there are topk_weights, and whether there are args at all; the same for all pieces of a
 * handle, the last one included, whose outputs xep_combine() gets.
 */
typedef struct xep_next_args {
    size_t size;
    const void *x;              /* [recv.rows][H] expert outputs of this piece; NULL: as xep_combine_args_t has it */
    size_t x_stride;            /* bytes between rows; 0: dense */
    xep_dtype_t dtype;          /* XEP_BF16, XEP_FP16, XEP_FP32; 0: the buffer's combine_dtype */
    uint32_t hidden;            /* H of this call; 0: the buffer's */
    const float *topk_weights;  /* [recv.rows][K] weights to send back; NULL: none */
    size_t topk_weights_stride; /* bytes between rows; 0: dense */
    int32_t timeout_ms;         /* deadline of this operation; 0: the buffer's; < 0: none */
    uint32_t reserved;          /* must be 0 */
    uint64_t *wait_ns;          /* as in xep_dispatch_args_t */
} xep_next_args_t;

#define XEP_NEXT_ARGS_INIT XEP_INIT_(xep_next_args_t)

/**
 * Takes the expert outputs of the piece that a handle shows back to the ranks of its tokens, where they are kept for
 * the combine, and brings the next piece: then xep_handle_recv() shows that one. Collective; every rank calls it
 * recv.pieces - 1 times, also one that gets no rows any more. args NULL: the piece has no outputs, and the handle no
 * combine. With req_p NULL the call blocks until the rows are here; otherwise the handle has no rows until *req_p is
 * done, and the caller frees *req_p.
 *
 * out of the combine after the last piece is, bit for bit, what it would have been in one piece. A handle of several
 * pieces is combined once; dispatches that use its routing again (cached) are made at any time.
 *
 * Errors: as with xep_combine(). XEP_ERR_INVALID also for a handle that shows its last piece already, and for outputs
 * of another kind than those of earlier pieces. After XEP_ERR_MISMATCH the handle shows the same piece as before.
 */
XEP_API xep_status_t xep_handle_next(xep_handle_t *handle, const xep_next_args_t *args, xep_request_t **req_p);

/* ---- combine ---------------------------------------------------------------- */

/** Bits of xep_combine_args_t.flags. */
enum {
    /* ll, host memory: a rank first sums what its own experts have for a token, so that it sends one row and not one
     * for each selection. out then is +0 + bias[0] + bias[1] + the sum of each rank, ranks ascending, in fp32, rounded
     * once to nearest even; and the sum of a rank +0 + y of each of its selections, k ascending, in fp32, rounded once:
     * to dtype, or where it travels by quant, to that (by LogFMT to bf16, and then to that). The same bits whoever is
     * mapped, but for quant. Not where the source has weights that the experts did not get (XEP_DISPATCH_SEND_WEIGHTS),
     * nor for a handle of several pieces */
    XEP_COMBINE_SUM_AT_OWNER = 1
};

/**
 * The inputs and outputs belong to the caller; with a request they must not be touched before it is done. Collective:
 * dtype, hidden, flags, quant, quant_scale, and whether there are topk_weights. All else may differ from rank to rank.
 */
typedef struct xep_combine_args {
    size_t size;
    /* [recv.rows][H] expert outputs, in the order in which the rows were received. NULL, or what
     * xep_handle_combine_input() returned: they were written there, and nothing is copied. NULL is refused where there
     * are rows and it was not called since the dispatch or a combine of other memory */
    const void *x;
    size_t x_stride;            /* bytes between rows; 0: dense; not used if nothing is copied */
    xep_dtype_t dtype;          /* XEP_BF16, XEP_FP16, XEP_FP32; 0: the buffer's combine_dtype */
    uint32_t hidden;            /* H of this call; 0: the buffer's */
    const float *topk_weights;  /* [recv.rows][K] weights to send back and add up in out_weights; NULL: none; normal */
    size_t topk_weights_stride; /* bytes between rows; 0: dense */
    const void *bias[2];        /* [T][H] of dtype, added first; NULL: none */
    size_t bias_stride[2];      /* bytes between rows; 0: dense */
    /* [T][H] of dtype. normal: +0 + bias[0] + bias[1] + one contribution of each rank that got the token, ranks
     * ascending, in fp32, rounded once to nearest even. By nodes (XEP_PATH_NODES) nodes are in ascending order: of the
     * own node such a contribution of each rank, of every other node their sum, which was rounded, too, unless the
     * buffer has XEP_NODE_SUMS_FP32. ll: see weights */
    void *out;
    size_t out_stride;         /* bytes between rows; 0: dense */
    float *out_weights;        /* [T][K] sums of topk_weights; only with them */
    size_t out_weights_stride; /* bytes between rows; 0: dense */
    xep_request_t *after;      /* as in xep_dispatch_args_t */
    int32_t timeout_ms;        /* as in xep_dispatch_args_t */
    uint32_t flags;            /* XEP_COMBINE_* */
    /* ll: [T][K] weights of this rank's own tokens. NULL: those given to dispatch; 1 if there were none, or if they
     * were sent with the rows. out is +0 + bias[0] + bias[1], then fma(weight, y, sum) in fp32 for each selection, k
     * ascending, rounded once to nearest even */
    const float *weights;
    size_t weights_stride; /* bytes between rows; 0: dense */
    uint64_t *wait_ns;     /* as in xep_dispatch_args_t */
    void *stream;          /* as in xep_dispatch_args_t */
    /* NULL, or [T][K]: 1 where a selection is missing in out, as its expert is on a rank that is out; else 0. Not with
     * XEP_MEMORY_CUDA */
    uint8_t *missing;
    size_t missing_stride; /* bytes between rows; 0: dense */
    /* ll, of XEP_BF16: how rows travel to ranks that are not mapped; lossy. Each arrives as bf16(q * scale), of NVFP4
     * bf16(q * (b * s)), products rounded in fp32. Rows of mapped ranks, and all of a handle of several pieces, stay as
     * they are */
    xep_quant_t quant;
    float quant_scale; /* as in xep_dispatch_args_t */
} xep_combine_args_t;

#define XEP_COMBINE_ARGS_INIT XEP_INIT_(xep_combine_args_t)

/**
 * Brings the expert outputs of the received rows back to the ranks of their tokens and sums them. Collective. With
 * req_p NULL it blocks until out is written; otherwise it returns as soon as the operation has begun, out is written
 * when *req_p is done, and the caller frees *req_p. A handle may be combined any number of times, one operation at a
 * time; one of several pieces once, when it shows the last one.
 *
 * Errors and what is left after them: as with xep_dispatch(), except that the handle stays; XEP_ERR_INVALID also for a
 * handle that was released, whose dispatch has failed, or that has an operation in flight.
 */
XEP_API xep_status_t xep_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p);

/**
 * The memory of the slot in which expert outputs need no copy before combine: [recv.rows][H] of the combine type, with
 * *stride_p bytes between rows (this follows from the buffer's combine_dtype, also if a call uses a narrower type).
 *
 * Blocks until the peers have read what an earlier combine left there. The memory may be written until the next combine
 * of the handle begins; ask again before writing for another one. A combine of other memory (args.x) overwrites it.
 * Returns NULL on error: the deadline has passed, or the handle has an operation in flight.
 */
XEP_API void *xep_handle_combine_input(xep_handle_t *handle, size_t *stride_p);

/**
 * Ends the handle and its views, and gives its slot back: now, or when its operation in flight is done. Local, does not
 * block. NULL is a no-op.
 */
XEP_API void xep_handle_release(xep_handle_t *handle);

/* ---- requests --------------------------------------------------------------- */

/**
 * Makes progress without blocking, and tells how the operation stands: XEP_OK, XEP_INPROGRESS, or its error. The
 * deadline counts from the first test or wait. Dead peers are noticed as in a wait.
 */
XEP_API xep_status_t xep_request_test(xep_request_t *req);

/**
 * Blocks until the operation is done or its deadline has passed. Returns its status; a second call returns it again.
 */
XEP_API xep_status_t xep_request_wait(xep_request_t *req);

/**
 * Blocks until it is known how many rows of a dispatch this rank receives, and where; in mode normal a cached dispatch
 * knows it from the begin. xep_handle_recv() then has the counts and places. The rows themselves (x, topk_idx,
 * topk_weights, scales, src_token) may be read when the request is done. Returns XEP_OK, or the operation's error. For
 * a combine this is xep_request_wait(). With XEP_ON_FAILURE_MASK there are fewer rows at the end than counted here if a
 * rank was left out meanwhile, and a cached dispatch knows nothing before the others have begun.
 */
XEP_API xep_status_t xep_request_wait_counts(xep_request_t *req);

/**
 * XEP_MEMORY_CUDA: what is enqueued on stream (as in xep_dispatch_args_t) from now on comes after the operation, and
 * after those of its buffer that were enqueued before this call. Enqueues what is left of the operation, as
 * xep_request_wait() does, and does not wait for the device. Returns as that does; also XEP_ERR_INVALID (no stream of
 * the buffer's device, or one that is being captured, where the program's own events order what the graph has) and
 * XEP_ERR_UNSUPPORTED (a request in host memory).
 */
XEP_API xep_status_t xep_request_stream_wait(xep_request_t *req, void *stream);

/**
 * Frees the request, which may not be used again; its operation goes on, and the next call on its handle waits for it.
 * Local, does not block. NULL is a no-op.
 */
XEP_API void xep_request_free(xep_request_t *req);

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
