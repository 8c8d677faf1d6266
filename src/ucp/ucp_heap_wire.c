/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Mapped peers need neither the lock nor UCX: a store is all there is. Every offset is checked against the heap, as
 * modes compute offsets from what peers wrote.
 */
#include "ucp_heap.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "error.h"
#include "ucp_link.h"
#include "ucp_peer.h"
#include "ucp_protocol.h"
#include "ucp_registry.h"

static xep_ucp_heap_t *heap_of(xep_wire_t *wire)
{
    return (xep_ucp_heap_t *)wire;
}

/* the mode computes offset and bytes from what peers wrote: a wild value must not leave this process */
static xep_status_t check_range(const xep_ucp_heap_t *heap, uint32_t rank, uint64_t offset, uint64_t bytes)
{
    if (bytes <= heap->super.bytes && offset <= heap->super.bytes - bytes && rank < heap->transport->nranks)
        return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid range in the heap of rank %u: %" PRIu64 " bytes at %" PRIu64 " (of %" PRIu64 ")", rank,
                    bytes, offset, heap->super.bytes);
}

/* the link, in a state that is not NEW */
static xep_ucp_link_t *open_link(xep_ucp_heap_t *heap, uint32_t rank)
{
    xep_ucp_link_t *link = &heap->links[rank];
    if (link->state != XEP_UCP_LINK_NEW) return link;
    xep_ucp_lock(heap->transport);
    (void)xep_ucp_link_open(link); /* the state has it too */
    xep_ucp_unlock(heap->transport);
    return link;
}

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    return rank < heap->transport->nranks ? open_link(heap, rank)->base : NULL;
}

/*
 * A store with release: a rank that sees the signal sees the stores before it. A put of newer UCX would make a system
 * call.
 */
static void store_signal(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)(link->base + offset), value, memory_order_release);
}

xep_status_t xep_ucp_heap_count(const xep_ucp_heap_t *heap, size_t bytes, xep_status_t status)
{
    _Atomic uint64_t *moved = heap->super.moved;
    if (moved != NULL && status == XEP_OK)
        atomic_store_explicit(moved, atomic_load_explicit(moved, memory_order_relaxed) + bytes, memory_order_relaxed);
    return status;
}

/* XEP_INPROGRESS means that nothing was taken: the caller calls again with the same bytes. */
static xep_status_t remote_put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes)
{
    if (xep_ucp_link_is_spared(link)) return XEP_OK;
    xep_status_t status = xep_ucp_link_check(link);
    if (status != XEP_OK || bytes == 0) return status;
    if (!link->protocol->has_room(link, bytes)) return XEP_INPROGRESS;
    return xep_ucp_heap_count(link->heap, bytes, link->protocol->put(link, offset, src, bytes));
}

static xep_status_t wire_put(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_status_t status = check_range(heap, rank, offset, bytes);
    if (status != XEP_OK) return status;
    xep_ucp_link_t *link = open_link(heap, rank);
    if (link->state == XEP_UCP_LINK_MAPPED) {
        if (bytes != 0) memcpy(link->base + offset, src, bytes);
        return XEP_OK;
    }
    xep_ucp_lock(heap->transport);
    status = remote_put(link, offset, src, bytes);
    xep_ucp_unlock(heap->transport);
    return status;
}

/* asks for room for both first, as a put that was sent without its signal could not be taken back */
static xep_status_t remote_put_signal(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes,
                                      uint64_t signal_offset, uint64_t value)
{
    if (xep_ucp_link_is_spared(link)) return XEP_OK;
    xep_status_t status = xep_ucp_link_check(link);
    if (status != XEP_OK) return status;
    if (!link->protocol->has_room(link, bytes)) return XEP_INPROGRESS;
    if (bytes != 0) status = xep_ucp_heap_count(link->heap, bytes, link->protocol->put(link, offset, src, bytes));
    return status == XEP_OK ? link->protocol->signal(link, signal_offset, value) : status;
}

static xep_status_t wire_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t signal_offset, uint64_t value)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_status_t status = check_range(heap, rank, offset, bytes);
    if (status == XEP_OK) status = check_range(heap, rank, signal_offset, sizeof value);
    if (status != XEP_OK) return status;
    assert(signal_offset % sizeof value == 0);
    xep_ucp_link_t *link = open_link(heap, rank);
    if (link->state == XEP_UCP_LINK_MAPPED) {
        if (bytes != 0) memcpy(link->base + offset, src, bytes);
        store_signal(link, signal_offset, value);
        return XEP_OK;
    }
    xep_ucp_lock(heap->transport);
    status = remote_put_signal(link, offset, src, bytes, signal_offset, value);
    xep_ucp_unlock(heap->transport);
    return status;
}

