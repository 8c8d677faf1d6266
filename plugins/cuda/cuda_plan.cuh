/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Which rank gets which token as which row, in the order of tokens, whatever the threads do: marks by segments of 32
 * tokens, rows before each segment, lists.
 */
#ifndef XEP_CUDA_PLAN_CUH
#define XEP_CUDA_PLAN_CUH

#include "cuda_kernels.h"
#include "cuda_words.cuh"

enum { AHEAD = 8 }; /* indices of a token that are loaded at once */

static __device__ __forceinline__ int64_t load_index(const xep_cuda_plan_t &plan, uint32_t token, uint32_t k)
{
    const char *row = plan.topk_idx + token * plan.topk_idx_stride;
    return plan.wide ? ((const int64_t *)row)[k] : ((const int32_t *)row)[k];
}

/* The mode's number of a caller's expert; what is no expert stays what it is. */
static __device__ __forceinline__ int64_t number_of(const xep_cuda_plan_t &plan, int64_t expert)
{
    return (uint64_t)expert < plan.experts ? plan.number[expert] : expert;
}

/* Counts a selection; returns the rank of its expert, or nobody. */
static __device__ __forceinline__ int32_t count_selection(const xep_cuda_plan_t &plan, uint32_t token, uint32_t k,
                                                          int64_t expert, const uint32_t *owner, uint32_t *selections)
{
    if (expert == -1) return XEP_CUDA_NOBODY;
    if ((uint64_t)expert >= plan.experts) {
        atomicMin((unsigned long long *)plan.wrong, (unsigned long long)token * plan.topk + k);
        return XEP_CUDA_NOBODY;
    }
    atomicAdd(&selections[expert], 1);
    return (int32_t)owner[expert];
}

/*
 * A warp marks the ranks of its segment of 32 tokens: a word for each rank, a bit for each token. Up to 64 ranks are
 * collected in a register and turned around by votes; atomics on so few words would take turns.
 */
static __device__ __forceinline__ void mark_segment(const xep_cuda_plan_t &plan, uint32_t token, const uint32_t *owner,
                                                    uint32_t *mask, uint32_t *selections)
{
    const int few = plan.nranks <= 64;
    uint64_t ranks = 0;
    for (uint32_t begin = 0; begin < plan.topk; begin += AHEAD) {
        int64_t expert[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            expert[i] = token < plan.tokens && begin + i < plan.topk ? load_index(plan, token, begin + i) : -1;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD && plan.number != nullptr; i++) expert[i] = number_of(plan, expert[i]);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (token < plan.tokens && begin + i < plan.topk)
                plan.chosen[(uint64_t)token * plan.topk + begin + i] = (int32_t)expert[i];
            int32_t rank = count_selection(plan, token, begin + i, expert[i], owner, selections);
            if (rank == XEP_CUDA_NOBODY) continue;
            if (few) ranks |= UINT64_C(1) << rank;
            else atomicOr(&mask[rank], 1u << token % 32);
        }
    }
    for (uint32_t r = 0; few && r < plan.nranks; r++) {
        uint32_t word = __ballot_sync(UINT32_MAX, ranks >> r & 1);
        if (token % 32 == 0) mask[r] = word;
    }
}

/* Rows of a rank before each segment: a warp a rank. */
static __device__ __forceinline__ void scan_rank(const xep_cuda_plan_t &plan, uint32_t rank, uint32_t segments,
                                                 const uint32_t *mask, uint32_t *before)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t rows = 0;
    for (uint32_t begin = 0; begin < segments; begin += 32) {
        const uint32_t s = begin + lane, here = s < segments ? __popc(mask[s * plan.nranks + rank]) : 0;
        uint32_t sum = here;
        for (uint32_t step = 1; step < 32; step *= 2) {
            uint32_t left = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += left;
        }
        if (s < segments) before[s * plan.nranks + rank] = rows + sum - here;
        rows += __shfl_sync(UINT32_MAX, sum, 31);
    }
    if (lane == 0) plan.rows[rank] = rows;
}

/* The same of a rank alone, by one thread: of few segments. */
static __device__ __forceinline__ uint32_t count_rows(const xep_cuda_plan_t &plan, uint32_t rank)
{
    const uint32_t segments = (plan.tokens + 31) / 32;
    uint32_t rows = 0;
    for (uint32_t s = 0; s < segments; s++) rows += __popc(plan.scratch[s * plan.nranks + rank]);
    return rows;
}

