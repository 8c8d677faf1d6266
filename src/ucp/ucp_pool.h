/* SPDX-License-Identifier: BSD-3-Clause */

/** The staging memory of a heap: chunks in which puts to one rank are put together. */
#ifndef XEP_UCP_POOL_H
#define XEP_UCP_POOL_H

#include "ucp_objects.h"

/** So many chunks more, of chunk_bytes, which is set. */
xep_status_t xep_ucp_pool_grow(xep_ucp_pool_t *pool, size_t nchunks);

/** Without the lock. */
void xep_ucp_pool_close(xep_ucp_pool_t *pool);

/** An empty one; NULL: all are in use. The one given back last: so few pages are touched. */
xep_ucp_chunk_t *xep_ucp_pool_get(xep_ucp_pool_t *pool);
void xep_ucp_pool_put(xep_ucp_pool_t *pool, xep_ucp_chunk_t *chunk);

#endif
