/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Combine: pulls the rows that ranks contribute to a token and sums them in fp32: +0, biases, then ranks ascending, one
 * rounding to nearest even at the end. NaN is the type's positive quiet NaN without payload, as on the host.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda_bulk.cuh"
#include "cuda_words.cuh"

/* ---- elements: 1 or 2 of them in a 4-byte word ---- */

struct bf16_t {
    typedef uint16_t raw;
    static __device__ __forceinline__ float load(raw v)
    {
        return __uint_as_float((uint32_t)v << 16);
    }
    static __device__ __forceinline__ uint32_t round(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
    static constexpr uint32_t NAN_FROM = 0x7fff, NAN_TO = 0x7fc0;
};

struct fp16_t {
    typedef uint16_t raw;
    static __device__ __forceinline__ float load(raw v)
    {
        return __half2float(__ushort_as_half(v));
    }
    static __device__ __forceinline__ uint32_t round(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
    static constexpr uint32_t NAN_FROM = 0x7fff, NAN_TO = 0x7e00;
};

struct fp32_t {
    typedef uint32_t raw;
    static __device__ __forceinline__ float load(raw v)
    {
        return __uint_as_float(v);
    }
};

/* The conversions make one NaN of all, whose halves equal NAN_FROM; nothing else does. */
template <typename E> static __device__ __forceinline__ uint32_t mend_nan(uint32_t word)
{
    const uint32_t zero_if_nan = word ^ (E::NAN_FROM << 16 | E::NAN_FROM);
    if (((zero_if_nan - 0x00010001) & ~zero_if_nan & 0x80008000) == 0) return word;
    if ((word & 0xffff) == E::NAN_FROM) word = (word & 0xffff0000) | E::NAN_TO;
    if (word >> 16 == E::NAN_FROM) word = (word & 0xffff) | E::NAN_TO << 16;
    return word;
}

template <typename E> static __device__ __forceinline__ void add_word(float *sum, uint32_t word)
{
    sum[0] = __fadd_rn(sum[0], E::load((typename E::raw)word));
    if (sizeof(typename E::raw) == 2) sum[1] = __fadd_rn(sum[1], E::load((typename E::raw)(word >> 16)));
}

template <typename E> static __device__ __forceinline__ uint32_t round_word(const float *sum)
{
    return mend_nan<E>(E::round(sum[0], sum[1]));
}

template <> __device__ __forceinline__ uint32_t round_word<fp32_t>(const float *sum)
{
    return sum[0] != sum[0] ? 0x7fc00000 : __float_as_uint(sum[0]);
}

/* ---- what is summed ---- */

/* Contribution n of a token, biases first; NULL behind the last. */
static __device__ __forceinline__ const char *contribution(const xep_cuda_combine_t &c, uint32_t token, uint32_t n)
{
    for (int b = 0; b < 2; b++) {
        if (c.bias[b] == nullptr) continue;
        if (n == 0) return c.bias[b] + token * c.bias_stride[b];
        n--;
    }
    if (n >= c.max_dests) return nullptr;
    const xep_cuda_dest_t dest = c.dest[(uint64_t)token * c.max_dests + n];
    if (dest.rank == XEP_CUDA_NOBODY) return nullptr;
    return c.there[dest.rank].area[XEP_CUDA_INPUT] + dest.row * c.row_stride;
}

/* Any number of contributions, any alignment of elements: from one element of a token to another. */
template <typename E>
static __device__ void sum_elements(const xep_cuda_combine_t &c, uint32_t token, uint32_t begin, uint32_t end)
{
    char *out = c.out + token * c.out_stride;
    for (uint32_t h = begin + threadIdx.x % 32; h < end; h += 32) {
        const char *row;
        float sum[2] = {};
        for (uint32_t n = 0; (row = contribution(c, token, n)) != nullptr; n++)
            sum[0] = __fadd_rn(sum[0], E::load(((const typename E::raw *)row)[h]));
        ((typename E::raw *)out)[h] = (typename E::raw)round_word<E>(sum);
    }
}

/* ---- chunks of rows, through shared memory: a warp keeps the contributions to some chunks on their way ---- */

typedef struct pulls {
    char *stage;       /* [stages][rows][chunk] */
    uint64_t *barrier; /* [stages] */
    uint32_t *found;   /* [stages] contributions */
    uint32_t of_row;   /* chunks of a row */
    uint32_t lane, lanes, count;
} pulls_t;

static __device__ __forceinline__ uint32_t chunk_bytes(const xep_cuda_combine_t &c, uint32_t row_bytes, uint32_t part)
{
    uint32_t left = row_bytes - part * c.chunk;
    return left < c.chunk ? left : c.chunk;
}

/* Each lane loads one contribution. */
static __device__ __forceinline__ void begin_pull(const xep_cuda_combine_t &c, const pulls_t &p, uint32_t i,
                                                  uint32_t row_bytes)
{
    const uint32_t unit = p.lane + i * p.lanes, token = unit / p.of_row, part = unit % p.of_row, stage = i % c.stages;
    const uint32_t bytes = chunk_bytes(c, row_bytes, part), n = threadIdx.x % 32;
    const char *row = n < c.rows ? contribution(c, token, n) : nullptr;
    const uint32_t found = __popc(__ballot_sync(UINT32_MAX, row != nullptr));
    if (n == 0) {
        p.found[stage] = found;
        expect_bytes(&p.barrier[stage], found * bytes);
    }
    __syncwarp();
    if (row != nullptr)
        begin_load(p.stage + (stage * c.rows + n) * c.chunk, row + part * c.chunk, bytes, &p.barrier[stage]);
}

template <typename E> static __device__ __forceinline__ void add_pack(float *sum, const int4 &pack)
{
    constexpr int EACH = 4 / sizeof(typename E::raw);
    add_word<E>(sum, pack.x);
    add_word<E>(sum + EACH, pack.y);
    add_word<E>(sum + 2 * EACH, pack.z);
    add_word<E>(sum + 3 * EACH, pack.w);
}

template <typename E> static __device__ __forceinline__ int4 round_pack(const float *sum)
{
    constexpr int EACH = 4 / sizeof(typename E::raw);
    return make_int4(round_word<E>(sum), round_word<E>(sum + EACH), round_word<E>(sum + 2 * EACH),
                     round_word<E>(sum + 3 * EACH));
}

/* N contributions, known to the compiler: all are loaded before the first is added. */
template <typename E, int N>
static __device__ __forceinline__ void sum_known(const char *rows, uint32_t chunk, int4 *out, uint32_t packs)
{
#pragma unroll 2
    for (uint32_t at = threadIdx.x % 32; at < packs; at += 32) {
        int4 pack[N];
        float sum[4 * (4 / sizeof(typename E::raw))] = {};
#pragma unroll
        for (int n = 0; n < N; n++) pack[n] = *(const int4 *)(rows + n * chunk + at * 16);
#pragma unroll
        for (int n = 0; n < N; n++) add_pack<E>(sum, pack[n]);
        out[at] = round_pack<E>(sum);
    }
}

template <typename E>
static __device__ __forceinline__ void sum_any(const char *rows, uint32_t chunk, int4 *out, uint32_t packs, uint32_t n)
{
    for (uint32_t at = threadIdx.x % 32; at < packs; at += 32) {
        float sum[4 * (4 / sizeof(typename E::raw))] = {};
        for (uint32_t i = 0; i < n; i++) add_pack<E>(sum, *(const int4 *)(rows + i * chunk + at * 16));
        out[at] = round_pack<E>(sum);
    }
}

template <typename E>
static __device__ __forceinline__ void sum_stage(const char *rows, uint32_t chunk, int4 *out, uint32_t packs,
                                                 uint32_t n)
{
    switch (n) {
    case 1: sum_known<E, 1>(rows, chunk, out, packs); break;
    case 2: sum_known<E, 2>(rows, chunk, out, packs); break;
    case 3: sum_known<E, 3>(rows, chunk, out, packs); break;
    case 4: sum_known<E, 4>(rows, chunk, out, packs); break;
    default: sum_any<E>(rows, chunk, out, packs, n);
    }
}

template <typename E>
static __device__ __forceinline__ void end_pull(const xep_cuda_combine_t &c, const pulls_t &p, uint32_t i,
                                                uint32_t row_bytes)
{
    const uint32_t unit = p.lane + i * p.lanes, token = unit / p.of_row, part = unit % p.of_row, stage = i % c.stages;
    const uint32_t packs = chunk_bytes(c, row_bytes, part) / 16;
    const char *rows = p.stage + stage * c.rows * c.chunk;
    int4 *out = (int4 *)(c.out + token * c.out_stride + part * c.chunk);
    wait_load(&p.barrier[stage], i / c.stages & 1);
    sum_stage<E>(rows, c.chunk, out, packs, p.found[stage]);
    __syncwarp();
}

template <typename E>
static __device__ void sum_chunks(const xep_cuda_combine_t &c, const pulls_t &p, uint32_t row_bytes)
{
    for (uint32_t i = 0; i < c.stages && i < p.count; i++) begin_pull(c, p, i, row_bytes);
    for (uint32_t i = 0; i < p.count; i++) {
        end_pull<E>(c, p, i, row_bytes);
        if (i + c.stages < p.count) begin_pull(c, p, i + c.stages, row_bytes);
    }
}

/* ---- the kernels ---- */

template <typename E> static __device__ void sum_tokens(const xep_cuda_combine_t &c, char *shared)
{
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = blockIdx.x * warps + warp,
                   lanes = gridDim.x * warps;
    const uint32_t stage_bytes = c.rows * c.chunk, whole = c.hidden * (uint32_t)sizeof(typename E::raw) & ~15u;
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)warps * c.stages * stage_bytes);
    uint32_t begin = 0;
    if (c.stages != 0) {
        pulls_t p = {shared + (uint64_t)warp * c.stages * stage_bytes,
                     barriers + warp * c.stages,
                     (uint32_t *)(barriers + warps * c.stages) + warp * c.stages,
                     (whole + c.chunk - 1) / c.chunk,
                     lane,
                     lanes,
                     0};
        const uint32_t units = c.tokens * p.of_row;
        if (lane < units) p.count = (units - lane + lanes - 1) / lanes;
        fence_for_bulk();
        sum_chunks<E>(c, p, whole);
        begin = whole / sizeof(typename E::raw);
    }
    for (uint32_t t = lane; begin < c.hidden && t < c.tokens; t += lanes) sum_elements<E>(c, t, begin, c.hidden);
}

