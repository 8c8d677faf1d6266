/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Sums at owners: of each token that came, the rank of the experts adds up its rows here, from +0, by ascending
 * selection, in fp32, rounds once, and stores the sum in the heap of the token's source: at a place that no other rank
 * writes to, so that one that is left out and late spoils nothing.
 */
#ifndef XEP_CUDA_LL_PUSH_CUH
#define XEP_CUDA_LL_PUSH_CUH

#include "cuda_ll_heaps.cuh"
#include "cuda_sum.cuh"

enum { PUSHED = 1024 /* bytes of a row that a warp sums at once */ };

typedef xep_cuda_ll_push_t push_t;

/* A token of a source: its rows by selection, and where their sum belongs. */
typedef struct token {
    const uint32_t *rows; /* nullptr: the source has fewer tokens */
    char *to;
} token_t;

/* Sources take turns, so that no link waits for another's rows. */
static __device__ __forceinline__ token_t find_token(const push_t &p, uint32_t i)
{
    const xep_cuda_ll_heaps_t &at = p.offer.at;
    const uint32_t source = (at.rank + i) % at.nranks, token = i / at.nranks;
    if (token >= p.came.tokens[source]) return {nullptr, nullptr};
    return {p.came.rows + (source * at.tokens + token) * p.topk,
            sum_at(at, source, p.sums, p.offer.row_stride, at.there[source], at.rank, token)};
}

/* Of N rows, known to the compiler: mine is that of a lane, here says which lanes have one. */
template <typename E, int N>
static __device__ __forceinline__ void push_known(const char *x, uint64_t stride, uint32_t mine, uint32_t here,
                                                  int4 *to, uint32_t packs)
{
    const float weight[N] = {};
    const char *from[N];
#pragma unroll
    for (int n = 0; n < N; n++, here &= here - 1)
        from[n] = x + __shfl_sync(UINT32_MAX, mine, __ffs((int)here) - 1) * stride;
#pragma unroll 2
    for (uint32_t at = threadIdx.x % 32; at < packs; at += 32) {
        int4 pack[N];
#pragma unroll
        for (int n = 0; n < N; n++) pack[n] = ((const int4 *)from[n])[at];
        to[at] = sum_packs<E, false, N>(pack, weight);
    }
}

template <typename E>
static __device__ void push_any(const push_t &p, const char *x, const uint32_t *rows, int4 *to, uint32_t packs)
{
    for (uint32_t at = threadIdx.x % 32; at < packs; at += 32) {
        float sum[4 * (4 / sizeof(typename E::raw))] = {};
        for (uint32_t k = 0; k < p.topk; k++)
            if (rows[k] != (uint32_t)XEP_CUDA_LL_NO_ROW)
                add_pack<E, false>(sum, ((const int4 *)(x + rows[k] * p.offer.x_stride))[at], 1);
        to[at] = round_pack<E>(sum);
    }
}

/* A part of a token's sum, by a warp. */
template <typename E>
static __device__ __forceinline__ void push_part(const push_t &p, const token_t &token, uint32_t part, uint32_t bytes)
{
    const uint32_t lane = threadIdx.x % 32, left = bytes - part * PUSHED, packs = (left < PUSHED ? left : PUSHED) / 16;
    const uint32_t mine = lane < p.topk ? token.rows[lane] : (uint32_t)XEP_CUDA_LL_NO_ROW;
    const uint32_t here = __ballot_sync(UINT32_MAX, mine != (uint32_t)XEP_CUDA_LL_NO_ROW);
    const char *x = p.offer.x + part * PUSHED;
    const uint64_t stride = p.offer.x_stride;
    int4 *to = (int4 *)(token.to + part * PUSHED);
    switch (p.topk <= 32 ? __popc(here) : 32) {
    case 0: break;
    case 1: push_known<E, 1>(x, stride, mine, here, to, packs); break;
    case 2: push_known<E, 2>(x, stride, mine, here, to, packs); break;
    case 3: push_known<E, 3>(x, stride, mine, here, to, packs); break;
    case 4: push_known<E, 4>(x, stride, mine, here, to, packs); break;
    default: push_any<E>(p, x, token.rows, to, packs);
    }
}

/* Any alignment of elements, from one on: by a warp. */
template <typename E>
static __device__ __forceinline__ void push_elements(const push_t &p, const token_t &token, uint32_t begin)
{
    typedef typename E::raw raw;
    for (uint32_t h = begin + threadIdx.x % 32; h < p.hidden; h += 32) {
        float sum[2] = {};
        for (uint32_t k = 0; k < p.topk; k++)
            if (token.rows[k] != (uint32_t)XEP_CUDA_LL_NO_ROW)
                sum[0] = add_float<false>(sum[0],
                                          E::load(((const raw *)(p.offer.x + token.rows[k] * p.offer.x_stride))[h]), 1);
        ((raw *)token.to)[h] = (raw)round_word<E>(sum);
    }
}

/* All tokens of all sources, by the warps of the grid. */
template <typename E> static __device__ __forceinline__ void push_sums(const push_t &p)
{
    const xep_cuda_ll_heaps_t &at = p.offer.at;
    const uint32_t first = threadIdx.x / 32 * gridDim.x + blockIdx.x, all = gridDim.x * (blockDim.x / 32);
    const int odd = ((uint64_t)p.offer.x | p.offer.x_stride) % 16 != 0;
    const uint32_t bytes = odd ? 0 : p.hidden * (uint32_t)sizeof(typename E::raw) & ~15u;
    const uint32_t parts = (bytes + PUSHED - 1) / PUSHED, tokens = (uint32_t)at.tokens * at.nranks;
    for (uint32_t u = first; u < tokens * parts; u += all) {
        const token_t token = find_token(p, u / parts);
        if (token.rows != nullptr) push_part<E>(p, token, u % parts, bytes);
    }
    for (uint32_t i = first; bytes / sizeof(typename E::raw) < p.hidden && i < tokens; i += all) {
        const token_t token = find_token(p, i);
        if (token.rows != nullptr) push_elements<E>(p, token, bytes / sizeof(typename E::raw));
    }
}

#endif
