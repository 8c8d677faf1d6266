/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Everything in a key is checked before it is used: it comes from another process. If UCX still has operations of a
 * heap that is closed, the heap is not freed before the worker is gone.
 */
#include "ucp_heap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backoff.h"
#include "error.h"
#include "host.h"
#include "mapping.h"
#include "ucp_intake.h"
#include "ucp_link.h"
#include "ucp_memory.h"
#include "ucp_registry.h"

enum { KEY_MAGIC = 0x4b504558 }; /* "XEPK" where the byte order is ours */

/** What a peer needs to reach a heap. The owner writes it, peers read it; the rkey follows. */
typedef struct heap_key {
    uint32_t magic;
    uint32_t rkey_bytes;
    uint64_t heap; /* the owner's name for it, in messages */
    uint64_t base; /* the owner's address of it */
    uint64_t bytes;
    uint64_t segment, segment_offset; /* of shared memory, and where in it the heap begins; 0, 0: not known */
    xep_ucp_owner_t owner;
    uint64_t twin;            /* the owner's address of the heap's twin, whose rkey follows the other one */
    uint32_t twin_rkey_bytes; /* 0: there is none */
    uint32_t reserved;
} heap_key_t;
static_assert(sizeof(heap_key_t) == 80, "wire format");

static xep_ucp_heap_t *heap_of(xep_heap_wire_t *heap)
{
    return (xep_ucp_heap_t *)heap;
}

/* If the memory has a name that the peer sees, too, the peer can make sure that it maps this very segment. */
static void name_segment(const xep_ucp_heap_t *heap, heap_key_t *key)
{
    xep_mapping_t mapping;
    if (!xep_mapping_find(heap->super.base, &mapping) || !xep_mapping_is_segment(&mapping)) return;
    key->segment = mapping.inode;
    key->segment_offset = mapping.offset;
    key->owner.is_sysv = strncmp(mapping.path, "/SYSV", 5) == 0;
}

