/* SPDX-License-Identifier: BSD-3-Clause */

/* A received row to a slot for each of its experts here, and what they made of it back to one row. */
#include "cuda_experts.h"

#include "cuda_bulk.cuh"
#include "cuda_elements.cuh"
#include "cuda_words.cuh"

enum { NOWHERE = -1, AHEAD = 4 };

typedef xep_cuda_expand_t expand_t;
typedef xep_cuda_reduce_t reduce_t;

/* ---- slots: expert, then received row, then k, ascending ---- */

/* In shared memory of each block of the cluster. */
typedef struct counters {
    uint32_t *warp;  /* [warps][experts] of each warp; then of all before it */
    uint32_t *block; /* [experts] of the block */
    uint32_t *begin; /* [experts] slots before those of the block; of an expert */
    uint32_t *total; /* [experts] of all blocks */
} counters_t;

/* The selections of a warp: whole words of 32, in a row. */
typedef struct share {
    uint64_t begin, end;
} share_t;

static __device__ __forceinline__ share_t share_selections(const expand_t &e)
{
    const uint64_t all = e.rows * e.topk, warps = (uint64_t)gridDim.x * (blockDim.x / 32);
    const uint64_t each = (all + warps * 32 - 1) / (warps * 32) * 32;
    const uint64_t begin = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * each;
    return share_t{begin < all ? begin : all, begin + each < all ? begin + each : all};
}

/* The local expert; experts: none, or behind the end. */
static __device__ __forceinline__ uint32_t load_expert(const expand_t &e, uint64_t i, uint64_t end)
{
    if (i >= end) return e.experts;
    const int64_t index = e.wide ? ((const int64_t *)e.topk_idx)[i] : ((const int32_t *)e.topk_idx)[i];
    return (uint64_t)index < e.experts ? (uint32_t)index : e.experts;
}

/* Goes through a warp's selections in their order; found(i, expert, how many of it the lanes before have). */
template <typename F>
static __device__ __forceinline__ void walk(const expand_t &e, const share_t &share, uint32_t *counts, const F &found)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint64_t begin = share.begin; begin < share.end; begin += AHEAD * 32) {
        uint32_t expert[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) expert[a] = load_expert(e, begin + a * 32 + lane, share.end);
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t same = __match_any_sync(UINT32_MAX, expert[a]), before = __popc(same & ((1u << lane) - 1));
            const int here = expert[a] < e.experts;
            found(begin + a * 32 + lane, expert[a], before);
            __syncwarp();
            if (here && before == 0) counts[expert[a]] += __popc(same);
            __syncwarp();
        }
    }
}

/* What another block of the cluster has counted. */
static __device__ __forceinline__ uint32_t load_of_block(const uint32_t *own, uint32_t block)
{
    uint32_t address, value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"((uint32_t)__cvta_generic_to_shared(own)), "r"(block));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

/* Counts of warps become those of all warps before, in the block. A thread an expert. */
static __device__ __forceinline__ void sum_warps(const expand_t &e, const counters_t &c)
{
    for (uint32_t i = threadIdx.x; i < e.experts; i += blockDim.x) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < blockDim.x / 32; w++) {
            uint32_t *count = &c.warp[w * e.experts + i], mine = *count;
            *count = sum;
            sum += mine;
        }
        c.block[i] = sum;
    }
}

static __device__ __forceinline__ void sum_blocks(const expand_t &e, const counters_t &c)
{
    for (uint32_t i = threadIdx.x; i < e.experts; i += blockDim.x) {
        uint32_t before = 0, all = 0;
        for (uint32_t b = 0; b < gridDim.x; b++) {
            const uint32_t count = load_of_block(&c.block[i], b);
            if (b < blockIdx.x) before += count;
            all += count;
        }
        c.begin[i] = before;
        c.total[i] = all;
    }
}

