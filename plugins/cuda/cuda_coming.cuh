/* SPDX-License-Identifier: BSD-3-Clause */

/** Telling of rows while others still come: cuda_coming.h. */
#ifndef XEP_CUDA_COMING_CUH
#define XEP_CUDA_COMING_CUH

#include "cuda_coming.h"
#include "cuda_words.cuh"

/* ---- the dispatch: rows go in the order of tokens, chunk i of all warps at about the same time ---- */

/* Where the next part of a warp's chunks ends: smaller and smaller ones, so that little is left when the last come. */
static __device__ __forceinline__ uint32_t next_part(uint32_t end, uint32_t most)
{
    const uint32_t half = (most - end + 1) / 2, eighth = most / 8 + 1;
    return end + (half < eighth ? half : eighth);
}

/* Which part a warp is in. most: chunks of a warp that has most of them. */
typedef struct passing {
    uint32_t most, end, part;
} passing_t;

static __device__ __forceinline__ passing_t begin_passing(const xep_cuda_coming_t *coming, uint32_t most)
{
    if (coming == nullptr) most = 0;
    return {most, next_part(0, most), 1};
}

/* Whether so many chunks are a part, and another one follows. */
static __device__ __forceinline__ int is_part(const passing_t &p, uint32_t chunks)
{
    return p.end <= chunks && p.end < p.most;
}

/* One thread of each warp: so many of its chunks are stored, or it has no more. */
static __device__ __forceinline__ void pass_parts(xep_cuda_coming_t *coming, passing_t *p, uint32_t chunks)
{
    for (; is_part(*p, chunks); p->end = next_part(p->end, p->most)) add_word_to((char *)&coming->passed[p->part++], 1);
}

/* A warp; tell: to all ranks, by its lanes, how many chunks of each warp are there. */
template <typename F>
static __device__ void tell_parts(const xep_cuda_coming_t *coming, uint32_t rank, uint32_t others, uint32_t warps,
                                  uint32_t most, const xep_cuda_deadline_t &deadline, F tell)
{
    passing_t p = begin_passing(coming, most);
    if (!wait_word((const char *)&coming->passed[0], rank, others, deadline)) return;
    tell(0);
    for (; p.end < p.most; p.end = next_part(p.end, p.most)) {
        if (!wait_word((const char *)&coming->passed[p.part++], rank, warps, deadline)) return;
        tell(p.end);
    }
}

/* One thread of block 0, when rows may move. */
static __device__ __forceinline__ void announce_rows(xep_cuda_coming_t *coming, const char *x, uint64_t epoch)
{
    coming->x = x;
    store_word((char *)&coming->begun, epoch);
}

/* One thread, when all blocks are done. */
static __device__ __forceinline__ void end_coming(xep_cuda_coming_t *coming, uint64_t epoch)
{
    for (uint32_t i = 0; i < XEP_CUDA_PASSED; i++) coming->passed[i] = 0;
    store_word((char *)&coming->ended, epoch);
}

/* ---- kernels that begin beside it ---- */

/* The epoch of the dispatch that brings rows to x; 0: it has ended, or is not the kernel before. All threads. */
static __device__ __forceinline__ uint64_t find_coming(const xep_cuda_coming_t *coming, const char *x)
{
    __shared__ uint64_t epoch;
    if (threadIdx.x == 0) {
        const uint64_t begun = coming == nullptr ? 0 : load_word((const char *)&coming->begun);
        const int comes = begun != 0 && begun > load_word((const char *)&coming->ended);
        epoch = comes && *(const char *const volatile *)&coming->x == x ? begun : 0;
    }
    __syncthreads();
    return epoch;
}

static __device__ __forceinline__ int has_ended(const xep_cuda_coming_t *coming, uint64_t epoch)
{
    return load_word((const char *)&coming->ended) >= epoch;
}

/* Of how many tokens a rank has told, plus 1; 0: not yet in this epoch. */
static __device__ __forceinline__ uint32_t told_of(const char *word, uint64_t epoch)
{
    const uint64_t told = load_word(word);
    return (uint32_t)(told >> 32) == (uint32_t)epoch ? (uint32_t)told + 1 : 0;
}

#endif
