/* SPDX-License-Identifier: BSD-3-Clause */

/* A symmetric heap: its memory, the key that lets peers reach it, the peers' keys, its end. */

#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ucp_internal.h"

enum {
    KEY_MAGIC = 0x4b504558, /* "XEPK" where the byte order is ours */
    PAGE = 4096,            /* heaps begin on one on every rank, whatever memory UCX found */
    HUGE_PAGE = 2 << 20
};

/** What a peer needs to reach a heap. The owner writes it, peers read it; the rkey follows. */
typedef struct heap_key {
    uint32_t magic;
    uint32_t rkey_bytes;
    uint64_t heap; /* the owner's name for it, in messages */
    uint64_t base; /* the owner's address of it */
    uint64_t bytes;
} heap_key_t;
static_assert(sizeof(heap_key_t) == 32, "wire format");

static xep_ucp_heap_t *heap_of(xep_heap_wire_t *heap)
{
    return (xep_ucp_heap_t *)heap;
}

static xep_status_t allocate(xep_ucp_heap_t *heap, uint64_t bytes)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = bytes,
        .flags = UCP_MEM_MAP_ALLOCATE, /* with NONBLOCK too, posix writes every page: the same time was measured */
    };
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucs_status_t ret = ucp_mem_map(heap->transport->context, &params, &heap->memory);
    if (ret != UCS_OK) {
        heap->memory = NULL;
        return xep_fail(XEP_ERR_NO_MEMORY, "ucx cannot allocate %" PRIu64 " bytes: %s", bytes, ucs_status_string(ret));
    }
    ret = ucp_mem_query(heap->memory, &attr);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_mem_query: %s", ucs_status_string(ret));
    heap->super.base = attr.address;
    return XEP_OK;
}

static uintptr_t misalignment(const xep_ucp_heap_t *heap)
{
    return (uintptr_t)heap->super.base % PAGE;
}

static void release(xep_ucp_heap_t *heap)
{
    if (heap->memory != NULL) ucp_mem_unmap(heap->transport->context, heap->memory);
    heap->memory = NULL;
}

/* only a kind of memory that the user asked for is not on a page */
static xep_status_t allocate_aligned(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_status_t status = allocate(heap, bytes);
    if (status != XEP_OK || misalignment(heap) == 0) return status;
    release(heap);
    status = allocate(heap, bytes + PAGE);
    if (status == XEP_OK && misalignment(heap) != 0) heap->super.base = (uint8_t *)heap->super.base + PAGE - misalignment(heap);
    return status;
}

static xep_status_t open_memory(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_status_t status = allocate_aligned(heap, bytes);
    if (status != XEP_OK) return status;
    heap->super.bytes = bytes;
    if (bytes >= HUGE_PAGE) (void)madvise(heap->super.base, bytes, MADV_HUGEPAGE); /* a wish */
    if (getenv("UCX_" XEP_UCP_ALLOC_PRIO) != NULL) memset(heap->super.base, 0, bytes); /* may be malloc's */
    return XEP_OK;
}