static xep_status_t remote_signal_later(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    if (xep_ucp_link_is_spared(link)) return XEP_OK;
    xep_status_t status = xep_ucp_link_check(link);
    if (status != XEP_OK) return status;
    return link->protocol->has_room(link, 0) ? link->protocol->signal_later(link, offset, value) : XEP_INPROGRESS;
}

static xep_status_t wire_signal_later(xep_wire_t *wire, uint32_t rank, uint64_t offset, uint64_t value)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_status_t status = check_range(heap, rank, offset, sizeof value);
    if (status != XEP_OK) return status;
    assert(offset % sizeof value == 0);
    xep_ucp_link_t *link = open_link(heap, rank);
    if (link->state == XEP_UCP_LINK_MAPPED) {
        store_signal(link, offset, value);
        return XEP_OK;
    }
    xep_ucp_lock(heap->transport);
    status = remote_signal_later(link, offset, value);
    xep_ucp_unlock(heap->transport);
    return status;
}

static xep_status_t remote_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes)
{
    xep_status_t status = xep_ucp_link_check(link);
    if (status != XEP_OK || bytes == 0) return status;
    if (!xep_ucp_rma_has_room(link, bytes)) return XEP_INPROGRESS;
    return xep_ucp_heap_count(link->heap, bytes, xep_ucp_rma_get(link, offset, dst, bytes));
}

static xep_status_t wire_get(xep_wire_t *wire, uint32_t rank, uint64_t offset, void *dst, size_t bytes)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_status_t status = check_range(heap, rank, offset, bytes);
    if (status != XEP_OK) return status;
    xep_ucp_link_t *link = open_link(heap, rank);
    if (link->state == XEP_UCP_LINK_MAPPED) {
        if (bytes != 0) memcpy(dst, link->base + offset, bytes);
        return XEP_OK;
    }
    xep_ucp_lock(heap->transport);
    status = remote_get(link, offset, dst, bytes);
    xep_ucp_unlock(heap->transport);
    return status;
}

/* If the heap fails during the call, the call says so: else the caller would wait for bytes that are lost. */
static xep_status_t wire_flush(xep_wire_t *wire)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_status_t status;
    if (!heap->used) return XEP_OK; /* all went to mapped peers: nothing was ever held back */
    xep_ucp_lock(heap->transport);
    status = xep_ucp_links_push(heap);
    if (status == XEP_OK && heap->outstanding != 0) status = XEP_INPROGRESS;
    xep_ucp_unlock(heap->transport);
    return atomic_load_explicit(&heap->status, memory_order_relaxed) != XEP_OK ? xep_ucp_heap_status(heap) : status;
}

/* A mark need not send what is gathered in a bounce buffer: those bytes have left their source. */
static uint64_t wire_mark(xep_wire_t *wire)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_ucp_lock(heap->transport);
    uint64_t mark = heap->numbered;
    xep_ucp_unlock(heap->transport);
    return mark;
}

static xep_status_t wire_flush_to(xep_wire_t *wire, uint64_t mark)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_ucp_lock(heap->transport);
    xep_status_t status = heap->oldest != NULL && heap->oldest->number < mark ? XEP_INPROGRESS : XEP_OK;
    xep_ucp_unlock(heap->transport);
    return atomic_load_explicit(&heap->status, memory_order_relaxed) != XEP_OK ? xep_ucp_heap_status(heap) : status;
}

static xep_status_t wire_progress(xep_wire_t *wire)
{
    xep_ucp_heap_t *heap = heap_of(wire);
    xep_status_t status = heap->transport->super.ops->progress(&heap->transport->super);
    return status == XEP_OK ? xep_ucp_heap_status(heap) : status;
}

const xep_wire_ops_t xep_ucp_wire_ops = {
    .size = sizeof(xep_wire_ops_t),
    .map = wire_map,
    .put = wire_put,
    .put_signal = wire_put_signal,
    .signal_later = wire_signal_later,
    .get = wire_get,
    .flush = wire_flush,
    .mark = wire_mark,
    .flush_to = wire_flush_to,
    .progress = wire_progress,
};
