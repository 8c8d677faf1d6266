/* SPDX-License-Identifier: BSD-3-Clause */

/* One slab, cut into chunks; the chunk given back last is taken first, so that few pages are touched. */
#define _GNU_SOURCE
#include "ucp_pool.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "error.h"

xep_status_t xep_ucp_pool_open(xep_ucp_pool_t *pool, size_t chunk_bytes, size_t nchunks)
{
    /* reserved, not touched: chunks that are never in use at once cost nothing */
    size_t stride = XEP_UCP_HEADROOM + chunk_bytes;
    size_t slab_bytes = stride * nchunks;
    xep_ucp_chunk_t *chunks = calloc(nchunks, sizeof *chunks);
    void *slab = mmap(NULL, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunks == NULL || slab == MAP_FAILED) goto fail;
    *pool = (xep_ucp_pool_t){.slab = slab, .slab_bytes = slab_bytes, .chunks = chunks, .chunk_bytes = chunk_bytes};
    for (size_t i = nchunks; i-- > 0;) {
        chunks[i].data = pool->slab + i * stride + XEP_UCP_HEADROOM;
        chunks[i].next = pool->free;
        pool->free = &chunks[i];
    }
    return XEP_OK;

fail:
    if (slab != MAP_FAILED) munmap(slab, slab_bytes);
    free(chunks);
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %zu chunks of %zu bytes to put rows together in", nchunks,
                    chunk_bytes);
}

void xep_ucp_pool_close(xep_ucp_pool_t *pool)
{
    if (pool->slab != NULL) munmap(pool->slab, pool->slab_bytes);
    free(pool->chunks);
}

xep_ucp_chunk_t *xep_ucp_pool_get(xep_ucp_pool_t *pool)
{
    xep_ucp_chunk_t *chunk = pool->free;
    if (chunk == NULL) return NULL;
    pool->free = chunk->next;
    chunk->bytes = 0;
    chunk->nruns = 0;
    return chunk;
}

void xep_ucp_pool_put(xep_ucp_pool_t *pool, xep_ucp_chunk_t *chunk)
{
    chunk->next = pool->free;
    pool->free = chunk;
}
