/* SPDX-License-Identifier: BSD-3-Clause */

/* A received row to a slot for each of its experts here, and what they made of it back to one row. */
#include "cuda_experts.h"

#include "cuda_reduce.cuh"
#include "cuda_words.cuh"

enum { AHEAD = 8 /* loads of selections that a lane has on their way */ };

typedef xep_cuda_expand_t expand_t;

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

/* How many selections of each expert a warp has. */
static __device__ __forceinline__ void count_share(const expand_t &e, const share_t &share, uint32_t *counts)
{
    for (uint64_t begin = share.begin; begin < share.end; begin += AHEAD * 32) {
        uint32_t expert[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) expert[a] = load_expert(e, begin + a * 32 + threadIdx.x % 32, share.end);
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++)
            if (expert[a] < e.experts) atomicAdd(&counts[expert[a]], 1);
    }
}

/* Gives them slots, in their order. counts: by then of all selections before those of the warp. */
static __device__ __forceinline__ void number_share(const expand_t &e, const share_t &share, const uint32_t *begins,
                                                    uint32_t *counts)
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
            const uint64_t i = begin + a * 32 + lane;
            const uint64_t slot = here ? (uint64_t)begins[expert[a]] + counts[expert[a]] + before : UINT64_MAX;
            if (i < share.end) e.slots[i] = slot < e.capacity ? (int32_t)slot : NOWHERE;
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

/* A thread a rank. */
static __device__ __forceinline__ void find_first(const expand_t &e)
{
    for (uint32_t r = threadIdx.x; r < e.nranks; r += blockDim.x) {
        uint64_t begin = e.src_begin[r], end = e.src_begin[r + 1];
        if (e.first[r] == 0) begin = end;
        while (begin < end) {
            const uint64_t middle = begin + (end - begin) / 2;
            if ((uint32_t)e.src_token[middle] < e.first[r]) begin = middle + 1;
            else end = middle;
        }
        e.first_end[r] = begin;
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
    count_share(e, share, mine);
    __syncthreads();
    sum_warps(e, c);
    sync_cluster();
    sum_blocks(e, c);
    __syncthreads();
    if (threadIdx.x < 32) sum_experts(e, c);
    sync_cluster(); /* also: no block ends whose counts others read */
    begin_next();
    number_share(e, share, c.begin, mine);
    if (e.part != XEP_CUDA_ALL && blockIdx.x == 0) find_first(e);
}

/* ---- to the experts ---- */

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

/* A part of a row, loaded once, to the slots of all of its selections; with the first one what belongs to the row. */
template <typename T>
static __device__ __forceinline__ void move_part(const expand_t &e, uint64_t row, uint32_t part, int32_t slot)
{
    const uint32_t units = e.to == nullptr ? 0 : (uint32_t)(e.row_bytes / sizeof(T));
    const uint32_t first = part * 32 * FEW + threadIdx.x % 32;
    T x[FEW];
    if (e.topk <= 32 && !__any_sync(UINT32_MAX, slot != NOWHERE)) return; /* a row that did not come */
#pragma unroll
    for (uint32_t i = 0; i < FEW; i++)
        if (first + i * 32 < units) x[i] = __ldcs((const T *)(e.x + row * e.x_stride) + first + i * 32);
    for (uint32_t begin = 0; begin < e.topk; begin += 32) {
        if (begin != 0) slot = load_slot(e.slots, row, begin, e.topk);
        if (part == 0 && e.to_weights != nullptr && slot != NOWHERE)
            e.to_weights[slot] = e.weights[row * e.topk + begin + threadIdx.x % 32];
        for (uint32_t here = __ballot_sync(UINT32_MAX, slot != NOWHERE); here != 0; here &= here - 1) {
            const int32_t found = __shfl_sync(UINT32_MAX, slot, __ffs((int)here) - 1);
            T *to = (T *)(e.to + found * e.to_stride);
#pragma unroll
            for (uint32_t i = 0; i < FEW; i++)
                if (first + i * 32 < units) __stcs(to + first + i * 32, x[i]);
            if (part == 0 && e.to_scales != nullptr) store_scales(e, row, found);
        }
    }
}

/*
 * Some rows, in the widest unit that addresses and lengths allow. The slots of the next part are on their way
 * meanwhile. Returns how many parts they have.
 */
template <typename T>
static __device__ __forceinline__ uint64_t move_range(const expand_t &e, uint64_t begin, uint64_t end, uint32_t warp,
                                                      uint32_t warps)
{
    const uint32_t in_parts = (uint32_t)((e.row_bytes / sizeof(T) + 32 * FEW - 1) / (32 * FEW));
    const uint32_t parts = in_parts == 0 ? 1 : in_parts;
    const uint64_t all = (end - begin) * parts;
    int32_t next = warp < all ? load_slot(e.slots, begin + warp / parts, 0, e.topk) : NOWHERE;
    for (uint64_t u = warp; u < all; u += warps) {
        const int32_t slot = next;
        if (u + warps < all) next = load_slot(e.slots, begin + (u + warps) / parts, 0, e.topk);
        move_part<T>(e, begin + u / parts, (uint32_t)(u % parts), slot);
    }
    return all;
}

/*
 * Warps take turns, whichever rank the rows are of; the rows of one need no division for that. Of a graph from before a
 * reset the slot may be another handle's by now, with more rows than there are places for.
 */
template <typename T> static __device__ void move_rows(const expand_t &e, uint32_t warp, uint32_t warps)
{
    const uint32_t ranges = e.part == XEP_CUDA_ALL ? 1 : e.nranks;
    uint64_t moved = 0;
    for (uint32_t r = 0; r < ranges; r++) {
        uint64_t begin = 0, end = e.rows;
        if (r != 0) warp = (warp + warps - (uint32_t)(moved % warps)) % warps;
        if (e.part == XEP_CUDA_FIRST) begin = e.src_begin[r], end = e.first_end[r];
        if (e.part == XEP_CUDA_REST) begin = e.first_end[r], end = e.src_begin[r + 1];
        if (end > e.rows) end = e.rows;
        moved = begin < end ? move_range<T>(e, begin, end, warp, warps) : 0;
    }
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
static __device__ void zero_unused(const expand_t &e, uint32_t warp, uint32_t warps)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < e.experts; i++) {
        const uint64_t used = e.begin[i] + e.count[i], next = i + 1 < e.experts ? e.begin[i + 1] : e.capacity;
        const uint64_t end = next < e.capacity ? next : e.capacity;
        for (uint64_t slot = used + (warp + warps - seen % warps) % warps; slot < end; slot += warps)
            zero_slot(e, slot);
        if (end > used) seen += end - used;
    }
}

