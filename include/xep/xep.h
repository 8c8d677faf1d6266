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
 *  - Where a collective call fails because another rank failed in it, the status is that rank's, even one that is not
 *    listed there, and the sentence names the rank. Each may return XEP_ERR_PROTOCOL: a peer sent what the protocol
 *    does not allow.
 *  - A blocking call waits for other ranks, never longer than its deadline. Every other call returns without waiting.
 *
 * Threads, forks, signals, streams:
 *  - One thread at a time uses a buffer, its handles and its requests; different buffers of one group may be used by
 *    different threads at once. A call on a buffer while another thread is in one returns XEP_ERR_INVALID at once
 *    (xep_request_test(): XEP_INPROGRESS). Calls on a group itself are made by one thread at a time. At any time any
 *    thread may call functions that take none of these, xep_handle_release(), xep_request_free(), xep_buffer_abort(),
 *    xep_group_abort() and xep_buffer_waits().
 *  - Objects belong to the process that made them. After fork(), a call on one in the child returns XEP_ERR_INVALID,
 *    and destroy, release, free and abort do nothing there, so that the child may exit as it likes. It may create a
 *    group of its own.
 *  - A signal handler may call xep_group_abort() and xep_serve_stop(), and nothing else. xep sets no handlers but that
 *    of XEP_EXPLAIN.
 *  - Work on devices is ordered by the stream that a call is given (xep/cuda.h), and by nothing else of the program.
 *
 * Most programs need this header alone. Beside it are: xep/elastic.h (ranks that are lost and gained), xep/cuda.h (rows
 * in device memory), xep/pieces.h (rows in place and in pieces), xep/serve.h (ranks that run experts for others),
 * xep/experts.h (weights that all ranks can read), xep/inspect.h (modes, configuration, layouts, waits, traces), and
 * for C++ xep/xep.hpp; for authors of modes xep/plugin.h, xep/wire.h, xep/launch.h.
 */
#ifndef XEP_H
#define XEP_H

#include <stddef.h>
#include <stdint.h>

#include <xep/dtype.h>
#include <xep/status.h>
#include <xep/version.h>