/* A warp a token, a lane a weight: ranks ascending, as on the host. */
static __device__ void sum_weights(const xep_cuda_combine_t &c)
{
    const uint32_t warps = blockDim.x / 32, lane = blockIdx.x * warps + threadIdx.x / 32, lanes = gridDim.x * warps;
    for (uint32_t t = lane; t < c.tokens; t += lanes) {
        const xep_cuda_dest_t *dest = c.dest + (uint64_t)t * c.max_dests;
        float *out = (float *)(c.out_weights + t * c.out_weights_stride);
        for (uint32_t k = threadIdx.x % 32; k < c.topk; k += 32) {
            float sum = 0;
            for (uint32_t n = 0; n < c.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
                const char *weights = c.there[dest[n].rank].area[XEP_CUDA_INPUT_WEIGHTS];
                sum = __fadd_rn(sum, ((const float *)weights)[(uint64_t)dest[n].row * c.topk + k]);
            }
            out[k] = sum;
        }
    }
}

/* What this rank offers, before the word that says so. */
static __device__ __forceinline__ void say_offer(const xep_cuda_combine_t &c)
{
    for (uint32_t r = threadIdx.x; r < c.nranks; r += blockDim.x) {
        uint64_t *said = (uint64_t *)(c.peer[r] + c.said + c.rank * c.word_stride);
        said[0] = c.offer[0];
        said[1] = c.offer[1];
    }
    __threadfence_system();
    __syncthreads();
}

