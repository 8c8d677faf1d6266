/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Records are allocated in blocks that stay until the transport is closed: UCX has pointers to them, and the steady
 * state allocates nothing.
 */
#include "ucp_op.h"

#include <stdio.h>
#include <stdlib.h>

#include "error.h"
#include "ucp_memory.h"
#include "ucp_peer.h"
#include "ucp_registry.h"

enum { BLOCK_OPS = 64 };

/* Adds a block: there are as many records as were ever in flight at once. */
static xep_status_t grow(xep_ucp_transport_t *transport)
{
    void **blocks = realloc(transport->op_blocks, (transport->nop_blocks + 1) * sizeof *blocks);
    xep_ucp_op_t *ops;
    if (blocks == NULL) goto fail;
    transport->op_blocks = blocks;
    ops = malloc(BLOCK_OPS * sizeof *ops);
    if (ops == NULL) goto fail;
    blocks[transport->nop_blocks++] = ops;
    for (size_t i = 0; i < BLOCK_OPS; i++) {
        ops[i].next = transport->free_ops;
        transport->free_ops = &ops[i];
    }
    return XEP_OK;

fail:
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %d more operations", BLOCK_OPS);
}

/* In the order of their numbers: the first one tells up to which number all are done. */
static void list(xep_ucp_heap_t *heap, xep_ucp_op_t *op)
{
    op->number = heap->numbered++;
    op->older = heap->newest;
    if (op->older != NULL) op->older->newer = op;
    else heap->oldest = op;
    heap->newest = op;
}

static void unlist(xep_ucp_heap_t *heap, const xep_ucp_op_t *op)
{
    if (op->older != NULL) op->older->newer = op->newer;
    else heap->oldest = op->newer;
    if (op->newer != NULL) op->newer->older = op->older;
    else heap->newest = op->older;
}

/*
 * An op counts as outstanding until it ends, in whatever way: a heap is freed only when nothing of it is outstanding.
 */
xep_ucp_op_t *xep_ucp_op_get(xep_ucp_link_t *link, size_t bytes)
{
    xep_ucp_transport_t *transport = link->heap->transport;
    xep_ucp_op_t *op;
    if (transport->free_ops == NULL && grow(transport) != XEP_OK) return NULL;
    op = transport->free_ops;
    transport->free_ops = op->next;
    *op = (xep_ucp_op_t){.link = link, .bytes = bytes};
    link->inflight += bytes;
    link->outstanding++;
    link->heap->inflight += bytes;
    link->heap->outstanding++;
    list(link->heap, op);
    return op;
}

/*
 * UCX has many codes for a lost connection. Any error of an operation means that the peer cannot be reached any more.
 */
static xep_status_t status_of(ucs_status_t status)
{
    return status == UCS_ERR_NO_MEMORY ? XEP_ERR_NO_MEMORY
           : UCS_STATUS_IS_ERR(status) ? XEP_ERR_PEER
                                       : XEP_ERR_TRANSPORT;
}

static void fault(xep_ucp_link_t *link, ucs_status_t status)
{
    char reason[256];
    snprintf(reason, sizeof reason, "bytes to or from rank %u were lost: %s", link->rank, ucs_status_string(status));
    xep_ucp_heap_fault(link->heap, status_of(status), reason);
}

/* If the heap spares ranks, only the rank is lost. But lack of memory concerns every rank. */
static int is_spared(const xep_ucp_link_t *link, ucs_status_t status)
{
    return link->heap->super.spares && status != UCS_ERR_NO_MEMORY;
}

static void failed(xep_ucp_op_t *op, ucs_status_t status)
{
    xep_ucp_peer_t *peer = xep_ucp_peer_of(op->link);
    if (is_spared(op->link, status)) {
        if (peer->failed == UCS_OK) xep_ucp_peer_lose(peer, status, ucs_status_string(status));
    } else if (op->needed || !peer->left) { /* a rank that has left does not need it: it had all it waited for */
        fault(op->link, status);
    }
}

static void uncount(const xep_ucp_op_t *op)
{
    xep_ucp_link_t *link = op->link;
    xep_ucp_heap_t *heap = link->heap;
    link->inflight -= op->bytes;
    link->outstanding--;
    if (link->fenced_off) {
        heap->left_over--;
    } else {
        heap->inflight -= op->bytes;
        heap->outstanding--;
        unlist(heap, op);
    }
}

void xep_ucp_ops_fence_off(xep_ucp_link_t *link)
{
    for (xep_ucp_op_t *op = link->heap->oldest; op != NULL; op = op->newer)
        if (op->link == link) unlist(link->heap, op);
}

void xep_ucp_op_done(xep_ucp_op_t *op, ucs_status_t status)
{
    xep_ucp_heap_t *heap = op->link->heap;
    if (status != UCS_OK) failed(op, status);
    uncount(op);
    if (op->bounce != NULL) xep_ucp_pool_put(&heap->pool, op->bounce);
    free(op->ctl);
    op->next = heap->transport->free_ops;
    heap->transport->free_ops = op;
}

static void completed(void *request, ucs_status_t status, void *arg)
{
    xep_ucp_op_done(arg, status);
    ucp_request_free(request);
}

ucp_request_param_t xep_ucp_op_param(xep_ucp_op_t *op)
{
    return (ucp_request_param_t){.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = completed,
                                 .user_data = op};
}

/* UCX calls back only for operations that it keeps: those that ended or failed at once are completed here. */
xep_status_t xep_ucp_op_posted(xep_ucp_op_t *op, ucs_status_ptr_t request)
{
    const xep_ucp_link_t *link = op->link;
    uint32_t rank = link->rank;
    if (UCS_PTR_IS_PTR(request)) return XEP_OK;
    xep_ucp_op_done(op, UCS_PTR_STATUS(request));
    if (request == NULL || is_spared(link, UCS_PTR_STATUS(request))) return XEP_OK;
    return xep_fail(status_of(UCS_PTR_STATUS(request)), "ucx cannot send to rank %u: %s", rank,
                    ucs_status_string(UCS_PTR_STATUS(request)));
}

void xep_ucp_ops_close(xep_ucp_transport_t *transport)
{
    for (size_t i = 0; i < transport->nop_blocks; i++) free(transport->op_blocks[i]);
    free(transport->op_blocks);
}
