/* SPDX-License-Identifier: BSD-3-Clause */

/** A symmetric heap: its memory, the key that lets peers reach it, the peers' keys, its end. */
#ifndef XEP_UCP_HEAP_H
#define XEP_UCP_HEAP_H

#include "ucp_objects.h"

/** The transport's operations of these names; open and close take the lock. */
xep_status_t xep_ucp_heap_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p);
xep_status_t xep_ucp_heap_connect(xep_heap_wire_t *heap, const void *const *keys, const size_t *bytes);
void xep_ucp_heap_close(xep_heap_wire_t *heap);
void xep_ucp_heap_fence_off(xep_heap_wire_t *heap, uint32_t rank);
int xep_ucp_heap_is_behind(xep_heap_wire_t *heap, uint32_t rank);

/** Releases the peers' keys; needs the worker. */
void xep_ucp_heap_unlink(xep_ucp_heap_t *heap);

/** Adds the key of a twin at this address of the caller's. Before the key is exchanged. */
xep_status_t xep_ucp_heap_add_key(xep_ucp_heap_t *heap, uint64_t twin, const void *rkey, size_t bytes);

/** Frees the heap, of which UCX has no operation any more. */
void xep_ucp_heap_free(xep_ucp_heap_t *heap);

/* ---- ucp_heap_wire.c ---- */

/* Mapped peers by loads and stores, the others by the link's protocol. */

/** Its functions take the lock where they need it. */
extern const xep_wire_ops_t xep_ucp_wire_ops;

/** Counts bytes that UCX has taken, if status is XEP_OK, and returns it. Under the lock, so there is one writer. */
xep_status_t xep_ucp_heap_count(const xep_ucp_heap_t *heap, size_t bytes, xep_status_t status);

/* ---- ucp_heap_direct.c ---- */

/* The twin of a part of a heap in the memory of a device, and puts from device to device (xep/direct.h). */

/** The transport's operations heap_twin and heap_put_direct; they take the lock. */
xep_status_t xep_ucp_direct_open(xep_heap_wire_t *heap, uint64_t begin, const xep_memory_range_t *rows,
                                 const xep_memory_range_t *inputs);
xep_status_t xep_ucp_direct_put(xep_heap_wire_t *heap, uint32_t rank, uint64_t offset, const void *src, size_t bytes);

#endif
