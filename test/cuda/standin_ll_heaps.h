/* SPDX-License-Identifier: BSD-3-Clause */

/** Where in the heaps of ll its kernels find what the host has laid out for them. */
#ifndef TEST_CUDA_STANDIN_LL_HEAPS_H
#define TEST_CUDA_STANDIN_LL_HEAPS_H

#include <stdint.h>

#include "cuda_ll_kernels.h"
#include "standin_words.h"

typedef xep_cuda_ll_heaps_t heaps_t;

static inline uint64_t line_of(const heaps_t *at, uint64_t turn, uint32_t source)
{
    return turn % at->ring * at->nranks + source;
}

static inline uint64_t notice_offset(const heaps_t *at, uint64_t turn, uint32_t source)
{
    return at->notices + line_of(at, turn, source) * sizeof(ll_notice_t);
}

/* Of those of the first entry, which all blocks tell. */
static inline uint64_t words_offset(const heaps_t *at, uint32_t source)
{
    return at->words + source * sizeof(xep_cuda_ll_words_t);
}

static inline xep_cuda_ll_words_t *words_of_turn(const heaps_t *at, uint32_t heap, uint64_t turn, uint32_t source)
{
    return (xep_cuda_ll_words_t *)(void *)(at->peer[heap] + at->words) + line_of(at, turn, source);
}

static inline char *head_of(const heaps_t *at, uint32_t heap, uint64_t turn, uint32_t source)
{
    return at->peer[heap] + at->heads + line_of(at, turn, source) * at->head_bytes;
}

static inline uint32_t *counts_of(const heaps_t *at, uint32_t heap, uint64_t turn, uint32_t source)
{
    return (uint32_t *)(void *)(head_of(at, heap, turn, source) + at->head_counts);
}

static inline char *items_of(const heaps_t *at, uint64_t turn, uint32_t source)
{
    return at->peer[source] + at->items + turn % at->ring * at->items_bytes;
}

static inline uint64_t line_offset(const heaps_t *at, uint32_t slot, uint32_t writer)
{
    return at->line + ((uint64_t)slot * at->nranks + writer) * at->line_bytes;
}

static inline uint32_t *table_of(const heaps_t *at, uint32_t heap, uint32_t slot, uint32_t owner)
{
    return (uint32_t *)(void *)(at->peer[heap] + at->tables + ((uint64_t)slot * at->nranks + owner) * at->table_bytes);
}

/* The receive phase of a send phase that is left out finds a slot without a dispatch. */
static inline int is_left_out(const heaps_t *at)
{
    if (is_stale(&at->life)) return 1;
    if (at->now->lost == 0) return 0;
    at->slot->verdict = XEP_CUDA_LL_LOST;
    at->slot->epoch = at->now->epoch + 1;
    return 1;
}

/* Waits for all ranks that are not out. at: of rank 0; 0: step is lost. */
static inline int await_all(const heaps_t *at, uint64_t first, uint64_t epoch, const xep_cuda_deadline_t *deadline,
                            int decides)
{
    const standin_waiter_t w = {&at->outs, at->peer, at->rank, at->nranks};
    const uint64_t stride = sizeof(xep_cuda_ll_words_t), value = epoch * XEP_CUDA_WHOLE;
    if (at->outs.gone == NULL) return wait_all(at->peer[at->rank], at->nranks, first, stride, value, deadline);
    for (uint32_t r = 0; r < at->nranks; r++) {
        const int how = await_rank(&w, first + r * stride, r, value, epoch, deadline);
        if (how == STANDIN_LATE) return 0;
        if (decides) at->outs.with[r] = (uint32_t)how;
    }
    return !is_left_by_others(&w);
}

#endif