/* Whether all ranks that have an opinion offer the same. All threads of the block; the first two compare. */
static __device__ __forceinline__ int compare_offers(const xep_cuda_combine_t &c)
{
    uint64_t offer = UINT64_MAX;
    int same = 1;
    for (uint32_t r = 0; r < c.nranks && threadIdx.x < 2; r++) {
        volatile const uint64_t *said = (volatile const uint64_t *)(c.peer[c.rank] + c.said + r * c.word_stride);
        const uint64_t value = said[threadIdx.x];
        if (value == UINT64_MAX || value == offer) continue;
        if (offer != UINT64_MAX) {
            *(volatile uint32_t *)c.differs = r + 1;
            same = 0;
        }
        offer = value;
    }
    return __syncthreads_and(same);
}

/* Shared memory: for each warp its stages; then the barriers of all, then their numbers of contributions. */
template <typename E> static __device__ __forceinline__ void combine(const xep_cuda_combine_t &c)
{
    extern __shared__ __align__(128) char shared[];
    const uint32_t all = blockDim.x / 32 * c.stages;
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)all * c.rows * c.chunk);
    if (blockIdx.x == 0) {
        say_offer(c);
        tell_all(c.peer, c.rank, c.nranks, c.ready, c.word_stride, c.epoch);
    }
    for (uint32_t i = threadIdx.x; i < all; i += blockDim.x) open_barrier(&barriers[i]);
    share_barriers();
    if (wait_all(c.peer[c.rank], c.nranks, c.ready, c.word_stride, c.epoch, c.deadline) && compare_offers(c)) {
        sum_tokens<E>(c, shared);
        if (c.out_weights != nullptr) sum_weights(c);
    }
    if (!is_last_block(c.blocks_done)) return;
    tell_all(c.peer, c.rank, c.nranks, c.read, c.word_stride, c.epoch);
    wait_all(c.peer[c.rank], c.nranks, c.read, c.word_stride, c.epoch, c.at_the_end);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_combine_bf16(const __grid_constant__ xep_cuda_combine_t c)
{
    combine<bf16_t>(c);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_combine_fp16(const __grid_constant__ xep_cuda_combine_t c)
{
    combine<fp16_t>(c);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_combine_fp32(const __grid_constant__ xep_cuda_combine_t c)
{
    combine<fp32_t>(c);
}
