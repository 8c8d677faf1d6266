/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A signal is an 8-byte put into a word with one writer, after the puts before it. UCX orders nothing by itself: of
 * 5,000 unfenced 14 KB puts followed by their signal over shared memory, UCX 1.22 showed stale bytes in 4,995. Before
 * 1.14 ucp_worker_fence() orders without waiting, but not with the second protocols, which users can ask for: 64 KB of
 * a busy sender were stale. Since 1.14 it may be a blocking flush, which a wire must not do. In both cases the signal
 * is queued for a non-blocking flush. So it is where the processor reorders stores: if UCX emulates puts the receiver
 * stores the bytes and then the word, and other ranks of its node read both.
 */

#include "ucp_protocol.h"

#include "error.h"
#include "ucp_link.h"
#include "ucp_op.h"

bool xep_ucp_rma_has_room(xep_ucp_link_t *link, size_t bytes)
{
    const xep_ucp_heap_t *heap = link->heap;
    /*
     * a put beyond the limit may go when nothing else is in flight; and bytes that a stopped rank does not take must
     * not keep back what the other ranks say of it
     */
    return heap->inflight == 0 || (heap->super.spares && link->inflight == 0) ||
           (bytes <= heap->transport->inflight && heap->inflight <= heap->transport->inflight - bytes);
}

/* puts counts what a flush has to cover before a signal may go. */
static xep_status_t put_piece(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, bytes);
    ucp_request_param_t param;
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    param = xep_ucp_op_param(op);
    link->puts++;
    xep_ucp_link_touch(link);
    return xep_ucp_op_posted(op, ucp_put_nbx(xep_ucp_peer_of(link)->endpoint, src, bytes, link->remote_base + offset,
                                             link->rkey, &param));
}

/* needed: a failed get is an error even if the peer has said goodbye. */
xep_status_t xep_ucp_rma_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, bytes);
    ucp_request_param_t param;
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->needed = true;
    param = xep_ucp_op_param(op);
    return xep_ucp_op_posted(op, ucp_get_nbx(xep_ucp_peer_of(link)->endpoint, dst, bytes, link->remote_base + offset,
                                             link->rkey, &param));
}

static xep_status_t rma_put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes)
{
    const uint8_t *from = src;
    xep_status_t status = XEP_OK;
    while (status == XEP_OK && bytes != 0) {
        size_t n = bytes < link->cut ? bytes : link->cut;
        status = put_piece(link, offset, from, n);
        offset += n;
        from += n;
        bytes -= n;
    }
    return status;
}

static xep_status_t fenced_signal(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    ucs_status_t ret;
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->offset = offset;
    op->value = value;
    ret = ucp_worker_fence(link->heap->transport->worker);
    if (ret != UCS_OK) return xep_ucp_op_posted(op, UCS_STATUS_PTR(ret));
    return xep_ucp_signal_post(op);
}

static xep_status_t signal_after_puts(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    const xep_ucp_heap_t *heap = link->heap;
    if (heap->transport->fence_orders && heap->twin.memory == NULL) return fenced_signal(link, offset, value);
    return xep_ucp_signals_queue(link, offset, value);
}

static xep_status_t push(xep_ucp_link_t *link)
{
    (void)link; /* nothing is ever held back */
    return XEP_OK;
}

const xep_ucp_protocol_t xep_ucp_rma = {
    .text = "put",
    .has_room = xep_ucp_rma_has_room,
    .put = rma_put,
    .signal = signal_after_puts,
    .signal_later = signal_after_puts,
    .push = push,
};
