/* SPDX-License-Identifier: BSD-3-Clause */

/** Where in the heaps packets, tables and words of ll are. */
#ifndef XEP_CUDA_LL_HEAPS_CUH
#define XEP_CUDA_LL_HEAPS_CUH

#include "cuda_ll_kernels.h"
#include "cuda_words.cuh"

/**
 * Whether a send phase is left out, by all blocks, and with it its receive phase: the buffer is another one since, or
 * has lost step. Epoch would be that of the operation.
 */
__device__ __forceinline__ int is_left_out(const xep_cuda_ll_heaps_t &at, uint64_t epoch)
{
    const int lost = has_lost_step(&at.now->lost, epoch); /* loaded beside the other word, not behind it */
    if (is_stale(at.life)) return 1;
    if (!lost) return 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) at.slot->epoch = epoch;
    return 1;
}

/** What a source says in a turn, in the heap of a rank. */
__device__ __forceinline__ uint64_t line_of(const xep_cuda_ll_heaps_t &at, uint64_t turn, uint32_t source)
{
    return turn % at.ring * at.nranks + source;
}

__device__ __forceinline__ char *notice_in(const xep_cuda_ll_heaps_t &at, char *heap, uint64_t turn, uint32_t source)
{
    return heap + at.notices + line_of(at, turn, source) * sizeof(ll_notice_t);
}

__device__ __forceinline__ char *head_in(const xep_cuda_ll_heaps_t &at, char *heap, uint64_t turn, uint32_t source)
{
    return heap + at.heads + line_of(at, turn, source) * at.head_bytes;
}

/** The rows of a source, in its own heap. */
__device__ __forceinline__ char *items_at(const xep_cuda_ll_heaps_t &at, uint64_t turn, uint32_t source)
{
    return at.peer[source] + at.items + turn % at.ring * at.items_bytes;
}

/** What a writer says of the combines of one of its slots, in the heap of a rank. */
__device__ __forceinline__ char *line_at(const xep_cuda_ll_heaps_t &at, uint32_t heap, uint32_t slot, uint32_t writer)
{
    return at.peer[heap] + at.line + (slot * (uint64_t)at.nranks + writer) * at.line_bytes;
}

/** Words of a source for a turn, in the heap of a rank. */
__device__ __forceinline__ xep_cuda_ll_words_t *words_in(const xep_cuda_ll_heaps_t &at, char *heap, uint64_t turn,
                                                         uint32_t source)
{
    return (xep_cuda_ll_words_t *)(heap + at.words) + line_of(at, turn, source);
}

__device__ __forceinline__ xep_cuda_ll_words_t *words_at(const xep_cuda_ll_heaps_t &at, uint32_t heap, uint64_t turn,
                                                         uint32_t source)
{
    return words_in(at, at.peer[heap], turn, source);
}

/** What a rank has summed for a token of a slot of this heap. */
__device__ __forceinline__ char *sum_at(const xep_cuda_ll_heaps_t &at, uint32_t heap, uint64_t sums, uint64_t stride,
                                        uint32_t slot, uint32_t owner, uint32_t token)
{
    return at.peer[heap] + sums + ((slot * (uint64_t)at.nranks + owner) * at.tokens + token) * stride;
}

/** First rows of a rank's experts, as they are told for a slot of the heap. */
__device__ __forceinline__ uint32_t *table_at(const xep_cuda_ll_heaps_t &at, uint32_t heap, uint32_t slot,
                                              uint32_t owner)
{
    return (uint32_t *)(at.peer[heap] + at.tables + (slot * (uint64_t)at.nranks + owner) * at.table_bytes);
}

#endif