/* One warp: where experts begin, each at a multiple of the alignment. */
static __device__ __forceinline__ void sum_experts(const expand_t &e, const counters_t &c)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t carried = 0;
    for (uint32_t first = 0; first < e.experts; first += 32) {
        const uint32_t i = first + lane, count = i < e.experts ? c.total[i] : 0;
        const uint32_t aligned = (count + e.alignment - 1) / e.alignment * e.alignment;
        uint32_t sum = aligned;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t before = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += before;
        }
        const uint32_t begin = carried + sum - aligned;
        carried += __shfl_sync(UINT32_MAX, sum, 31);
        if (i >= e.experts) continue;
        c.begin[i] += begin;
        if (blockIdx.x != 0) continue;
        e.begin[i] = begin;
        e.count[i] = count;
    }
}

/* One cluster: each warp counts its selections, and numbers them once it knows what all before it have counted. */
extern "C" __global__ void __cluster_dims__(XEP_CUDA_SLOTS_BLOCKS, 1, 1) __launch_bounds__(XEP_CUDA_SLOTS_WARPS * 32, 1)
    xep_cuda_slots(const __grid_constant__ xep_cuda_expand_t e)
{
    extern __shared__ uint32_t numbers[];
    const uint32_t warps = blockDim.x / 32, n = e.experts;
    const counters_t c = {numbers, numbers + warps * n, numbers + (warps + 1) * n, numbers + (warps + 2) * n};
    const share_t share = share_selections(e);
    uint32_t *mine = c.warp + threadIdx.x / 32 * n;
    for (uint32_t i = threadIdx.x; i < warps * n; i += blockDim.x) c.warp[i] = 0;
    __syncthreads();
    walk(e, share, mine, [](uint64_t, uint32_t, uint32_t) {});
    __syncthreads();
    sum_warps(e, c);
    sync_cluster();
    sum_blocks(e, c);
    __syncthreads();
    if (threadIdx.x < 32) sum_experts(e, c);
    sync_cluster(); /* also: no block ends whose counts others read */
    walk(e, share, mine, [&](uint64_t i, uint32_t expert, uint32_t before) {
        if (i >= share.end) return;
        const uint64_t slot = expert < n ? (uint64_t)c.begin[expert] + mine[expert] + before : UINT64_MAX;
        e.slots[i] = slot < e.capacity ? (int32_t)slot : NOWHERE;
    });
}

/* ---- to the experts ---- */

typedef struct mover {
    uint32_t warp, warps;
    char *stage;
    uint64_t *barrier;
    uint32_t phase;
} mover_t;

