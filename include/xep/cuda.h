/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows in the memory of CUDA devices: the rules, streams, and rows by expert.
 *
 * A buffer with params.memory XEP_MEMORY_CUDA. All pointers to arrays in the arguments and in xep_recv_t are to memory
 * of the device then, but for the counts and places that mode normal shows in xep_recv_t (src_begin, rank_rows,
 * expert_rows), which are in host memory unless XEP_DISPATCH_COUNTS_THERE says otherwise, and recv_rows_p, which is
 * host memory in mode normal.
 *
 * The rows are in memory of the device that is current in the thread that creates the buffer. Where all ranks map
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
 * host (but for rows with XEP_DIRECT=yes), by the mode, the transports and the threads (params.threads) of host memory,
 * with its sums and its errors. What changes for the caller: a call waits until its stream has come to it, at most for
 * its timeout, and for the request that it comes after. Its request is done when the host has ended the operation, and
 * copies of what it brought are enqueued on the stream, or another error ended it; only tests, waits, calls of other
 * operations and a progress thread take it further. Counts are known then, in ll as well: capacity is exactly what is
 * received where none was asked for. XEP_DISPATCH_COUNTS_THERE (XEP_ERR_UNSUPPORTED) and streams that are captured
 * (XEP_ERR_INVALID) are refused.
 *
 * But with XEP_PROGRESS=thread dispatches of ll with a capacity, or padded, and combines can be captured; without
 * cached, after and XEP_DISPATCH_BALANCE, and not with XEP_DIRECT=yes. That thread takes part in each launch, and calls
 * nothing of CUDA. All ranks capture the same operations, in calls that wait for one another, while no graph of the
 * buffer is running. Launches and calls of a buffer come in the same order on all ranks; streams or events order
 * launches, and calls behind launches, for which they wait; the request of a call is done before a launch that comes
 * after it. Two launches that nothing orders break the buffer (XEP_ERR_PROTOCOL) where the host sees both; else what
 * they bring is undefined. recv_rows_p in host memory is written by each launch; wait_ns is the call's alone. Where
 * ranks differ in launches, XEP_ERR_MISMATCH ends the operation and breaks the buffer. After any error of a launch
 * later ones do nothing, and calls return XEP_ERR_BROKEN with the reason. Destroying the buffer cuts launches short.
 */
#ifndef XEP_CUDA_H
#define XEP_CUDA_H

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- streams ------------------------------------------------------------------ */

/**
 * What is enqueued on stream (as in xep_dispatch_args_t) from now on comes after the operation, and after those of its
 * buffer that were enqueued before this call. Enqueues what is left of the operation, as
 * xep_request_wait() does, and does not wait for the device. Returns as that does; also XEP_ERR_INVALID (no stream of
 * the buffer's device, or one that is being captured, where the program's own events order what the graph has) and
 * XEP_ERR_UNSUPPORTED (a request in host memory).
 */
XEP_API xep_status_t xep_request_stream_wait(xep_request_t *req, void *stream);

/* ---- rows by expert ------------------------------------------------------------- */

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

#ifdef __cplusplus
}
#endif

#endif
