/* SPDX-License-Identifier: BSD-3-Clause */

/* Slabs, cut into chunks; the chunk given back last is taken first, so that few pages are touched. */
#define _GNU_SOURCE
#include "ucp_pool.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "error.h"

xep_status_t xep_ucp_pool_grow(xep_ucp_pool_t *pool, size_t nchunks)
{
    /* reserved, not touched: chunks that are never in use at once cost nothing */
    size_t stride = XEP_UCP_HEADROOM + pool->chunk_bytes, bytes = stride * nchunks;
    xep_ucp_slab_t *slab = calloc(1, sizeof *slab + nchunks * sizeof slab->chunks[0]);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == NULL || memory == MAP_FAILED) goto fail;
    slab->next = pool->slabs;
    slab->memory = memory;
    slab->bytes = bytes;
    pool->slabs = slab;
    for (size_t i = nchunks; i-- > 0;) {
        slab->chunks[i].data = (uint8_t *)memory + i * stride + XEP_UCP_HEADROOM;
        xep_ucp_pool_put(pool, &slab->chunks[i]);
    }
    return XEP_OK;

fail:
    if (memory != MAP_FAILED) munmap(memory, bytes);
    free(slab);
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %zu chunks of %zu bytes to put rows together in", nchunks,
                    pool->chunk_bytes);
}

void xep_ucp_pool_close(xep_ucp_pool_t *pool)
{
    for (xep_ucp_slab_t *slab = pool->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        munmap(slab->memory, slab->bytes);
        free(slab);
    }
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
