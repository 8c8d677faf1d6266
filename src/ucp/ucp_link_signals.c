/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * At most one flush of an endpoint is in flight: it covers all puts before it, and later signals wait together for the
 * next one.
 */
#include "ucp_link.h"

#include "error.h"
#include "ucp_op.h"
#include "ucp_registry.h"

/* A link is on the list once, until the next push. */
void xep_ucp_link_touch(xep_ucp_link_t *link)
{
    if (link->touched) return;
    link->touched = true;
    link->next_touched = link->heap->touched;
    link->heap->touched = link;
}

void xep_ucp_link_make_ready(xep_ucp_link_t *link)
{
    xep_ucp_transport_t *transport = link->heap->transport;
    if (link->ready) return;
    link->ready = true;
    link->next_ready = transport->ready;
    transport->ready = link;
}

/* flushes end in ucp_worker_progress, where no UCX call should be made: the transport advances the link after it */
static void flush_ended(xep_ucp_op_t *op, ucs_status_t status)
{
    xep_ucp_link_t *link = op->link;
    link->flushing = false;
    if (status == UCS_OK && op->mark > link->flushed) link->flushed = op->mark;
    xep_ucp_op_done(op, status);
    xep_ucp_link_make_ready(link);
}

static void flush_completed(void *request, ucs_status_t status, void *arg)
{
    flush_ended(arg, status);
    ucp_request_free(request);
}

/* The mark is taken before the flush is posted: puts made later are not covered by it. */
xep_status_t xep_ucp_link_flush(xep_ucp_link_t *link)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    ucp_request_param_t param;
    ucs_status_ptr_t request;
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->mark = link->puts;
    param = xep_ucp_op_param(op);
    param.cb.send = flush_completed;
    request = ucp_ep_flush_nbx(xep_ucp_peer_of(link)->endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) {
        link->flushing = true;
        return XEP_INPROGRESS;
    }
    if (request == NULL) link->flushed = op->mark;
    return xep_ucp_op_posted(op, request);
}

/* Strictly first in, first out: a signal also promises that all signals before it are there. */
static xep_ucp_op_t *take_queued(xep_ucp_link_t *link)
{
    xep_ucp_op_t *op = link->queued;
    link->queued = op->next;
    if (link->queued == NULL) link->queued_tail = &link->queued;
    return op;
}

void xep_ucp_signals_drop(xep_ucp_link_t *link)
{
    while (link->queued != NULL) xep_ucp_op_done(take_queued(link), UCS_OK);
}

/* The value is put from the op, which stays until UCX is done with it. */
xep_status_t xep_ucp_signal_post(xep_ucp_op_t *op)
{
    xep_ucp_link_t *link = op->link;
    ucp_request_param_t param = xep_ucp_op_param(op);
    link->puts++;
    xep_ucp_link_touch(link);
    if (link->queued != NULL) link->queued->mark = link->puts; /* not before this one */
    return xep_ucp_op_posted(op, ucp_put_nbx(xep_ucp_peer_of(link)->endpoint, &op->value, sizeof op->value,
                                             link->remote_base + op->offset, link->rkey, &param));
}

/* A signal may leave when a flush has covered every put before it. */
xep_status_t xep_ucp_signals_advance(xep_ucp_link_t *link)
{
    xep_status_t status = XEP_OK;
    if (atomic_load_explicit(&link->heap->status, memory_order_relaxed) != XEP_OK) xep_ucp_signals_drop(link);
    while (status == XEP_OK && link->queued != NULL) {
        if (xep_ucp_link_is_spared(link)) {
            xep_ucp_signals_drop(link);
            break;
        }
        if (link->direct_puts != 0) break;
        if (link->queued->mark <= link->flushed) status = xep_ucp_signal_post(take_queued(link));
        else if (link->flushing) break;
        else status = xep_ucp_link_flush(link);
    }
    return status == XEP_INPROGRESS ? XEP_OK : status;
}

/* The mark says after which puts the signal must go: all so far. */
xep_status_t xep_ucp_signals_queue(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->offset = offset;
    op->value = value;
    op->mark = link->puts;
    op->next = NULL;
    *link->queued_tail = op;
    link->queued_tail = &op->next;
    return xep_ucp_signals_advance(link);
}

/* ---- a round of the worker ---- */

/*
 * What a completion makes possible (a signal whose puts were flushed) is done after the round and not in the callback,
 * from which UCX does not expect calls.
 */

void xep_ucp_advance(xep_ucp_transport_t *transport)
{
    if (ucp_worker_progress(transport->worker) != 0)
        atomic_fetch_add_explicit(&transport->super.moves, 1, memory_order_relaxed);
    while (transport->ready != NULL) {
        xep_ucp_link_t *link = transport->ready;
        transport->ready = link->next_ready;
        link->ready = false;
        if (xep_ucp_signals_advance(link) != XEP_OK)
            xep_ucp_heap_fault(link->heap, XEP_ERR_TRANSPORT, xep_last_error());
    }
}
