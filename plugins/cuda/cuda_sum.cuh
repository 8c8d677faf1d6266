/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Pulling what ranks contribute to a token, and summing it: from +0, in the order of contributions, in fp32. A kernel's
 * arguments begin with an xep_cuda_sum_t, and
 *     const char *contribution(const C &c, uint32_t token, uint32_t n, float *weight_p)
 * tells where contribution n of a token is, and its weight; nullptr: there is none, though there may be later ones.
 */
#ifndef XEP_CUDA_SUM_CUH
#define XEP_CUDA_SUM_CUH

#include "cuda_args.h"
#include "cuda_bulk.cuh"
#include "cuda_elements.cuh"

/* Of the warps of the grid that sum: which one this is, and how many there are. */
static __device__ __forceinline__ uint32_t summing_warp(const xep_cuda_sum_t &s)
{
    return (blockIdx.x - s.beside) * s.warps + threadIdx.x / 32;
}

static __device__ __forceinline__ uint32_t summing_warps(const xep_cuda_sum_t &s)
{
    return (gridDim.x - s.beside) * s.warps;
}

/* Bias b of a token as contribution n; what is not a bias begins at 0 again. */
static __device__ __forceinline__ const char *bias_of(const xep_cuda_sum_t &s, uint32_t token, uint32_t *n_p)
{
    for (int b = 0; b < 2; b++) {
        if (s.bias[b] == nullptr) continue;
        if (*n_p == 0) return s.bias[b] + token * s.bias_stride[b];
        (*n_p)--;
    }
    return nullptr;
}

/* Any number of contributions, any alignment of elements: from one element of a token to another. */
template <typename E, bool W, typename C>
static __device__ void sum_elements(const C &c, uint32_t token, uint32_t begin, uint32_t end)
{
    char *out = c.sum.out + token * c.sum.out_stride;
    for (uint32_t h = begin + threadIdx.x % 32; h < end; h += 32) {
        float sum[2] = {};
        for (uint32_t n = 0; n < c.sum.rows; n++) {
            float weight = 1;
            const char *row = contribution(c, token, n, &weight);
            if (row != nullptr) sum[0] = add_float<W>(sum[0], E::load(((const typename E::raw *)row)[h]), weight);
        }
        ((typename E::raw *)out)[h] = (typename E::raw)round_word<E>(sum);
    }
}

/* ---- chunks of rows, through shared memory: a warp keeps the contributions to some chunks on their way ---- */

typedef struct pulls {
    char *stage;                         /* [stages][rows][chunk] */
    uint64_t *barrier;                   /* [stages] */
    uint32_t *found;                     /* [stages] contributions */
    float *weights;                      /* [stages][rows] of a weighed sum */
    uint32_t of_row;                     /* chunks of a row */
    uint32_t lane, lanes, slice, slices; /* whole slices, of each warp; what is left over comes behind them */
    uint32_t rest, count;                /* chunks left over, of all warps; chunks of this one */
} pulls_t;

/* A chunk of a warp, and its stage. Goes on without divisions, which take longer than the sum of a chunk's bytes. */
typedef struct cursor {
    uint32_t token, part, stage, phase;
    uint32_t slice, left; /* chunks of the slice */
} cursor_t;

/* To the first chunk of a slice; what is left over is one slice of which warps have about as much. */
static __device__ __forceinline__ void enter_slice(const pulls_t &p, cursor_t *at, uint32_t slice)
{
    const uint32_t chunk = slice < p.slices
                               ? (slice * p.lanes + p.lane) * p.slice
                               : p.slices * p.lanes * p.slice + (uint32_t)((uint64_t)p.rest * p.lane / p.lanes);
    at->slice = slice;
    at->left = slice < p.slices ? p.slice : UINT32_MAX;
    at->token = chunk / p.of_row;
    at->part = chunk % p.of_row;
}