extern "C" __global__ void __launch_bounds__(XEP_CUDA_EXPAND_THREADS, 1)
    xep_cuda_expand(const __grid_constant__ xep_cuda_expand_t e)
{
    const uint32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = gridDim.x * (blockDim.x / 32);
    const uint64_t odd = odd_of(e);
    wait_for_last();
    if (odd % 16 == 0) move_rows<int4>(e, warp, warps);
    else if (odd % 4 == 0) move_rows<uint32_t>(e, warp, warps);
    else move_rows<uint8_t>(e, warp, warps);
    if (e.zero && e.part != XEP_CUDA_REST) zero_unused(e, warp, warps);
}

/* ---- and back ---- */

extern "C" __global__ void __launch_bounds__(XEP_CUDA_REDUCE_THREADS, 1)
    xep_cuda_reduce(const __grid_constant__ xep_cuda_reduce_t r)
{
    const uint32_t each = blockDim.x / 32, warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = gridDim.x * each;
    if (r.dtype == XEP_FP32) reduce_rows<fp32_t, fp32_t>(r, 0, r.rows, warp, warps);
    else if (r.dtype == XEP_BF16 && r.wide) reduce_rows<bf16_t, fp32_t>(r, 0, r.rows, warp, warps);
    else if (r.dtype == XEP_BF16) reduce_rows<bf16_t, bf16_t>(r, 0, r.rows, warp, warps);
    else if (r.wide) reduce_rows<fp16_t, fp32_t>(r, 0, r.rows, warp, warps);
    else reduce_rows<fp16_t, fp16_t>(r, 0, r.rows, warp, warps);
}
