/* SPDX-License-Identifier: BSD-3-Clause */

/* Checks for dispatches in pieces, beside those of all operations. */
#include "api_check.h"

#include "error.h"
#include "request.h"

/* A capacity concerns a whole dispatch; rows in place are not received; pieces are cut out of a compact layout. */
xep_status_t xep_check_pieces(const xep_buffer_t *buffer, const xep_dispatch_args_t *a)
{
    if (!buffer->shape.in_pieces)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_DISPATCH_PIECES (without XEP_BUFFER_PIECES)");
    if ((a->flags & XEP_DISPATCH_IN_PLACE) != 0)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_DISPATCH_PIECES with XEP_DISPATCH_IN_PLACE");
    if (a->arrangement == XEP_ROWS_BY_EXPERT_PADDED)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid arrangement: XEP_ROWS_BY_EXPERT_PADDED (with XEP_DISPATCH_PIECES: compact)");
    if (a->capacity != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid capacity: %llu rows (0 with XEP_DISPATCH_PIECES)",
                        (unsigned long long)a->capacity);
    return XEP_OK;
}

/*
 * Sums are made of the outputs of all pieces: all must be there, and be of one kind. A rank that got no rows with this
 * piece has no weights to give, so there it is not asked for them.
 */
static xep_status_t check_kind(const xep_handle_t *h, const xep_combine_args_t *a)
{
    const xep_outputs_t *kind = &h->outputs;
    if (kind->state != XEP_OUTPUTS_TAKEN) return XEP_OK;
    if (a->dtype != kind->dtype)
        return xep_fail(XEP_ERR_INVALID, "invalid dtype: %s (%s, as with the first piece)", xep_dtype_name(a->dtype),
                        xep_dtype_name(kind->dtype));
    if (a->hidden != kind->hidden)
        return xep_fail(XEP_ERR_INVALID, "invalid hidden: %u (%u, as with the first piece)", a->hidden, kind->hidden);
    if (h->recv.rows != 0 && (a->topk_weights != NULL) != kind->weighted)
        return xep_fail(XEP_ERR_INVALID, "topk_weights %s NULL (with the first piece they %s)",
                        a->topk_weights == NULL ? "is" : "is not", kind->weighted ? "were not" : "were");
    return XEP_OK;
}

xep_status_t xep_check_combined_pieces(const xep_handle_t *h, const xep_combine_args_t *a)
{
    const xep_recv_t *recv = &h->recv;
    if (recv->piece + 1 < recv->pieces)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: it shows piece %llu of %llu (combine the last one)",
                        (unsigned long long)recv->piece + 1, (unsigned long long)recv->pieces);
    if (h->outputs.state == XEP_OUTPUTS_NONE)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: earlier pieces had no outputs (args of xep_handle_next())");
    if (h->combined)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: it was combined (once, with %llu pieces)",
                        (unsigned long long)recv->pieces);
    return check_kind(h, a);
}

/*
 * As the args of a combine, which core and mode take them for. What a piece does not have, out, bias and a stream, is 0
 * there. The row's bytes are of no use here: nothing else has rows of them.
 */
static xep_status_t check_outputs(const xep_handle_t *h, const xep_next_args_t *args, xep_combine_args_t *a)
{
    uint64_t row;
    if (args->reserved != 0) return xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", args->reserved);
    if (h->outputs.state == XEP_OUTPUTS_NONE)
        return xep_fail(XEP_ERR_INVALID, "args must be NULL, as with the first piece");
    *a = (xep_combine_args_t){.size = sizeof *a,
                              .x = args->x,
                              .x_stride = args->x_stride,
                              .dtype = args->dtype,
                              .hidden = args->hidden,
                              .topk_weights = args->topk_weights,
                              .topk_weights_stride = args->topk_weights_stride,
                              .timeout_ms = args->timeout_ms,
                              .wait_ns = args->wait_ns};
    xep_status_t status = xep_check_outputs(h, a, &row);
    return status == XEP_OK ? check_kind(h, a) : status;
}

/* Whether there will be a combine is said with the first piece, for all of them. */
xep_status_t xep_check_next(xep_handle_t *h, const xep_next_args_t *args, xep_combine_args_t *outputs)
{
    const xep_recv_t *recv = &h->recv;
    xep_status_t status = xep_require_idle(h);
    if (status != XEP_OK) return status;
    if (recv->piece + 1 >= recv->pieces)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: it shows the last of %llu piece%s",
                        (unsigned long long)recv->pieces, recv->pieces == 1 ? "" : "s");
    if (args != NULL) return check_outputs(h, args, outputs);
    if (h->outputs.state != XEP_OUTPUTS_TAKEN) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "args must not be NULL, as with the first piece");
}