static __device__ __forceinline__ void go_on(const pulls_t &p, cursor_t *at, uint32_t stages)
{
    if (++at->part == p.of_row) {
        at->part = 0;
        at->token++;
    }
    if (++at->stage == stages) {
        at->stage = 0;
        at->phase ^= 1;
    }
    if (--at->left == 0) enter_slice(p, at, at->slice + 1);
}

/* What a lane contributes to a token: asked for once, while the warp goes through the token's chunks. */
typedef struct found {
    uint32_t token;
    const char *row;
    float weight;
} found_t;

static __device__ __forceinline__ uint32_t chunk_bytes(const xep_cuda_sum_t &s, uint32_t row_bytes, uint32_t part)
{
    uint32_t left = row_bytes - part * s.chunk;
    return left < s.chunk ? left : s.chunk;
}

/* Each lane loads one contribution; those that there are lie one behind the other. */
template <bool W, typename C>
static __device__ __forceinline__ void begin_pull(const C &c, const pulls_t &p, const cursor_t &chunk,
                                                  uint32_t row_bytes, found_t *mine)
{
    const uint32_t stage = chunk.stage, n = threadIdx.x % 32, bytes = chunk_bytes(c.sum, row_bytes, chunk.part);
    if (mine->token != chunk.token) {
        mine->token = chunk.token;
        mine->weight = 1;
        mine->row = n < c.sum.rows ? contribution(c, chunk.token, n, &mine->weight) : nullptr;
    }
    const uint32_t all = __ballot_sync(UINT32_MAX, mine->row != nullptr), at = __popc(all & ((1u << n) - 1));
    if (n == 0) {
        p.found[stage] = __popc(all);
        expect_bytes(&p.barrier[stage], __popc(all) * bytes);
    }
    if (W && mine->row != nullptr) p.weights[stage * c.sum.rows + at] = mine->weight;
    __syncwarp();
    if (mine->row != nullptr)
        begin_load(p.stage + (stage * c.sum.rows + at) * c.sum.chunk, mine->row + chunk.part * c.sum.chunk, bytes,
                   &p.barrier[stage]);
}

template <typename E, bool W>
static __device__ __forceinline__ void add_pack(float *sum, const int4 &pack, float weight)
{
    constexpr int EACH = 4 / sizeof(typename E::raw);
    add_word<E, W>(sum, pack.x, weight);
    add_word<E, W>(sum + EACH, pack.y, weight);
    add_word<E, W>(sum + 2 * EACH, pack.z, weight);
    add_word<E, W>(sum + 3 * EACH, pack.w, weight);
}

template <typename E> static __device__ __forceinline__ int4 round_pack(const float *sum)
{
    if constexpr (sizeof(typename E::raw) == 2)
        return mend_pack<E>(make_int4((int)E::round(sum[0], sum[1]), (int)E::round(sum[2], sum[3]),
                                      (int)E::round(sum[4], sum[5]), (int)E::round(sum[6], sum[7])));
    else
        return make_int4((int)round_word<E>(sum), (int)round_word<E>(sum + 1), (int)round_word<E>(sum + 2),
                         (int)round_word<E>(sum + 3));
}

/* N contributions to a pack. */
template <typename E, bool W, int N>
static __device__ __forceinline__ int4 sum_packs(const int4 *pack, const float *weight)
{
    if constexpr (N == 2 && !W && sizeof(typename E::raw) == 2) return add_two<E>(pack[0], pack[1]);
    float sum[4 * (4 / sizeof(typename E::raw))] = {};
#pragma unroll
    for (int n = 0; n < N; n++) add_pack<E, W>(sum, pack[n], weight[n]);
    return round_pack<E>(sum);
}

