/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows that are not copied, and rows that are too many for a slot: read in place, gathered, in pieces. */
#ifndef XEP_PIECES_H
#define XEP_PIECES_H

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Memory for the rows of this rank's next dispatch with XEP_DISPATCH_IN_PLACE: [params.tokens][H] of the buffer's
 * dtype, with *stride_p bytes between rows; what is between two rows is the library's. It may be written until a
 * dispatch takes rows from it; ask again before writing for another one, which returns other memory, or the same if no
 * dispatch was made of it. Received rows that are read in place, of whatever rank, stay where they are meanwhile.
 *
 * Blocks until the peers have released the handles of an earlier dispatch whose rows were there, and until every
 * dispatch of rows there that comes after another operation has begun. Errors:
 * XEP_ERR_TIMEOUT, XEP_ERR_UNSUPPORTED (the buffer was made without XEP_BUFFER_SEND_MEMORY), XEP_ERR_BROKEN,
 * XEP_ERR_ABORTED, XEP_ERR_PEER.
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

#ifdef __cplusplus
}
#endif

#endif