/* From the last selection on, those found last: as normal_plan.c does. */
static __device__ __forceinline__ void order_token(const xep_cuda_plan_t &plan, uint32_t token, xep_cuda_dest_t *dest,
                                                   uint32_t left)
{
    for (uint32_t k = plan.topk; k > 0 && left > 0; k--) {
        const int32_t expert = plan.chosen[(uint64_t)token * plan.topk + k - 1];
        if (expert < 0 || (uint32_t)expert >= plan.experts) continue;
        uint32_t i = 0;
        while (i < left && dest[i].rank != (int32_t)plan.owner[expert]) i++;
        if (i == left) continue;
        const xep_cuda_dest_t last = dest[i];
        dest[i] = dest[--left];
        dest[left] = last;
    }
}

/* Ranks in the order of sums. Its row at a rank: those of all tokens before it that go there, too. */
static __device__ __forceinline__ void list_token(const xep_cuda_plan_t &plan, uint32_t token, const uint32_t *mask,
                                                  const uint32_t *before)
{
    xep_cuda_dest_t *dest = plan.dest + (uint64_t)token * plan.max_dests;
    uint32_t n = 0, bit = 1u << token % 32;
    for (uint32_t r = 0; r < plan.nranks; r++)
        if (mask[r] & bit) dest[n++] = {(int32_t)r, before[r] + __popc(mask[r] & (bit - 1))};
    if (plan.by_selection) order_token(plan, token, dest, n);
    for (; n < plan.max_dests; n++) dest[n] = {XEP_CUDA_NOBODY, 0};
}

/* ---- a plan of few tokens, in every block ---- */

/* The same arrays as those of the plan's kernel, in shared memory: xep_cuda_plan_bytes(). */
static __device__ __forceinline__ void lay_plan(char *shared, xep_cuda_plan_t *plan)
{
    const uint32_t segments = (plan->tokens + 31) / 32;
    plan->wrong = (uint64_t *)shared;
    plan->dest = (xep_cuda_dest_t *)(plan->wrong + 1);
    plan->chosen = (int32_t *)(plan->dest + plan->tokens * plan->max_dests);
    plan->scratch = (uint32_t *)(plan->chosen + plan->tokens * plan->topk);
    plan->rows = plan->scratch + 2 * segments * plan->nranks;
    plan->selections = plan->rows + plan->nranks;
    plan->owner = plan->selections + plan->experts;
}

/* The owners of experts into shared memory, before there is anything to plan: later one load would wait for another. */
static __device__ __forceinline__ void take_owners(const xep_cuda_plan_t &plan, const uint32_t *owner)
{
    for (uint32_t e = threadIdx.x; e < plan.experts; e += blockDim.x) {
        ((uint32_t *)plan.owner)[e] = owner[e];
        plan.selections[e] = 0;
    }
}

/* The number of this thread, where the first warps, so many, have something else to do and are the last ones. */
static __device__ __forceinline__ uint32_t behind(uint32_t busy)
{
    return threadIdx.x < busy * 32 ? threadIdx.x - busy * 32 + blockDim.x : threadIdx.x - busy * 32;
}

/* All threads of the block: the ranks of each token, and selections. The first warps, so many, are busy. */
static __device__ void count_plan(const xep_cuda_plan_t &plan, uint32_t busy)
{
    const uint32_t segments = (plan.tokens + 31) / 32, first = behind(busy);
    uint32_t *mask = plan.scratch;
    for (uint32_t i = threadIdx.x; i < segments * plan.nranks; i += blockDim.x) mask[i] = 0;
    if (threadIdx.x == 0) *plan.wrong = UINT64_MAX;
    __syncthreads();
    for (uint32_t t = first; t < segments * 32; t += blockDim.x)
        mark_segment(plan, t, plan.owner, mask + t / 32 * plan.nranks, plan.selections);
    __syncthreads();
}

/* The lists, which are not told: while records are waited for, behind which threads wait for one another. */
static __device__ void list_plan(const xep_cuda_plan_t &plan, uint32_t busy)
{
    const uint32_t segments = (plan.tokens + 31) / 32, first = behind(busy);
    uint32_t *mask = plan.scratch, *before = mask + segments * plan.nranks;
    for (uint32_t r = first / 32; r < plan.nranks; r += blockDim.x / 32) scan_rank(plan, r, segments, mask, before);
    __syncthreads();
    for (uint32_t t = threadIdx.x; t < plan.tokens; t += blockDim.x)
        list_token(plan, t, mask + t / 32 * plan.nranks, before + t / 32 * plan.nranks);
}

#endif
