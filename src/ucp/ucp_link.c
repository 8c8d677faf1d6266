/* SPDX-License-Identifier: BSD-3-Clause */

/* A heap on a rank: how it is reached, and the line of signals that wait for their puts. */

#include "ucp_internal.h"

static xep_status_t unpack(xep_ucp_link_t *link)
{
    ucs_status_t ret = ucp_ep_rkey_unpack(xep_ucp_link_peer(link)->endpoint, link->rkey_buffer, &link->rkey);
    if (ret == UCS_OK) return XEP_OK;
    return xep_fail(XEP_ERR_TRANSPORT, "the key of rank %u cannot be used: %s", link->rank, ucs_status_string(ret));
}

/* whether base is set: an address here for the rank's region */
static bool map(xep_ucp_link_t *link)
{
    void *address;
    if (link->heap->transport->map == XEP_MAP_NEVER || !xep_ucp_link_peer(link)->may_map) return false;
    if (ucp_rkey_ptr(link->rkey, link->remote_base, &address) != UCS_OK) return false;
    link->base = address;
    return true;
}

/* staging memory, once a heap: all its links that need some have the same strategy or chunks of the same size do */
static xep_status_t open_pool(xep_ucp_heap_t *heap, const xep_ucp_strategy_t *strategy)
{
    xep_ucp_transport_t *transport = heap->transport;
    size_t chunk_bytes = xep_ucp_strategy_chunk(transport, strategy);
    uint64_t most = transport->inflight < XEP_UCP_STAGING ? transport->inflight : XEP_UCP_STAGING;
    size_t nchunks;
    if (chunk_bytes == 0 || heap->pool.slab != NULL) return XEP_OK;
    nchunks = (size_t)(most / chunk_bytes);
    /* a chunk may lie open for every rank: then some must be left that are in flight and come back */
    if (nchunks < (size_t)transport->nranks + 2) nchunks = (size_t)transport->nranks + 2;
    return xep_ucp_pool_open(&heap->pool, chunk_bytes, nchunks);
}

static xep_status_t open_remote(xep_ucp_link_t *link)
{
    const xep_ucp_strategy_t *strategy = xep_ucp_strategy(xep_ucp_link_peer(link));
    xep_status_t status = open_pool(link->heap, strategy);
    if (status != XEP_OK) return status;
    link->strategy = strategy;
    link->waiting_tail = &link->waiting;
    link->socket = xep_ucp_peer_is_tcp(xep_ucp_link_peer(link));
    link->heap->used = true;
    atomic_store_explicit(&link->heap->transport->urgent, true, memory_order_relaxed);
    return XEP_OK;
}

static xep_status_t reach(xep_ucp_link_t *link, xep_ucp_link_state_t *state_p)
{
    xep_status_t status;
    *state_p = XEP_UCP_LINK_MAPPED;
    if (link->rank == link->heap->transport->rank) {
        link->base = link->heap->super.base;
        return XEP_OK;
    }
    status = xep_ucp_peer_connect(xep_ucp_link_peer(link));
    if (status == XEP_OK) status = unpack(link);
    if (status != XEP_OK || map(link)) return status;
    *state_p = XEP_UCP_LINK_REMOTE;
    return open_remote(link);
}

xep_status_t xep_ucp_link_open(xep_ucp_link_t *link)
{
    xep_ucp_link_state_t state;
    xep_status_t status;
    if (link->state != XEP_UCP_LINK_NEW) return XEP_OK;
    status = reach(link, &state);
    link->state = status == XEP_OK ? state : XEP_UCP_LINK_BROKEN;
    if (status != XEP_OK) xep_log(XEP_LOG_ERROR, "%s", xep_last_error());
    xep_ucp_peer_found(xep_ucp_link_peer(link), link->state);
    return status;
}

void xep_ucp_link_close(xep_ucp_link_t *link)
{
    if (link->rkey != NULL) ucp_rkey_destroy(link->rkey);
    link->rkey = NULL;
}

void xep_ucp_link_touch(xep_ucp_link_t *link)
{
    if (link->touched) return;
    link->touched = true;
    link->next_touched = link->heap->touched;
    link->heap->touched = link;
}

/* flushes end in ucp_worker_progress, where no UCX call should be made: the transport advances the link after it */
static void flush_ended(xep_ucp_op_t *op, ucs_status_t status)
{
    xep_ucp_link_t *link = op->link;
    xep_ucp_transport_t *transport = link->heap->transport;
    link->flushing = false;
    if (status == UCS_OK && op->mark > link->flushed) link->flushed = op->mark;
    xep_ucp_op_done(op, status);
    if (link->ready) return;
    link->ready = true;
    link->next_ready = transport->ready;
    transport->ready = link;
}

static void flush_completed(void *request, ucs_status_t status, void *arg)
{
    flush_ended(arg, status);
    ucp_request_free(request);
}

xep_status_t xep_ucp_link_flush(xep_ucp_link_t *link)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    ucp_request_param_t param;
    ucs_status_ptr_t request;
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->mark = link->puts;
    param = xep_ucp_op_param(op);
    param.cb.send = flush_completed;
    request = ucp_ep_flush_nbx(xep_ucp_link_peer(link)->endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) {
        link->flushing = true;
        return XEP_INPROGRESS;
    }
    if (request == NULL) link->flushed = op->mark;
    return xep_ucp_op_posted(op, request);
}

static xep_ucp_op_t *take_waiting(xep_ucp_link_t *link)
{
    xep_ucp_op_t *op = link->waiting;
    link->waiting = op->next;
    if (link->waiting == NULL) link->waiting_tail = &link->waiting;
    return op;
}

/* the heap is broken: nobody will see these */
static void drop_waiting(xep_ucp_link_t *link)
{
    while (link->waiting != NULL) xep_ucp_op_done(take_waiting(link), UCS_OK);
}

xep_status_t xep_ucp_link_advance(xep_ucp_link_t *link)
{
    xep_status_t status = XEP_OK;
    if (atomic_load_explicit(&link->heap->status, memory_order_relaxed) != XEP_OK) drop_waiting(link);
    while (status == XEP_OK && link->waiting != NULL) {
        if (link->waiting->mark <= link->flushed) status = link->strategy->post_signal(take_waiting(link));
        else if (link->flushing) break;
        else status = xep_ucp_link_flush(link);
    }
    return status == XEP_INPROGRESS ? XEP_OK : status;
}

xep_status_t xep_ucp_link_queue(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->offset = offset;
    op->value = value;
    op->mark = link->puts;
    op->next = NULL;
    *link->waiting_tail = op;
    link->waiting_tail = &op->next;
    return xep_ucp_link_advance(link);
}