/* N contributions, known to the compiler: all are loaded before the first is added. */
template <typename E, bool W, int N>
static __device__ __forceinline__ void sum_known(const char *rows, const float *weights, uint32_t chunk, int4 *out,
                                                 uint32_t packs)
{
    float weight[N];
#pragma unroll
    for (int n = 0; n < N; n++) weight[n] = W ? weights[n] : 1;
#pragma unroll(N > 2 ? 2 : 4)
    for (uint32_t at = threadIdx.x % 32; at < packs; at += 32) {
        int4 pack[N];
#pragma unroll
        for (int n = 0; n < N; n++) pack[n] = *(const int4 *)(rows + n * chunk + at * 16);
        out[at] = sum_packs<E, W, N>(pack, weight);
    }
}

template <typename E, bool W>
static __device__ __forceinline__ void sum_any(const char *rows, const float *weights, uint32_t chunk, int4 *out,
                                               uint32_t packs, uint32_t n)
{
    for (uint32_t at = threadIdx.x % 32; at < packs; at += 32) {
        float sum[4 * (4 / sizeof(typename E::raw))] = {};
        for (uint32_t i = 0; i < n; i++)
            add_pack<E, W>(sum, *(const int4 *)(rows + i * chunk + at * 16), W ? weights[i] : 1);
        out[at] = round_pack<E>(sum);
    }
}

template <typename E, bool W>
static __device__ __forceinline__ void sum_stage(const char *rows, const float *weights, uint32_t chunk, int4 *out,
                                                 uint32_t packs, uint32_t n)
{
    switch (n) {
    case 1: sum_known<E, W, 1>(rows, weights, chunk, out, packs); break;
    case 2: sum_known<E, W, 2>(rows, weights, chunk, out, packs); break;
    case 3: sum_known<E, W, 3>(rows, weights, chunk, out, packs); break;
    case 4: sum_known<E, W, 4>(rows, weights, chunk, out, packs); break;
    case 8:
        if (W) { /* a row for each selection */
            sum_known<E, W, 8>(rows, weights, chunk, out, packs);
            break;
        } /* fallthrough */
    default: sum_any<E, W>(rows, weights, chunk, out, packs, n);
    }
}

template <typename E, bool W>
static __device__ __forceinline__ void end_pull(const xep_cuda_sum_t &s, const pulls_t &p, const cursor_t &chunk,
                                                uint32_t row_bytes)
{
    int4 *out = (int4 *)(s.out + chunk.token * s.out_stride + chunk.part * s.chunk);
    wait_load(&p.barrier[chunk.stage], chunk.phase);
    sum_stage<E, W>(p.stage + chunk.stage * s.rows * s.chunk, p.weights + chunk.stage * s.rows, s.chunk, out,
                    chunk_bytes(s, row_bytes, chunk.part) / 16, p.found[chunk.stage]);
    __syncwarp();
}

/* goes_on: asked by all warps when their first pulls are on their way. 0: nothing was summed. */
template <typename E, bool W, typename C, typename F>
static __device__ int sum_chunks(const C &c, const pulls_t &p, uint32_t row_bytes, F goes_on)
{
    found_t mine = {UINT32_MAX, nullptr, 0};
    cursor_t end = {}, begin;
    enter_slice(p, &end, 0);
    begin = end;
    for (uint32_t i = 0; i < c.sum.stages && i < p.count; i++) {
        begin_pull<W>(c, p, begin, row_bytes, &mine);
        go_on(p, &begin, c.sum.stages);
    }
    const int good = goes_on();
    for (uint32_t i = 0; i < c.sum.stages && i < p.count && !good; i++) wait_load(&p.barrier[i], 0);
    for (uint32_t i = 0; i < p.count && good; i++) {
        end_pull<E, W>(c.sum, p, end, row_bytes);
        go_on(p, &end, c.sum.stages);
        if (i + c.sum.stages >= p.count) continue;
        begin_pull<W>(c, p, begin, row_bytes, &mine);
        go_on(p, &begin, c.sum.stages);
    }
    return good;
}