#ifdef __cplusplus
extern "C" {
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
typedef enum { XEP_OP_DISPATCH = 0, XEP_OP_COMBINE = 1, XEP_OP_NEXT = 2, XEP_ENUM_IS_INT(XEP_OP) } xep_op_kind_t;

/* ---- library ---------------------------------------------------------------- */

/** Version of the library that runs, as "1.2.3". Static storage, never NULL. */
XEP_API const char *xep_version_string(void);

/** The same as numbers. Outputs may be NULL. */
XEP_API void xep_version(uint32_t *major_p, uint32_t *minor_p, uint32_t *patch_p);

/**
 * Does what the _INIT macros do, for languages that load the library and have no macros: sets any params, args or info
 * struct of size bytes to 0, and its field size.
 */
XEP_API void xep_struct_init(void *params, size_t size);

/** Name ("XEP_ERR_BUSY") and meaning ("no free slot") of a status. Static storage, never NULL. */
XEP_API const char *xep_status_name(xep_status_t status);
XEP_API const char *xep_status_text(xep_status_t status);

/**
 * The reason of the last error in this thread, a full sentence; "" if there was none.
 * Never NULL. Valid until this thread's next call into the library.
 */
XEP_API const char *xep_last_error(void);

typedef enum { XEP_LOG_ERROR, XEP_LOG_WARN, XEP_LOG_INFO, XEP_LOG_DEBUG, XEP_ENUM_IS_INT(XEP_LOG) } xep_log_level_t;

/** Receives every message whose level is enabled (XEP_LOG). Called from any thread; must not call xep. */
typedef void (*xep_log_fn)(void *arg, xep_log_level_t level, const char *message);

/** Sends the log messages of this process to fn from now on; fn NULL: to stderr, as at the start. */
XEP_API void xep_log_set(xep_log_fn fn, void *arg);

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
 * Leaves the group and frees it. Collective, blocking: waits for the other ranks, at most for the group's timeout, and
 * not at all after xep_group_abort(). NULL is a no-op. XEP_ERR_INVALID: it still has buffers, and nothing was done. Any
 * other error (XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_ABORTED, XEP_ERR_TRANSPORT) says that the ranks did not leave
 * together; the group is gone.
 */
XEP_API xep_status_t xep_group_destroy(xep_group_t *group);

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
 * XEP_ERR_TRANSPORT. After XEP_ERR_TIMEOUT this barrier is over for the rank, and its next call is the next barrier;
 * those that were missing still return XEP_OK from this one.
 */
XEP_API xep_status_t xep_group_barrier(xep_group_t *group);

/**
 * An allgather over the group's own connections: bytes of each rank (any number above 0, the same on all ranks) go into
 * recv, in rank order: nranks * bytes. Collective, blocking. Operations in flight make progress meanwhile.
 *
 * Errors: XEP_ERR_MISMATCH on every rank if bytes or calls differ; the next call works again. After XEP_ERR_TIMEOUT it
 * may be called again with the same arguments, recv as it was left: it goes on where it was, and what was given first
 * counts, as other ranks may have it. Any other allgather of the group, that of xep_buffer_create() too, gives it up
 * for good, and begins when all ranks have come to the one that is given up. Those that come late get what the others
 * gave, or XEP_ERR_MISMATCH if that takes several rounds (of 4,072 bytes). After XEP_ERR_PEER or XEP_ERR_TRANSPORT
 * every allgather of the group fails.
 */
XEP_API xep_status_t xep_group_allgather(xep_group_t *group, const void *send, void *recv, size_t bytes);

typedef struct xep_group_info {
    size_t size;
    uint32_t rank, nranks;
    uint32_t node, nnodes; /* of this rank; how many: the ranks that map one another's memory are a node */
    const char *boot;      /* "callback", "pmix", "single"; "shrink", "grow": of another group */
} xep_group_info_t;

#define XEP_GROUP_INFO_INIT XEP_INIT_(xep_group_info_t)

/** Fills info. Local. Errors: XEP_ERR_INVALID. */
XEP_API xep_status_t xep_group_query(const xep_group_t *group, xep_group_info_t *info);

/* ---- layout ----------------------------------------------------------------- */

/**
 * The experts of a rank: *first_p .. *first_p + *count_p - 1. Experts lie in blocks in rank order, and the first E % R
 * ranks have one expert more than the others; with E < R the last ranks have none. A NULL output is left out. *count_p
 * is 0 for a rank that is not below nranks. Local; depends on the arguments alone.
 */
XEP_API void xep_expert_range(uint32_t experts, uint32_t nranks, uint32_t rank, uint32_t *first_p, uint32_t *count_p);

/* ---- buffer ----------------------------------------------------------------- */

/**
 * Where the rows of a buffer lie. All pointers to arrays in the arguments and in xep_recv_t are to memory of this kind;
 * XEP_ERR_INVALID: one is memory of the other kind. With XEP_MEMORY_HOST that is found where the process had loaded the
 * driver of CUDA devices when it created the buffer. XEP_MEMORY_CUDA: the rules are in xep/cuda.h.
 */
typedef enum { XEP_MEMORY_HOST = 0, XEP_MEMORY_CUDA = 1, XEP_ENUM_IS_INT(XEP_MEMORY) } xep_memory_t;

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
 * change nothing that the others use; it destroys its buffers and its group. Modes ll and normal, in device
 * memory where all ranks map one another; all else is XEP_ERR_UNSUPPORTED. A buffer with a rank out cannot be reset,
 * and the group makes no new ones.
 */
typedef enum { XEP_ON_FAILURE_FAIL = 0, XEP_ON_FAILURE_MASK = 1, XEP_ENUM_IS_INT(XEP_ON_FAILURE) } xep_on_failure_t;

/** Bits of xep_buffer_params_t.flags. */
enum {
    /* host memory: the buffer has memory for rows that peers read in place (xep/pieces.h), of slots + 1
     * times the most tokens; not with XEP_ON_FAILURE_MASK */
    XEP_BUFFER_SEND_MEMORY = 1,
    /* normal, ll, host memory: dispatches may come in pieces (XEP_DISPATCH_PIECES), so that recv_rows need not be the
     * worst case. Of the memory for outputs that are kept until the last piece (a slot: tokens * min(topk, ranks) rows,
     * ll: tokens * topk) only what a dispatch of several pieces returns is touched. Not with XEP_ON_FAILURE_MASK */
    XEP_BUFFER_PIECES = 2,
    /* host memory: ranks may serve (xep_serve()). A rank that begins an operation announces it to each other rank by
     * a few words. args.after must be NULL */
    XEP_BUFFER_SERVED = 4,
    /* normal: a combine adds the ranks of a token in the order of its last selection of each, not in ascending order,
     * as DeepEP's ElasticBuffer does. By nodes: first the ranks of each node in that order, with the sum rounded (the
     * own node's, too), then the nodes in the order of the last selection of each */
    XEP_BUFFER_SUM_BY_SELECTION = 8
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
typedef enum { XEP_PATH_AUTO = 0, XEP_PATH_FLAT = 1, XEP_PATH_NODES = 2, XEP_ENUM_IS_INT(XEP_PATH) } xep_path_t;

/** Another instance of an expert: a rank, not its owner, that has the expert, too. */
typedef struct xep_replica {
    uint32_t expert, rank;
} xep_replica_t;

/**
 * Which instance of an expert a selection goes to, in a dispatch with XEP_DISPATCH_BALANCE. The ranks exchange how many
 * selections they have of each expert, and all compute the same plan. An instance first gets rows of its own rank.
 *
 * LEAST_LOADED: the owner or a replica, whichever rank has the least load so far.
 * EVEN: any rank, so that no rank gets more than its share of all selections, rounded up; the owners keep what fits
 * into their shares. Each rank has all E experts as local ones, and reads weights by xep_weights_of(). With replicas:
 * the owner or a replica, so that the busiest rank gets as little as they allow.
 * PLAN: as params.plan decides.
 */
typedef enum {
    XEP_BALANCE_NONE = 0,
    XEP_BALANCE_LEAST_LOADED = 1,
    XEP_BALANCE_EVEN = 2,
    XEP_BALANCE_PLAN = 3,
    XEP_ENUM_IS_INT(XEP_BALANCE)
} xep_balance_t;

/** A plan of the caller's: how many selections of an expert go to each of its instances. */
typedef struct xep_plan {
    size_t size;
    uint32_t experts, nranks;
    const uint32_t *counts; /* [R][E] selections that each rank has of each expert */
    const uint32_t *begin;  /* [E + 1] first instance of each expert in the arrays below */
    const uint32_t *rank;   /* [instances] rank of each: the owner, then replicas by rank */
    uint64_t *rows;         /* [instances] zeros, to be filled: those of an expert add up to its selections */
    const uint8_t *out;     /* [R] 1: the rank is out: what its instances are given is missing; NULL: all are in */
} xep_plan_t;

/** Called inside xep_dispatch(), with the same numbers on all ranks; must not call xep. Returns 0 on success. */
typedef int (*xep_plan_fn)(void *ctx, const xep_plan_t *plan);

/** All fields but those marked "per rank" are collective: every rank passes the same values. */
typedef struct xep_buffer_params {
    size_t size;
    const char *mode; /* "normal", "ll", or a mode of your own; NULL: XEP_MODE, else "normal" */
    uint32_t experts; /* E, 1 .. 2^20 */
    uint32_t topk;    /* most selections of a token, 1 .. E */
    uint32_t hidden;  /* most elements of a row, at least 1 */
    /* room beside a row, in words of 4 bytes: for the most scales of a token (in mode normal also a cast's) and for
     * payloads (xep_payload_t); 0: none */
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
    uint32_t threads;          /* per rank: threads of the host that copy and reduce; 0: XEP_THREADS */
    uint32_t multiprocessors;  /* per rank, of the device: those that copy and reduce; 0: 16. 0 in host memory */
    int32_t timeout_ms;        /* per rank: deadline of each operation; 0: XEP_TIMEOUT; < 0: none */
    xep_memory_t memory;       /* of the rows; default XEP_MEMORY_HOST */
    xep_on_failure_t on_failure;
    uint32_t flags; /* XEP_BUFFER_* */
    xep_path_t path;
    /* several nodes: room for rows of other nodes that are not where they belong yet: by nodes those that this rank has
     * still to pass on, in ll those that it has still to copy to their places, twice as many if they are cast. At least
     * one for each rank that sends here; with fewer than all, senders wait for room. 0: by nodes 2 * tokens, or as many
     * as there can be; ll, flat: all that can come, if that is at most 512 MiB, else an even load and much head room.
     * Ignored with XEP_ON_FAILURE_MASK: there is room for all */
    uint64_t pass_rows;
    /* [E] the rank that owns each expert; NULL: blocks (xep_expert_range()). A rank may own any number of experts, or
     * none. Local experts are in the order of their global numbers: xep_recv_t.experts. Copied by the call */
    const uint32_t *owners;
    /* [nreplicas] further ranks of experts, each pair once; copied by the call. Such a rank has the expert among its
     * local ones. A selection goes to an instance on this rank, else on this node, else on any; among several, to the
     * rank that gets the fewest rows of this dispatch so far, then to the next rank after this one. Ranks that are out
     * get none: a selection is missing if all ranks of its expert are out. As balance in host memory, or where rows in
     * device memory are staged: XEP_ERR_UNSUPPORTED where all ranks map one another's, as no host sees topk_idx then */
    const xep_replica_t *replicas;
    uint32_t nreplicas;
    xep_balance_t balance; /* of dispatches with XEP_DISPATCH_BALANCE. Others with EVEN and no replicas go to owners */
    xep_plan_fn plan;      /* per rank: with XEP_BALANCE_PLAN, else NULL */
    void *plan_ctx;        /* per rank: passed to plan */
} xep_buffer_params_t;

#define XEP_BUFFER_PARAMS_INIT XEP_INIT_(xep_buffer_params_t)

typedef struct xep_buffer_sizes {
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
 * Returns how much memory a buffer of this shape would take on each of nranks ranks; params->tokens is the most of any.
 * A rank that owns no expert uses none of it for received rows, and one that says 0 tokens none for rows that it sends:
 * pages that no rank uses take no memory, but in POSIX segments, which UCX fills. Local; loads the mode, and allocates
 * nothing else. Errors: XEP_ERR_INVALID, XEP_ERR_PLUGIN, XEP_ERR_NO_MEMORY (the size does not fit in 64 bits).
 */
XEP_API xep_status_t xep_buffer_size(const xep_buffer_params_t *params, uint32_t nranks, xep_buffer_size_t *size);

/**
 * Allocates the shared memory of one shape on every rank, maps that of the peers and opens the mode. Collective,
 * blocking. The caller ends the buffer with xep_buffer_destroy(); the strings in params need not stay.
 *
 * An error on one rank is an error on all, and nothing is left to free: XEP_ERR_INVALID, XEP_ERR_PLUGIN (the mode
 * cannot be loaded; the sentence says why), XEP_ERR_NO_MEMORY (also where what all ranks of a host want does not fit
 * there together: XEP_ROOM), XEP_ERR_MISMATCH (the sentence names the parameter, the ranks and both values),
 * XEP_ERR_UNSUPPORTED, XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_TRANSPORT, XEP_ERR_ABORTED.
 */
XEP_API xep_status_t xep_buffer_create(xep_group_t *group, const xep_buffer_params_t *params, xep_buffer_t **buffer_p);

/**
 * Frees the buffer with all its handles, requests and views. Collective, blocking: waits for the other ranks, at most
 * for the timeout, 2 s where one of them has given the buffer up, and not at all after xep_group_abort(). NULL is a
 * no-op. Whatever it returns, the buffer is gone; an error says that the ranks did not end it together, as that of
 * xep_group_destroy(). But while xep_serve() runs with it, this is XEP_ERR_INVALID, as a reset is, and it stays.
 */
XEP_API xep_status_t xep_buffer_destroy(xep_buffer_t *buffer);

/**
 * Gives the buffer up on this rank: what is in flight ends with XEP_ERR_BROKEN, as every later call does until a reset.
 * Other ranks need not wait for this one until a deadline: their operations of the buffer end within milliseconds, with
 * a sentence that names this rank, and xep_buffer_destroy() there waits for it for two seconds at most. For a rank that
 * has met an error of its own and will not call the next operation. Local, does not block: where a thread is in a call
 * on the buffer, that call gives it up and returns. NULL is a no-op. With XEP_ON_FAILURE_MASK the others are not told:
 * they find out and go on.
 */
XEP_API void xep_buffer_abort(xep_buffer_t *buffer);

/**
 * Makes a buffer usable again after an error that left it broken (XEP_ERR_BROKEN): operations in flight end with
 * XEP_ERR_ABORTED, and all handles are released. Collective, blocking. After an error the buffer is still broken:
 * XEP_ERR_TIMEOUT (a rank is late: call it again, as often as it takes), XEP_ERR_BROKEN (a rank destroys the buffer, or
 * has called xep_buffer_abort() meanwhile), XEP_ERR_NO_MEMORY (the mode finds none, here or on another rank),
 * XEP_ERR_UNSUPPORTED (a rank is out), XEP_ERR_PEER, XEP_ERR_TRANSPORT, XEP_ERR_ABORTED. Where another rank fails in
 * it, this one does so at once, too.
 */
XEP_API xep_status_t xep_buffer_reset(xep_buffer_t *buffer);

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
    XEP_ROWS_BY_EXPERT_PADDED = 3,
    XEP_ENUM_IS_INT(XEP_ROWS)
} xep_rows_t;

/** Most payloads of a dispatch. */
enum { XEP_PAYLOADS_MOST = 8 };

/**
 * Bytes of the caller's that travel beside each row of x, unchanged, and arrive as an array of their own: scales of any
 * width, a hash, routing data. They need room in params.scales: first the scales of a row (with payloads a cast's,
 * too), then each payload at a multiple of its alignment, padded to one. In device memory not beside a cast or scales
 * by column, and the room is padded to the largest alignment: rows arrive with all that is beside them.
 */
typedef struct xep_payload {
    void *data; /* sent: [T][bytes], only read, NULL if T is 0; received: [capacity][bytes] */
    /* bytes between rows. Sent: 0 if dense; received: bytes, rounded up to alignment, or more in device memory */
    size_t stride;
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
    XEP_DISPATCH_PIECES = 16,
    /* collective: selections go to instances by params.balance. The call waits for the other ranks' calls, even with a
     * request. XEP_ERR_MISMATCH on all ranks: plans of params.plan differ or do not add up. No effect on a cached
     * dispatch, which keeps its routing */
    XEP_DISPATCH_BALANCE = 32,
    /* device memory, normal: xep_handle_expand() comes next, on the stream of the dispatch, and what it fills is not
     * used by anything that was enqueued since, nor read by the dispatch. Of many tokens most rows are then expanded
     * while the rest come; if it does not come, nothing but time is lost. Changes nothing elsewhere */
    XEP_DISPATCH_WILL_EXPAND = 64
};

/**
 * The inputs belong to the caller; with a request they must not change before it is done.
 *
 * Collective: dtype, hidden, topk, topk_idx_dtype (normal), nscales, scales_dtype, quant, bytes and alignments of the
 * payloads, whether weights are sent, and which dispatch is cached. All else may differ from rank to rank: tokens,
 * pointers, strides, alignment, arrangement, capacity, timeout. A mode refuses what it does not support with
 * XEP_ERR_UNSUPPORTED.
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
 * What the counts say, by mode and memory:
 *   normal                       rows: received; K = topk of the dispatch; capacity: rows, or args.capacity
 *   ll, compact                  rows: with those that alignment leaves unused (topk_idx -1); K = 1; capacity likewise
 *   ll, padded                   rows: received; K = 1; capacity: L * R * params.tokens
 *   ll or COUNTS_THERE, device   rows: capacity, as the host waits for no count; src_begin, expert_count have them
 *
 * A program that adds up weight * expert(x) for each row and each k with topk_idx >= 0, and combines that, is right in
 * every mode and in every arrangement but the padded one: in ll, rows have K = 1 and the weight 1, and combine applies
 * the weights.
 */
typedef struct xep_recv {
    size_t size;
    xep_rows_t arrangement;
    xep_quant_t quant; /* the cast that args asked for, which dtype and scales_dtype follow */
    uint64_t rows;     /* to be looked at, see above */
    uint64_t capacity; /* that the arrays below have */
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
     * NULL: it is with all. Set at its end. XEP_MEMORY_CUDA: an array of the device, never NULL with
     * XEP_ON_FAILURE_MASK; in mode normal rows of such a rank may keep their places, and then select no expert */
    const uint8_t *out;
    /* XEP_DISPATCH_IN_PLACE: [capacity] where each row is, in the memory of its source or in this rank's, to be read
     * only, until the handle is released; NULL where none came: beyond rows, behind those of an expert. Else NULL: rows
     * are in x */
    const void *const *row;
    /* XEP_DISPATCH_PIECES: in how many pieces the rows of this dispatch come, the same on all ranks: as many as the
     * rank with the most rows needs, so that there may be none in the last ones; which of them this is, from 0; how
     * many rows this rank gets in all; and which of them the first row here is. Else 1, 0, rows, 0 */
    uint64_t pieces, piece, all_rows, first_row;
    const uint32_t *experts; /* [L] global number of each local expert, ascending; of a replica that of its expert */
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
 *  - XEP_ERR_TIMEOUT, XEP_ERR_PEER, XEP_ERR_PROTOCOL, XEP_ERR_TRANSPORT, XEP_ERR_BROKEN (an operation before it failed,
 *    or another rank has called xep_buffer_abort()), or what another rank gave it up for: the buffer is broken until
 *    xep_buffer_reset().
 *    Where some rank is not mapped, the transport may go on reading x, scales and weights (and x of a combine) until
 *    that reset has succeeded, or the group is destroyed: only then change or free them.
 */
XEP_API xep_status_t xep_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p,
                                  xep_request_t **req_p);

/**
 * The received rows: they belong to the buffer and are valid until the handle is released. Local, costs nothing: it may
 * be asked again and again. XEP_INPROGRESS: the dispatch is still in flight (but see xep_request_wait_counts()).
 * XEP_ERR_INVALID: it has failed, or the handle was released.
 */
XEP_API xep_status_t xep_handle_recv(const xep_handle_t *handle, const xep_recv_t **recv_p);

/* ---- combine ---------------------------------------------------------------- */

/** Bits of xep_combine_args_t.flags. */
enum {
    /* ll: a rank first sums what its own experts have for a token, so that it sends one row and not one
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
     * own node such a contribution of each rank, of every other node their sum, which was rounded, too. Another order:
     * XEP_BUFFER_SUM_BY_SELECTION. ll: see weights */
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
    /* NULL, or [T][K]: 1 where a selection is missing in out, as its expert is on a rank that is out; else 0.
     * Staged, where rows of a device go through the host, it is refused */
    uint8_t *missing;
    size_t missing_stride; /* bytes between rows; 0: dense */
    /* ll, of XEP_BF16: how rows travel to ranks that are not mapped; lossy. Each arrives as bf16(q * scale), of NVFP4
     * bf16(q * (b * s)), products rounded in fp32. Rows of mapped ranks, and all of a handle of several pieces, stay as
     * they are */
    xep_quant_t quant;
    float quant_scale; /* as in xep_dispatch_args_t */
    /* device memory, normal: [recv.capacity][K] as xep_handle_expand() has filled them: x has rows by expert, of which
     * the call first makes one of each received row, as xep_handle_reduce() does. NULL: x has received rows */
    const int32_t *slots;
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
 * The memory of the slot in which expert outputs need no copy before combine: *base_p is [recv.rows][H] of the combine
 * type, with *stride_p bytes between rows (this follows from the buffer's combine_dtype, also if a call uses a narrower
 * type). stride_p may be NULL.
 *
 * Blocks until the peers have read what an earlier combine left there. The memory may be written until the next combine
 * of the handle begins; ask again before writing for another one. A combine of other memory (args.x) overwrites it.
 *
 * Errors: XEP_ERR_TIMEOUT, XEP_ERR_INVALID (also: the handle has an operation in flight, its dispatch has failed, or it
 * was released), XEP_ERR_PEER, XEP_ERR_BROKEN, XEP_ERR_ABORTED, XEP_ERR_TRANSPORT.
 */
XEP_API xep_status_t xep_handle_combine_input(xep_handle_t *handle, void **base_p, size_t *stride_p);

/**
 * Ends the handle and its views, and gives its slot back: now, or when its operation in flight is done; while another
 * thread is in a call on the buffer, in that call or the next one. Local, does not block. NULL is a no-op.
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
 * Blocks until one of count requests of one group is done; skips those that are NULL. Sets *index_p to its index and
 * returns its status, an error too, each time until it is freed. Each request keeps its own deadline. XEP_ERR_INVALID,
 * with *index_p unchanged, also if all are NULL.
 */
XEP_API xep_status_t xep_request_wait_any(xep_request_t *const *reqs, uint32_t count, uint32_t *index_p);

/**
 * A descriptor for poll() and event loops: it becomes readable when the progress thread of the group has finished an
 * operation. Read 8 bytes from it, then test the requests. What a call of your own finishes is not announced, so test
 * each request once when it has begun, and after a call on its buffer. Deadlines are those of tests: test at them, too.
 * The group keeps the descriptor and closes it. Local. Errors: XEP_ERR_INVALID; XEP_ERR_UNSUPPORTED, unless
 * XEP_PROGRESS is thread; XEP_ERR_NO_MEMORY.
 */
XEP_API xep_status_t xep_group_event_fd(xep_group_t *group, int *fd_p);

/**
 * Blocks until it is known how many rows of a dispatch this rank receives, and where; in mode normal a cached dispatch
 * knows it from the begin. xep_handle_recv() then has the counts and places. The rows themselves (x, topk_idx,
 * topk_weights, scales, src_token) may be read when the request is done. Returns XEP_OK, or the operation's error. For
 * a combine this is xep_request_wait(). With XEP_ON_FAILURE_MASK there are fewer rows at the end than counted here if a
 * rank was left out meanwhile, and a cached dispatch knows nothing before the others have begun.
 */
XEP_API xep_status_t xep_request_wait_counts(xep_request_t *req);

/**
 * Frees the request, which may not be used again; its operation goes on, and the next call on its handle waits for it.
 * Local, does not block. NULL is a no-op.
 */
XEP_API void xep_request_free(xep_request_t *req);

#ifdef __cplusplus
}
#endif

#endif
