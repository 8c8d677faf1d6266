/* SPDX-License-Identifier: BSD-3-Clause */

/** Sums of rows by expert: from +0, k ascending, in fp32, rounded once. */
#ifndef XEP_CUDA_REDUCE_CUH
#define XEP_CUDA_REDUCE_CUH

#include "cuda_elements.cuh"
#include "cuda_experts.h"

enum { NOWHERE = -1, FEW = 4 /* loads of rows that a lane has on their way */ };

typedef xep_cuda_reduce_t reduce_t;

/* The slots of 32 selections of a row; NOWHERE behind the last. */
static __device__ __forceinline__ int32_t load_slot(const int32_t *slots, uint64_t row, uint32_t begin, uint32_t topk)
{
    const uint32_t k = begin + threadIdx.x % 32;
    return k < topk ? slots[row * topk + k] : NOWHERE;
}

template <typename E> struct packed {
    static constexpr uint32_t EACH = 16 / sizeof(typename E::raw); /* elements */
    union {
        int4 pack;
        typename E::raw raw[EACH];
    };
};

template <typename O, uint32_t N> static __device__ __forceinline__ void store_sum(char *out, const float *sum)
{
    uint32_t words[N * sizeof(typename O::raw) / 4];
#pragma unroll
    for (uint32_t i = 0; i < sizeof words / 4; i++) words[i] = round_word<O>(sum + i * N / (sizeof words / 4));
#pragma unroll
    for (uint32_t i = 0; i < sizeof words / 16; i++)
        ((int4 *)out)[i] =
            make_int4((int)words[4 * i], (int)words[4 * i + 1], (int)words[4 * i + 2], (int)words[4 * i + 3]);
}

/* PACKS packs of a lane, 32 apart: k ascending, the loads of some rows on their way. All lanes. */
template <typename E, int PACKS>
static __device__ __forceinline__ void reduce_packs(const reduce_t &r, uint64_t row, uint32_t first, uint32_t packs,
                                                    int32_t slot, float (*sum)[packed<E>::EACH])
{
    for (uint32_t begin = 0; begin < r.topk; begin += 32) {
        if (begin != 0) slot = load_slot(r.slots, row, begin, r.topk);
        for (uint32_t left = __ballot_sync(UINT32_MAX, slot != NOWHERE); left != 0;) {
            packed<E> x[FEW][PACKS];
            uint32_t found = 0;
#pragma unroll
            for (uint32_t a = 0; a < FEW; a++, left &= left - 1) {
                const int32_t from = __shfl_sync(UINT32_MAX, slot, __ffs((int)left) - 1);
                if (left == 0) continue;
                found = a + 1;
#pragma unroll
                for (uint32_t i = 0; i < PACKS; i++)
                    if (first + i * 32 < packs)
                        x[a][i].pack = __ldcs((const int4 *)(r.x + from * r.x_stride) + first + i * 32);
            }
#pragma unroll
            for (uint32_t a = 0; a < FEW; a++)
#pragma unroll
                for (uint32_t i = 0; i < PACKS; i++)
#pragma unroll
                    for (uint32_t j = 0; j < packed<E>::EACH; j++)
                        if (a < found) sum[i][j] = __fadd_rn(sum[i][j], E::load(x[a][i].raw[j]));
        }
    }
}

/* From one element to another, of any alignment of their types. */
template <typename E, typename O>
static __device__ __forceinline__ void reduce_elements(const reduce_t &r, uint64_t row, uint32_t begin)
{
    typename O::raw *out = (typename O::raw *)(r.out + row * r.out_stride);
    for (uint32_t h = begin + threadIdx.x % 32; h < r.hidden; h += 32) {
        float sum[2] = {};
        for (uint32_t k = 0; k < r.topk; k++) {
            const int32_t slot = r.slots[row * r.topk + k];
            if (slot != NOWHERE)
                sum[0] = __fadd_rn(sum[0], E::load(((const typename E::raw *)(r.x + slot * r.x_stride))[h]));
        }
        out[h] = (typename O::raw)round_word<O>(sum);
    }
}

static __device__ __forceinline__ void gather_weights(const reduce_t &r, uint64_t row)
{
    for (uint32_t k = threadIdx.x % 32; k < r.topk; k += 32) {
        const int32_t slot = r.slots[row * r.topk + k];
        r.out_weights[row * r.topk + k] = slot == NOWHERE ? 0.0f : r.weights[slot];
    }
}

/* The warp of whoever's turn it is after so many parts of rows. */
static __device__ __forceinline__ uint32_t next_turn(uint32_t warp, uint32_t warps, uint64_t units)
{
    return (uint32_t)((warp + warps - units % warps) % warps);
}

/*
 * Parts of the rows from one to another, as in move_rows(); with the first one what no packs are, and the weights.
 * Returns which warp this one is for what comes next.
 */
template <typename E, typename O>
static __device__ uint32_t reduce_rows(const reduce_t &r, uint64_t begin, uint64_t end, uint32_t warp, uint32_t warps)
{
    enum { PACKS = 2 };
    constexpr uint32_t EACH = packed<E>::EACH;
    const uint64_t odd = (uint64_t)r.x | r.x_stride | (uint64_t)r.out | r.out_stride;
    const uint32_t packs = odd % 16 == 0 ? r.hidden / EACH : 0, in_parts = (packs + 32 * PACKS - 1) / (32 * PACKS);
    const uint32_t parts = in_parts == 0 ? 1 : in_parts;
    const uint64_t all = (end - begin) * parts;
    int32_t next = warp < all ? load_slot(r.slots, begin + warp / parts, 0, r.topk) : NOWHERE;
    for (uint64_t u = warp; u < all; u += warps) {
        const uint64_t row = begin + u / parts;
        const uint32_t part = (uint32_t)(u % parts), first = part * 32 * PACKS + threadIdx.x % 32;
        const int32_t slot = next;
        float sum[PACKS][EACH] = {};
        if (u + warps < all) next = load_slot(r.slots, begin + (u + warps) / parts, 0, r.topk);
        reduce_packs<E, PACKS>(r, row, first, packs, slot, sum);
#pragma unroll
        for (uint32_t i = 0; i < PACKS; i++)
            if (first + i * 32 < packs)
                store_sum<O, EACH>(r.out + row * r.out_stride + (first + i * 32) * EACH * sizeof(typename O::raw),
                                   sum[i]);
        if (part == 0) reduce_elements<E, O>(r, row, packs * EACH);
        if (part == 0 && r.weights != nullptr) gather_weights(r, row);
    }
    return next_turn(warp, warps, all);
}

#endif