template <typename T> static __device__ __forceinline__ void copy_as(char *to, const char *from, uint64_t bytes)
{
    for (uint64_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

template <typename T> static __device__ __forceinline__ void zero_as(char *to, uint64_t bytes)
{
    for (uint64_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = T{};
}

static __device__ __forceinline__ uint64_t odd_of(const expand_t &e)
{
    return (uint64_t)e.x | e.x_stride | (uint64_t)e.to | e.to_stride | e.row_bytes;
}

static __device__ __forceinline__ void store_scales(const expand_t &e, uint64_t row, int32_t slot)
{
    const char *from = e.scales + (int64_t)row * e.scales_token_stride;
    char *to = e.to_scales + slot * e.to_scales_token_stride;
    for (uint32_t i = threadIdx.x % 32; i < e.nscales; i += 32)
        *(uint32_t *)(to + i * e.to_scales_stride) = *(const uint32_t *)(from + i * e.scales_stride);
}

/* To one slot; a bulk copy from the stage, where the part is by then. */
static __device__ __forceinline__ void store_part(const expand_t &e, const mover_t &m, uint64_t row, int32_t slot,
                                                  uint64_t first, uint32_t bytes)
{
    char *to = e.to + slot * e.to_stride + first;
    const char *from = e.x + row * e.x_stride + first;
    const uint64_t odd = odd_of(e);
    if (e.chunk != 0 && threadIdx.x % 32 == 0) begin_store(to, m.stage, bytes);
    if (e.chunk != 0) return;
    if (odd % 4 == 0) copy_as<uint32_t>(to, from, e.row_bytes);
    else copy_as<char>(to, from, e.row_bytes);
}

/* A part of a row to the slots of all of its selections; with the first one what belongs to the row. A warp. */
static __device__ __forceinline__ void move_part(const expand_t &e, mover_t *m, uint64_t row, uint32_t part)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t first = (uint64_t)part * e.chunk, left = e.row_bytes - first;
    const uint32_t bytes = left < e.chunk ? (uint32_t)left : e.chunk;
    int fetched = 0;
    for (uint32_t begin = 0; begin < e.topk; begin += 32) {
        const uint32_t k = begin + lane;
        const int32_t slot = k < e.topk ? e.slots[row * e.topk + k] : NOWHERE;
        uint32_t here = __ballot_sync(UINT32_MAX, slot != NOWHERE);
        if (here == 0) continue;
        if (!fetched && e.to != nullptr && e.chunk != 0) {
            if (lane == 0) {
                expect_bytes(m->barrier, bytes);
                begin_load(m->stage, e.x + row * e.x_stride + first, bytes, m->barrier);
            }
            fetched = 1;
            wait_load(m->barrier, m->phase++ & 1);
        }
        if (part == 0 && e.to_weights != nullptr && slot != NOWHERE) e.to_weights[slot] = e.weights[row * e.topk + k];
        for (; here != 0; here &= here - 1) {
            const int32_t to = __shfl_sync(UINT32_MAX, slot, __ffs((int)here) - 1);
            if (e.to != nullptr) store_part(e, *m, row, to, first, bytes);
            if (part == 0 && e.to_scales != nullptr) store_scales(e, row, to);
        }
    }
    /* the stage may be used again when the stores have read it */
    if (fetched && lane == 0) {
        end_group();
        wait_read();
    }
    __syncwarp();
}

static __device__ __forceinline__ void zero_slot(const expand_t &e, uint64_t slot)
{
    const uint64_t odd = odd_of(e);
    char *to = e.to + slot * e.to_stride;
    if (e.to != nullptr && odd % 16 == 0) zero_as<int4>(to, e.row_bytes);
    else if (e.to != nullptr && odd % 4 == 0) zero_as<uint32_t>(to, e.row_bytes);
    else if (e.to != nullptr) zero_as<char>(to, e.row_bytes);
    if (e.to_weights != nullptr && threadIdx.x % 32 == 0) e.to_weights[slot] = 0;
    for (uint32_t i = threadIdx.x % 32; i < e.nscales && e.to_scales != nullptr; i += 32)
        *(uint32_t *)(e.to_scales + (int64_t)slot * e.to_scales_token_stride + i * e.to_scales_stride) = 0;
}

/* Slots that alignment leaves unused, and those behind the last: warps take turns, whichever expert they are of. */
static __device__ void zero_unused(const expand_t &e, const mover_t &m)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < e.experts; i++) {
        const uint64_t used = e.begin[i] + e.count[i], next = i + 1 < e.experts ? e.begin[i + 1] : e.capacity;
        const uint64_t end = next < e.capacity ? next : e.capacity;
        for (uint64_t slot = used + (m.warp + m.warps - seen % m.warps) % m.warps; slot < end; slot += m.warps)
            zero_slot(e, slot);
        if (end > used) seen += end - used;
    }
}

/* Shared memory: a stage for each warp, then their barriers. */
extern "C" __global__ void __launch_bounds__(XEP_CUDA_EXPAND_WARPS * 32, 1)
    xep_cuda_expand(const __grid_constant__ xep_cuda_expand_t e)
{
    extern __shared__ __align__(128) char shared[];
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const uint32_t parts = e.chunk == 0 ? 1 : (uint32_t)((e.row_bytes + e.chunk - 1) / e.chunk);
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)warps * e.chunk);
    mover_t m = {warp * gridDim.x + blockIdx.x, warps * gridDim.x, shared + (uint64_t)warp * e.chunk, barriers + warp,
                 0};
    if (threadIdx.x < warps) open_barrier(&barriers[threadIdx.x]);
    share_barriers();
    wait_for_last();
    for (uint64_t u = m.warp; u < e.rows * parts; u += m.warps) move_part(e, &m, u / parts, (uint32_t)(u % parts));
    if (e.zero) zero_unused(e, m);
    wait_stored();
}