/* Shared memory: for each warp its stages; then the barriers of all, their numbers of contributions, their weights. */
static __device__ __forceinline__ pulls_t find_pulls(const xep_cuda_sum_t &s, char *shared)
{
    const uint32_t warp = threadIdx.x / 32, all = s.warps * s.stages;
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)all * s.rows * s.chunk);
    uint32_t *found = (uint32_t *)(barriers + all);
    float *weights = (float *)(found + all);
    pulls_t p = {shared + (uint64_t)warp * s.stages * s.rows * s.chunk, barriers + warp * s.stages,
                 found + warp * s.stages, weights + warp * s.stages * s.rows};
    return p;
}

/* All threads of the block, before the first sum. */
static __device__ __forceinline__ void open_pulls(const xep_cuda_sum_t &s, char *shared)
{
    const uint32_t all = s.warps * s.stages;
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)all * s.rows * s.chunk);
    for (uint32_t i = threadIdx.x; i < all; i += blockDim.x) open_barrier(&barriers[i]);
    share_barriers();
}

/* A warp's share of all chunks: without slices all of it in a row. */
static __device__ __forceinline__ void share_chunks(const xep_cuda_sum_t &s, uint32_t lane, uint32_t lanes, pulls_t *p)
{
    const uint32_t units = s.tokens * p->of_row;
    p->lane = lane;
    p->lanes = lanes;
    p->slice = p->of_row;
    p->slices = s.together ? units / (lanes * p->slice) : 0;
    p->rest = units - p->slices * lanes * p->slice;
    p->count = p->slices * p->slice + (uint32_t)((uint64_t)p->rest * (lane + 1) / lanes) -
               (uint32_t)((uint64_t)p->rest * lane / lanes);
}

/* What this warp pulls of all tokens. */
template <typename E> static __device__ __forceinline__ pulls_t lay_pulls(const xep_cuda_sum_t &s, char *shared)
{
    const uint32_t whole = s.hidden * (uint32_t)sizeof(typename E::raw) & ~15u;
    pulls_t p = find_pulls(s, shared);
    p.of_row = (whole + s.chunk - 1) / s.chunk;
    share_chunks(s, summing_warp(s), summing_warps(s), &p);
    return p;
}

/* Of which this warp pulls the first chunk; UINT32_MAX: it pulls none. */
template <typename E> static __device__ __forceinline__ uint32_t first_token(const xep_cuda_sum_t &s, char *shared)
{
    if (s.stages == 0) return UINT32_MAX;
    const pulls_t p = lay_pulls<E>(s, shared);
    cursor_t at;
    enter_slice(p, &at, 0);
    return p.count == 0 ? UINT32_MAX : at.token;
}

/*
 * All tokens, by the warps of the grid that pull. A warp takes chunks of a token one after the other, and looks for
 * what contributes to it once. All threads of the block; goes_on: whether anything is summed, asked once.
 */
template <typename E, bool W, typename C, typename F>
static __device__ void sum_tokens(const C &c, char *shared, F goes_on)
{
    const uint32_t lane = summing_warp(c.sum), lanes = summing_warps(c.sum);
    const uint32_t whole = c.sum.hidden * (uint32_t)sizeof(typename E::raw) & ~15u;
    uint32_t begin = 0;
    int good;
    if (c.sum.stages != 0) {
        const pulls_t p = lay_pulls<E>(c.sum, shared);
        fence_for_bulk();
        good = sum_chunks<E, W>(c, p, whole, goes_on);
        begin = whole / sizeof(typename E::raw);
    } else {
        good = goes_on();
    }
    for (uint32_t t = lane; good && begin < c.sum.hidden && t < c.sum.tokens; t += lanes)
        sum_elements<E, W>(c, t, begin, c.sum.hidden);
}

template <typename E, bool W, typename C> static __device__ void sum_tokens(const C &c, char *shared)
{
    sum_tokens<E, W>(c, shared, [] { return 1; });
}

#endif
