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
    uint64_t step;          /* that it belongs to: so many have ended before, since the buffer was made or reset */
    uint64_t dispatch;      /* which one of its buffer in the step, from 0: the layer, where each has one */
    void *out;              /* [recv.rows][H] to be filled with expert outputs; NULL without rows */
    size_t out_stride;      /* bytes between rows */
    /* in: the buffer's combine_dtype. The function sets it if it writes another type, which the ranks that combine must
     * have, too */
    xep_dtype_t dtype;
    uint32_t reserved;
    /* [recv.rows][K] weights to send back, where the combine has some; set by the function, and valid until its next
     * call. in: NULL */
    const float *topk_weights;
    size_t topk_weights_stride; /* bytes between rows; 0: dense */
} xep_serve_call_t;

/**
 * Runs the experts of this rank. Called in the thread that is in xep_serve(), once for each dispatch or piece as soon
 * as its rows are here, and again for each further combine of it. May call xep_handle_gather() and the like, but
 * neither begins operations nor releases the handle. Anything but XEP_OK ends the call.
 */
typedef xep_status_t (*xep_serve_fn)(void *arg, xep_serve_call_t *call);

typedef struct xep_serve_args {
    size_t size;
    xep_buffer_t *const *buffers; /* [count] of one group, with XEP_BUFFER_SERVED; no handle of this rank lives */
    uint32_t count;
    /* how long to wait for the end of a step once xep_serve_stop() was called; 0: the first buffer's; < 0: no limit */
    int32_t timeout_ms;
    xep_serve_fn fn;
    void *arg; /* passed to fn */
} xep_serve_args_t;

#define XEP_SERVE_ARGS_INIT XEP_INIT_(xep_serve_args_t)

/**
 * Takes part, without tokens, in every dispatch and combine that other ranks begin on these buffers, in any order, and
 * runs the experts of this rank. Nothing is sent while nobody calls, and this rank sleeps.
 *
 * Blocking. It returns XEP_OK between two steps, when xep_serve_stop() was called or a rank that works has said that it
 * was its last step (xep_step_end()). Then this rank may work: its first operations are the first ones of the next
 * step. With no step under way it returns at once.
 *
 * Errors: XEP_ERR_TIMEOUT (no step has ended in time since xep_serve_stop(): call this again, as this rank is still in
 * the step), XEP_ERR_MISMATCH (ranks were seen to end a step behind different operations), XEP_ERR_PEER (a rank has
 * died; with XEP_ON_FAILURE_MASK only if all that worked in the step are out), XEP_ERR_BUSY (a handle of this rank
 * lives), XEP_ERR_UNSUPPORTED (a buffer without XEP_BUFFER_SERVED), XEP_ERR_FUNCTION (fn has failed: the sentence has
 * what it returned), and the errors of operations that leave a buffer broken. Where fn or a begin has failed, this rank
 * gives the buffers up, as xep_buffer_abort() does: operations of other ranks end with the same error, and name this
 * rank. An error that all ranks get for an operation and that leaves the buffer usable (XEP_ERR_OVERFLOW,
 * XEP_ERR_MISMATCH) ends that operation alone.
 */
XEP_API xep_status_t xep_serve(const xep_serve_args_t *args);

/**
 * Tells this rank's xep_serve() with this buffer to return at the end of the step, or, where there is none, its next
 * one. Local, does not block. Any thread may call it, and a signal handler.
 */
XEP_API void xep_serve_stop(xep_buffer_t *buffer);

/** Bits of flags of xep_step_end(). */
enum {
    XEP_STEP_LAST = 1 /* ranks that serve return: nobody needs them after this step */
};

/**
 * Says that this rank's step ends behind the operations that it has begun on these buffers. Every rank that works calls
 * it behind the same operations and with the same buffers: those that are served together. Ranks that serve do not call
 * it. Local, does not block. Errors: XEP_ERR_UNSUPPORTED (a buffer without XEP_BUFFER_SERVED), XEP_ERR_BROKEN,
 * XEP_ERR_ABORTED, XEP_ERR_PEER.
 */
XEP_API xep_status_t xep_step_end(xep_buffer_t *const *buffers, uint32_t count, uint32_t flags);

#ifdef __cplusplus
}
#endif

#endif
