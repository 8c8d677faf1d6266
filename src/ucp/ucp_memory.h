/* SPDX-License-Identifier: BSD-3-Clause */

/** The memory of a heap: allocated by UCX, so that peers may map it. */
#ifndef XEP_UCP_MEMORY_H
#define XEP_UCP_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "ucp_objects.h"

/** Zeroed, on a page; sets base and bytes. */
xep_status_t xep_ucp_memory_open(xep_ucp_heap_t *heap, uint64_t bytes);
void xep_ucp_memory_close(xep_ucp_heap_t *heap);

/** System V segments that are attached here. */
typedef struct xep_ucp_segments {
    uint64_t *ids;
    size_t count;
    bool incomplete;
} xep_ucp_segments_t;

/** Before UCX makes segments. */
void xep_ucp_memory_list_segments(xep_ucp_segments_t *before);

/** Gives the segments made since then to this user alone. Frees the list. */
void xep_ucp_memory_keep_to_user(xep_ucp_segments_t *before);

/* ---- bounce buffers in which puts to one rank are put together ---- */

/** Adds so many bounce buffers. */
xep_status_t xep_ucp_pool_grow(xep_ucp_pool_t *pool, size_t nchunks);

/** Without the lock. */
void xep_ucp_pool_close(xep_ucp_pool_t *pool);

/** An empty bounce buffer; NULL: all are in use. Takes the one returned last, so that few pages are touched. */
xep_ucp_bounce_t *xep_ucp_pool_get(xep_ucp_pool_t *pool);
void xep_ucp_pool_put(xep_ucp_pool_t *pool, xep_ucp_bounce_t *bounce);

/* ---- twins of heaps, on devices: ucp_heap_direct.c ---- */

/** Unpacks the key of the link's twin. XEP_OK where the heap has none. */
xep_status_t xep_ucp_twin_connect(xep_ucp_link_t *link);

/** Before the device's memory is freed; a no-op for a heap without a twin. */
void xep_ucp_twin_close(xep_ucp_heap_t *heap);

#endif