/* ---- and back ---- */

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

/* A pack of a lane: k ascending, some loads on their way. All lanes; one behind the end loads nothing. */
template <typename E>
static __device__ __forceinline__ void sum_pack(const reduce_t &r, uint64_t row, uint32_t first, int loads, float *sum)
{
    constexpr uint32_t EACH = packed<E>::EACH;
    for (uint32_t begin = 0; begin < r.topk; begin += 32) {
        const uint32_t k = begin + threadIdx.x % 32;
        const int32_t slot = k < r.topk ? r.slots[row * r.topk + k] : NOWHERE;
        for (uint32_t left = __ballot_sync(UINT32_MAX, slot != NOWHERE); left != 0;) {
            packed<E> x[AHEAD];
            uint32_t found = 0;
#pragma unroll
            for (uint32_t a = 0; a < AHEAD; a++, left &= left - 1) {
                const int32_t from = __shfl_sync(UINT32_MAX, slot, __ffs((int)left) - 1);
                if (left == 0) continue;
                found = a + 1;
                if (loads)
                    x[a].pack = __ldcs((const int4 *)(r.x + from * r.x_stride + first * sizeof(typename E::raw)));
            }
#pragma unroll
            for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
                for (uint32_t i = 0; i < EACH; i++)
                    if (a < found && loads) sum[i] = __fadd_rn(sum[i], E::load(x[a].raw[i]));
        }
    }
}

/* From one element to another, of any alignment of their types. */
template <typename E, typename O>
static __device__ __forceinline__ void sum_elements(const reduce_t &r, uint64_t row, uint32_t begin)
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

template <typename E, typename O> static __device__ void reduce_rows(const reduce_t &r, uint32_t warp, uint32_t warps)
{
    constexpr uint32_t EACH = packed<E>::EACH;
    const uint64_t odd = (uint64_t)r.x | r.x_stride | (uint64_t)r.out | r.out_stride;
    const uint32_t whole = odd % 16 == 0 ? r.hidden / EACH * EACH : 0;
    for (uint64_t row = warp; row < r.rows; row += warps) {
        char *out = r.out + row * r.out_stride;
        for (uint32_t begin = 0; begin < whole; begin += 32 * EACH) {
            const uint32_t first = begin + threadIdx.x % 32 * EACH;
            float sum[EACH] = {};
            sum_pack<E>(r, row, first, first < whole, sum);
            if (first < whole) store_sum<O, EACH>(out + first * sizeof(typename O::raw), sum);
        }
        sum_elements<E, O>(r, row, whole);
        for (uint32_t k = threadIdx.x % 32; k < r.topk && r.weights != nullptr; k += 32) {
            const int32_t slot = r.slots[row * r.topk + k];
            r.out_weights[row * r.topk + k] = slot == NOWHERE ? 0.0f : r.weights[slot];
        }
    }
}

extern "C" __global__ void __launch_bounds__(XEP_CUDA_REDUCE_THREADS, 1)
    xep_cuda_reduce(const __grid_constant__ xep_cuda_reduce_t r)
{
    const uint32_t each = blockDim.x / 32, warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = gridDim.x * each;
    if (r.dtype == XEP_FP32) reduce_rows<fp32_t, fp32_t>(r, warp, warps);
    else if (r.dtype == XEP_BF16 && r.wide) reduce_rows<bf16_t, fp32_t>(r, warp, warps);
    else if (r.dtype == XEP_BF16) reduce_rows<bf16_t, bf16_t>(r, warp, warps);
    else if (r.wide) reduce_rows<fp16_t, fp32_t>(r, warp, warps);
    else reduce_rows<fp16_t, fp16_t>(r, warp, warps);
}