/* The key is one block of bytes: the bootstrap knows nothing of its parts. */
static xep_status_t make_key(xep_ucp_heap_t *heap)
{
    void *rkey;
    size_t rkey_bytes;
    heap_key_t *key;
    ucs_status_t ret = ucp_rkey_pack(heap->transport->context, heap->memory, &rkey, &rkey_bytes);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_rkey_pack: %s", ucs_status_string(ret));
    key = malloc(sizeof *key + rkey_bytes);
    if (key != NULL) {
        *key = (heap_key_t){.magic = KEY_MAGIC,
                            .rkey_bytes = (uint32_t)rkey_bytes,
                            .heap = heap->id,
                            .base = (uintptr_t)heap->super.base,
                            .bytes = heap->super.bytes,
                            .owner = {.pid = getpid(), .start = xep_host_start(getpid())}};
        name_segment(heap, key);
        memcpy(key + 1, rkey, rkey_bytes);
    }
    ucp_rkey_buffer_release(rkey);
    if (key == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a key of %zu bytes", rkey_bytes);
    heap->super.key = key;
    heap->super.key_bytes = sizeof *key + rkey_bytes;
    return XEP_OK;
}

xep_status_t xep_ucp_heap_add_key(xep_ucp_heap_t *heap, uint64_t twin, const void *rkey, size_t bytes)
{
    const size_t before = heap->super.key_bytes;
    heap_key_t *key = malloc(before + bytes);
    if (key == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a key of %zu bytes", before + bytes);
    memcpy(key, heap->super.key, before);
    memcpy((char *)key + before, rkey, bytes);
    key->twin = twin;
    key->twin_rkey_bytes = (uint32_t)bytes;
    free((void *)(uintptr_t)heap->super.key);
    heap->super.key = key;
    heap->super.key_bytes = before + bytes;
    return XEP_OK;
}

static xep_status_t open_locked(xep_ucp_heap_t *heap, uint64_t bytes)
{
    xep_status_t status = xep_ucp_memory_open(heap, bytes);
    if (status == XEP_OK)
        status = xep_ucp_intake_open(heap->super.base, bytes, heap->transport->nranks, heap->transport->stream_bytes,
                                     &heap->intake);
    if (status == XEP_OK) status = xep_ucp_registry_enter(heap);
    return status == XEP_OK ? make_key(heap) : status;
}

xep_status_t xep_ucp_heap_open(xep_transport_t *base, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    xep_ucp_transport_t *transport = (xep_ucp_transport_t *)base;
    xep_ucp_heap_t *heap = calloc(1, sizeof *heap);
    xep_status_t status;
    if (heap == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heap");
    heap->super.wire.ops = &xep_ucp_wire_ops;
    heap->super.stream_bytes = transport->stream_bytes;
    heap->transport = transport;
    xep_ucp_lock(transport);
    status = open_locked(heap, bytes);
    if (status != XEP_OK) xep_ucp_heap_free(heap);
    xep_ucp_unlock(transport);
    if (status == XEP_OK) *heap_p = &heap->super;
    return status;
}

/* The key came from another process, which may run another program: nothing of it is used before it was checked. */
static xep_status_t check_key(const xep_ucp_heap_t *heap, uint32_t rank, const heap_key_t *key, size_t bytes)
{
    if (bytes < sizeof *key || key->magic != KEY_MAGIC || key->rkey_bytes == 0 ||
        (uint64_t)key->rkey_bytes + key->twin_rkey_bytes != bytes - sizeof *key)
        return xep_fail(XEP_ERR_PROTOCOL, "invalid key from rank %u: %zu bytes (more than a header of %zu)", rank,
                        bytes, sizeof *key);
    if ((key->twin_rkey_bytes != 0) != (heap->twin.memory != NULL))
        return xep_fail(XEP_ERR_MISMATCH, "rank %u has %s for rows in device memory, this rank has %s", rank,
                        key->twin_rkey_bytes != 0 ? "a key" : "none", heap->twin.memory != NULL ? "one" : "none");
    if (key->bytes != heap->super.bytes)
        return xep_fail(XEP_ERR_MISMATCH,
                        "wrong size of the heap of rank %u: %" PRIu64 " bytes (%" PRIu64 ", as this rank's)", rank,
                        key->bytes, heap->super.bytes);
    return XEP_OK;
}

/* Copies the key: its bytes may be unaligned, and belong to the caller. */
static xep_status_t set_link(xep_ucp_heap_t *heap, uint32_t rank, const uint8_t *copy, size_t bytes)
{
    xep_ucp_link_t *link = &heap->links[rank];
    heap_key_t key = {0};
    memcpy(&key, copy, bytes < sizeof key ? bytes : sizeof key);
    xep_status_t status = check_key(heap, rank, &key, bytes);
    if (status != XEP_OK) return status;
    *link = (xep_ucp_link_t){.rank = rank,
                             .heap = heap,
                             .rkey_buffer = copy + sizeof key,
                             .remote_base = key.base,
                             .remote_heap = key.heap,
                             .twin_buffer = copy + sizeof key + key.rkey_bytes,
                             .twin_base = key.twin,
                             .segment = key.segment,
                             .segment_offset = key.segment_offset,
                             .owner = key.owner};
    return XEP_OK;
}

static xep_status_t set_links(xep_ucp_heap_t *heap, const void *const *keys, const size_t *bytes)
{
    xep_status_t status = XEP_OK;
    uint8_t *copy = heap->keys;
    for (uint32_t rank = 0; status == XEP_OK && rank < heap->transport->nranks; rank++) {
        memcpy(copy, keys[rank], bytes[rank]);
        status = set_link(heap, rank, copy, bytes[rank]);
        copy += bytes[rank];
    }
    return status;
}

xep_status_t xep_ucp_heap_connect(xep_heap_wire_t *base, const void *const *keys, const size_t *bytes)
{
    xep_ucp_heap_t *heap = heap_of(base);
    uint32_t nranks = heap->transport->nranks;
    xep_status_t status;
    size_t total = 0;
    for (uint32_t rank = 0; rank < nranks; rank++) total += bytes[rank];
    heap->keys = malloc(total);
    heap->links = calloc(nranks, sizeof heap->links[0]);
    if (heap->keys == NULL || heap->links == NULL)
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for the keys of %u ranks", nranks);
    else status = set_links(heap, keys, bytes);
    xep_ucp_lock(heap->transport);
    xep_ucp_intake_stream(heap->intake, heap->super.stream_bytes);
    xep_ucp_unlock(heap->transport);
    if (status == XEP_OK) return XEP_OK;
    free(heap->links);
    free(heap->keys);
    heap->links = NULL;
    heap->keys = NULL;
    return status;
}

/*
 * The end of a heap:
 *  1. messages for it no longer find a heap.
 *  2. what peers still wait for is sent.
 *  3. UCX gets half a second to end its operations: a dead peer over shared memory never answers.
 *  4. the memory is freed, after the memory that the core has lent for these operations (release); if UCX still has
 *     some of them, both stay until the worker is gone.
 */

/*
 * sends what peers still wait for: a rank may close as soon as an operation has ended for it, with its last signals
 * still here
 */
static void drain(xep_ucp_heap_t *heap)
{
    (void)xep_ucp_links_push(heap);
    for (uint32_t rank = 0; heap->links != NULL && rank < heap->transport->nranks; rank++) {
        xep_ucp_link_t *link = &heap->links[rank];
        if (link->fenced_off || xep_ucp_peer_of(link)->failed != UCS_OK) continue;
        if (link->puts != link->flushed) (void)xep_ucp_link_flush(link);
    }
}

/* UCX may access the memory of its operations until they end, or until the worker does */
static bool wait_for_ops(xep_ucp_heap_t *heap)
{
    enum { PATIENCE_MS = 500 };
    xep_backoff_t backoff;
    int is_time = 1;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, xep_deadline(PATIENCE_MS));
    while (heap->outstanding != 0 && is_time) {
        xep_ucp_advance(heap->transport);
        xep_ucp_unlock(heap->transport); /* the other heaps go on */
        is_time = xep_backoff_wait(&backoff, atomic_load(&heap->transport->super.moves));
        xep_ucp_lock(heap->transport);
    }
    return heap->outstanding == 0 && heap->left_over == 0;
}

void xep_ucp_heap_unlink(xep_ucp_heap_t *heap)
{
    for (uint32_t rank = 0; heap->links != NULL && rank < heap->transport->nranks; rank++)
        xep_ucp_link_close(&heap->links[rank]);
}

/* In this order: the twin, as release() frees its memory; the keys of peers, the memory, the list of links. */
void xep_ucp_heap_free(xep_ucp_heap_t *heap)
{
    xep_ucp_registry_leave(heap);
    xep_ucp_twin_close(heap);
    if (heap->super.release != NULL) heap->super.release(heap->super.release_arg);
    xep_ucp_heap_unlink(heap);
    xep_ucp_pool_close(&heap->pool);
    xep_ucp_intake_close(heap->intake);
    xep_ucp_memory_close(heap);
    free((void *)(uintptr_t)heap->super.key);
    free(heap->links);
    free(heap->keys);
    free(heap);
}

void xep_ucp_heap_fence_off(xep_heap_wire_t *base, uint32_t rank)
{
    xep_ucp_heap_t *heap = heap_of(base);
    xep_ucp_lock(heap->transport);
    if (rank != heap->transport->rank) xep_ucp_link_fence_off(&heap->links[rank]);
    xep_ucp_unlock(heap->transport);
}

int xep_ucp_heap_is_behind(xep_heap_wire_t *base, uint32_t rank)
{
    xep_ucp_heap_t *heap = heap_of(base);
    const xep_ucp_link_t *link = &heap->links[rank];
    xep_ucp_lock(heap->transport);
    int is_behind = link->outstanding != 0 && !link->fenced_off;
    xep_ucp_unlock(heap->transport);
    return is_behind;
}

void xep_ucp_heap_close(xep_heap_wire_t *base)
{
    xep_ucp_heap_t *heap = heap_of(base);
    xep_ucp_transport_t *transport;
    if (heap == NULL) return;
    transport = heap->transport;
    xep_ucp_lock(transport);
    xep_ucp_registry_leave(heap);
    drain(heap);
    if (wait_for_ops(heap)) {
        xep_ucp_heap_free(heap);
    } else {
        heap->next = transport->abandoned;
        transport->abandoned = heap;
    }
    xep_ucp_unlock(transport);
}