static xep_status_t make_key(xep_ucp_heap_t *heap)
{
    void *rkey;
    size_t rkey_bytes;
    heap_key_t *key;
    ucs_status_t ret = ucp_rkey_pack(heap->transport->context, heap->memory, &rkey, &rkey_bytes);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_rkey_pack: %s", ucs_status_string(ret));
    key = malloc(sizeof *key + rkey_bytes);
    if (key != NULL) {
        *key = (heap_key_t){KEY_MAGIC, (uint32_t)rkey_bytes, heap->id, (uintptr_t)heap->super.base, heap->super.bytes};
        memcpy(key + 1, rkey, rkey_bytes);
    }
    ucp_rkey_buffer_release(rkey);
    if (key == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a key of %zu bytes", rkey_bytes);
    heap->super.key = key;
    heap->super.key_bytes = sizeof *key + rkey_bytes;
    return XEP_OK;
}

/* gives the heap an id: its place, and a number that is not used again, so that late messages find nothing */
static xep_status_t enter(xep_ucp_heap_t *heap)
{
    xep_ucp_transport_t *transport = heap->transport;
    uint32_t place = 0;
    while (place < transport->nheaps && transport->heaps[place] != NULL) place++;
    if (place == transport->nheaps) {
        xep_ucp_heap_t **heaps = realloc(transport->heaps, (place + 1) * sizeof *heaps);
        if (heaps == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u heaps", place + 1);
        transport->heaps = heaps;
        transport->nheaps++;
    }
    transport->heaps[place] = heap;
    heap->id = (uint64_t)++transport->generation << 32 | place;
    return XEP_OK;
}

xep_ucp_heap_t *xep_ucp_heap_find(const xep_ucp_transport_t *transport, uint64_t id)
{
    uint32_t place = (uint32_t)id;
    xep_ucp_heap_t *heap = place < transport->nheaps ? transport->heaps[place] : NULL;
    return heap != NULL && heap->id == id ? heap : NULL;
}

static void leave(xep_ucp_heap_t *heap)
{
    if (xep_ucp_heap_find(heap->transport, heap->id) == heap) heap->transport->heaps[(uint32_t)heap->id] = NULL;
}

static xep_status_t open_locked(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_status_t status = open_memory(heap, bytes);
    if (status == XEP_OK && heap->transport->nranks != 0)
        status = xep_ucp_inbox_open(heap->super.base, bytes, heap->transport->nranks, heap->transport->stream_bytes, &heap->inbox);
    if (status == XEP_OK) status = enter(heap);
    return status == XEP_OK ? make_key(heap) : status;
}

xep_status_t xep_ucp_heap_open(xep_transport_t *base, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    xep_ucp_transport_t *transport = (xep_ucp_transport_t *)base;
    xep_ucp_heap_t *heap = calloc(1, sizeof *heap);
    xep_status_t status;
    if (heap == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heap");
    heap->super.wire.ops = &xep_ucp_wire_ops;
    heap->transport = transport;
    xep_ucp_lock(transport);
    status = open_locked(heap, bytes);
    if (status != XEP_OK) xep_ucp_heap_free(heap);
    xep_ucp_unlock(transport);
    if (status == XEP_OK) *heap_p = &heap->super;
    return status;
}

static xep_status_t check_key(const xep_ucp_heap_t *heap, uint32_t rank, const heap_key_t *key, size_t bytes)
{
    if (bytes < sizeof *key || key->magic != KEY_MAGIC || key->rkey_bytes != bytes - sizeof *key || key->rkey_bytes == 0)
        return xep_fail(XEP_ERR_PROTOCOL, "what rank %u sent as a key, %zu bytes, is none", rank, bytes);
    if (key->bytes != heap->super.bytes)
        return xep_fail(XEP_ERR_MISMATCH, "the heap of rank %u has %" PRIu64 " bytes, this rank's %" PRIu64, rank, key->bytes,
                        heap->super.bytes);
    return XEP_OK;
}

static xep_status_t set_link(xep_ucp_heap_t *heap, uint32_t rank, const uint8_t *copy, size_t bytes)
{
    xep_ucp_link_t *link = &heap->links[rank];
    heap_key_t key = {0};
    memcpy(&key, copy, bytes < sizeof key ? bytes : sizeof key);
    xep_status_t status = check_key(heap, rank, &key, bytes);
    if (status != XEP_OK) return status;
    *link = (xep_ucp_link_t){.rank = rank, .heap = heap, .rkey_buffer = copy + sizeof key,
                             .remote_base = key.base, .remote_heap = key.heap};
    return XEP_OK;
}

xep_status_t xep_ucp_heap_connect(xep_heap_wire_t *base, const void *const *keys, const size_t *bytes)
{
    xep_ucp_heap_t *heap = heap_of(base);
    uint32_t nranks = heap->transport->nranks;
    size_t total = 0;
    uint8_t *copy;
    for (uint32_t rank = 0; rank < nranks; rank++) total += bytes[rank];
    heap->keys = copy = malloc(total);
    heap->links = calloc(nranks, sizeof heap->links[0]);
    if (copy == NULL || heap->links == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the keys of %u ranks", nranks);
    for (uint32_t rank = 0; rank < nranks; rank++) {
        xep_status_t status;
        memcpy(copy, keys[rank], bytes[rank]);
        status = set_link(heap, rank, copy, bytes[rank]);
        if (status != XEP_OK) return status;
        copy += bytes[rank];
    }
    return XEP_OK;
}

void xep_ucp_heap_fault(xep_ucp_heap_t *heap, xep_status_t status, const char *reason)
{
    if (atomic_load_explicit(&heap->status, memory_order_relaxed) != XEP_OK) return;
    snprintf(heap->reason, sizeof heap->reason, "%s", reason);
    atomic_store_explicit(&heap->status, status, memory_order_release);
}

void xep_ucp_heaps_lost(xep_ucp_transport_t *transport, uint32_t rank, const char *reason)
{
    for (uint32_t place = 0; place < transport->nheaps; place++) {
        xep_ucp_heap_t *heap = transport->heaps[place];
        if (heap == NULL || heap->links == NULL || heap->links[rank].state != XEP_UCP_LINK_REMOTE) continue;
        xep_ucp_heap_fault(heap, XEP_ERR_PEER, reason);
    }
}

xep_status_t xep_ucp_heap_push(xep_ucp_heap_t *heap)
{
    xep_status_t status = XEP_OK;
    while (status == XEP_OK && heap->touched != NULL) {
        xep_ucp_link_t *link = heap->touched;
        status = link->strategy->push(link);
        if (status == XEP_OK) status = xep_ucp_message_settle(link);
        heap->touched = link->next_touched; /* after push, which touches */
        link->touched = false;
    }
    return status;
}

/* what is owed to peers leaves: who has seen the end of an operation may close while its last signals are here */
static void drain(xep_ucp_heap_t *heap)
{
    (void)xep_ucp_heap_push(heap);
    for (uint32_t rank = 0; heap->links != NULL && rank < heap->transport->nranks; rank++) {
        xep_ucp_link_t *link = &heap->links[rank];
        if (link->puts != link->flushed && xep_ucp_link_peer(link)->failed == UCS_OK) (void)xep_ucp_link_flush(link);
    }
}

/* UCX may still read or write what its operations name: until they end, or else until the worker does */
static bool settle(xep_ucp_heap_t *heap)
{
    enum { PATIENCE_NS = 500 * 1000 * 1000 };
    uint64_t deadline = xep_clock_ns() + PATIENCE_NS;
    while (heap->outstanding != 0 && xep_clock_ns() < deadline) {
        xep_ucp_advance(heap->transport);
        xep_ucp_unlock(heap->transport); /* the other heaps go on */
        xep_cpu_relax();
        xep_ucp_lock(heap->transport);
    }
    return heap->outstanding == 0;
}

void xep_ucp_heap_unlink(xep_ucp_heap_t *heap)
{
    for (uint32_t rank = 0; heap->links != NULL && rank < heap->transport->nranks; rank++)
        xep_ucp_link_close(&heap->links[rank]);
}

void xep_ucp_heap_free(xep_ucp_heap_t *heap)
{
    leave(heap);
    xep_ucp_heap_unlink(heap);
    xep_ucp_pool_close(&heap->pool);
    xep_ucp_inbox_close(heap->inbox);
    release(heap);
    free((void *)(uintptr_t)heap->super.key);
    free(heap->links);
    free(heap->keys);
    free(heap);
}

void xep_ucp_heap_close(xep_heap_wire_t *base)
{
    xep_ucp_heap_t *heap = heap_of(base);
    xep_ucp_transport_t *transport;
    if (heap == NULL) return;
    transport = heap->transport;
    xep_ucp_lock(transport);
    leave(heap);
    drain(heap);
    if (settle(heap)) {
        xep_ucp_heap_free(heap);
    } else {
        heap->next = transport->abandoned;
        transport->abandoned = heap;
    }
    xep_ucp_unlock(transport);
}
