/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Ranks that serve: they have no tokens of their own and run their experts for the others, in one call. Ranks that work
 * say where their steps end; there a rank that serves may begin to work.
 */
#ifndef XEP_SERVE_H
#define XEP_SERVE_H

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A dispatch that a rank serves: what its experts have to do. */
typedef struct xep_serve_call {
    size_t size;
    xep_buffer_t *buffer;
    xep_handle_t *handle;
    const xep_recv_t *recv; /* its rows; of a dispatch in pieces those of one piece */
    uint64_t step;          /* its step, counted from 0 since the buffer was made or reset */
    uint64_t dispatch;      /* its number among the buffer's dispatches of the step, from 0: often the layer */
    void *out;              /* [recv.rows][H] the function writes expert outputs here; NULL without rows */
    size_t out_stride;      /* bytes between rows */
    /* of the outputs; in: the buffer's combine_dtype. The function sets it if it writes another type; the ranks that
     * combine must use the same */
    xep_dtype_t dtype;
    /* local expert that the function has failed for: it sets this before it returns an error, which then names the
     * expert on all ranks. in: the only local expert that has rows here, or -1: there are several, or none */
    int32_t expert;
    /* [recv.rows][K] weights to send back, if the combine wants some. in: NULL; set by the function, whose memory must
     * stay valid until its next call */
    const float *topk_weights;
    size_t topk_weights_stride; /* bytes between rows; 0: dense */
} xep_serve_call_t;

/**
 * Runs the experts of this rank. Called in the thread that is in xep_serve(), once for each dispatch or piece as soon
 * as its rows are here, and again for each further combine of it. May call xep_handle_gather() and the like, but
 * neither begins operations nor releases the handle; xep_serve() with a buffer that is served is XEP_ERR_INVALID.
 * Anything but XEP_OK ends the call.
 */
typedef xep_status_t (*xep_serve_fn)(void *arg, xep_serve_call_t *call);

typedef struct xep_serve_args {
    size_t size;
    /* [count] of one group, with XEP_BUFFER_SERVED; read during the call; all handles are released */
    xep_buffer_t *const *buffers;
    uint32_t count;
    /* deadline for the end of the step, from xep_serve_stop() on; 0: that of the first buffer; < 0: none */
    int32_t timeout_ms;
    xep_serve_fn fn;
    void *arg; /* passed to fn */
} xep_serve_args_t;

#define XEP_SERVE_ARGS_INIT XEP_INIT_(xep_serve_args_t)

/**
 * Takes part, without tokens, in every dispatch and combine that other ranks begin on these buffers, in any order, and
 * runs the experts of this rank. Nothing is sent while nobody calls, and this rank sleeps: until the next operation
 * there is no deadline, and XEP_EXPLAIN says which rank works.
 *
 * Blocking. It returns XEP_OK between two steps, after xep_serve_stop() (at once if no step is under way) or, once for
 * each, after a step that ended with XEP_STEP_LAST. Then this rank may work: its first operations are the first of the
 * next step.
 *
 * Errors: XEP_ERR_TIMEOUT (the step did not end in time after xep_serve_stop(): call this again, as this rank is still
 * in the step), XEP_ERR_MISMATCH (ranks ended a step after different operations), XEP_ERR_PEER (a rank died; with
 * XEP_ON_FAILURE_MASK only if all that worked in the step are out; or there is no other rank), XEP_ERR_BUSY (a handle
 * of this rank is not released), XEP_ERR_UNSUPPORTED (a buffer without XEP_BUFFER_SERVED), XEP_ERR_FUNCTION (fn failed:
 * the sentence has what it returned, and the expert), and the errors of operations that leave a buffer broken. After a
 * failure of fn, or of beginning an operation, this rank gives the buffers up: operations of other ranks end with the
 * same error, which names this rank and the expert. With XEP_ON_FAILURE_MASK they go on without this rank instead, once
 * its process has ended or their deadline has passed. An error that all ranks get for an operation and that leaves the
 * buffer usable (XEP_ERR_OVERFLOW, XEP_ERR_MISMATCH) ends only that operation.
 */
XEP_API xep_status_t xep_serve(const xep_serve_args_t *args);

/**
 * Tells this rank's xep_serve() with this buffer, or its next one if none runs, to return at the end of the step.
 * Local, does not block. Any thread and any signal handler may call it.
 */
XEP_API void xep_serve_stop(xep_buffer_t *buffer);

/**
 * Announces this rank's next operation on this buffer: a dispatch with the arguments of its last dispatch. Ranks that
 * serve begin it meanwhile, and then it waits for them as little as for ranks that call it. Call it when a layer is
 * done and another one follows in the step. Tokens, pointers and strides of that dispatch may be any. Optional: other
 * ranks that work need not call it.
 *
 * Local, does not block. Errors: XEP_ERR_INVALID (this rank has begun no dispatch lately, its last one had the routing
 * of a handle, or one is announced), XEP_ERR_BUSY (each slot holds a handle: release one first), XEP_ERR_UNSUPPORTED (a
 * buffer without XEP_BUFFER_SERVED), and those of xep_step_end(). Until that dispatch has begun, a combine, next piece,
 * xep_step_end() and xep_serve() are XEP_ERR_INVALID. A dispatch with other arguments is XEP_ERR_MISMATCH on all ranks.
 */
XEP_API xep_status_t xep_announce_dispatch(xep_buffer_t *buffer);

/**
 * Announces the layers that follow in the step: the next operations of this rank on this buffer are a dispatch and the
 * combine of its handle, "layers" times, with the arguments of its last dispatch and of its last combine. Ranks that
 * serve take part in each operation as soon as the one before has ended. Until all have begun, any other operation is
 * XEP_ERR_INVALID; so is, also later, a combine of an older handle than the last one's. Where one fails, which it does
 * on all ranks, those behind it are not announced any more.
 *
 * Errors as of xep_announce_dispatch(), and XEP_ERR_INVALID if layers is 0, this rank has begun no combine lately, or
 * its last dispatch was in pieces.
 */
XEP_API xep_status_t xep_announce_layers(xep_buffer_t *buffer, uint32_t layers);

/** Bits of flags of xep_step_end(). */
enum {
    XEP_STEP_LAST = 1 /* ranks that serve return: nobody needs them after this step */
};

/**
 * Ends this rank's step after the operations that it has begun on these buffers. Every rank that works calls it after
 * the same operations and with the same buffers, those that are served together. Ranks that serve do not call it.
 * Local, does not block. Errors: XEP_ERR_UNSUPPORTED (a buffer without XEP_BUFFER_SERVED), XEP_ERR_BROKEN,
 * XEP_ERR_ABORTED, XEP_ERR_PEER.
 */
XEP_API xep_status_t xep_step_end(xep_buffer_t *const *buffers, uint32_t count, uint32_t flags);

#ifdef __cplusplus
}
#endif

#endif
