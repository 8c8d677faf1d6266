/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows of the mode for host memory that stay on devices: xep/direct.h. Lists are in pinned memory, and read once. */
#include <xep/direct.h>

#include "cuda_captured.cuh" /* the kernels of the mode for host memory are one image */
#include "cuda_copy.cuh"
#include "cuda_elements.cuh"

enum { MOST_ROWS = XEP_DIRECT_MOST_ROWS };

/* ---- gather ---- */

/* The last rank whose rows begin at or before this one. */
static __device__ __forceinline__ uint32_t rank_of(const xep_direct_gather_t &g, uint64_t row)
{
    uint32_t low = 0, high = g.nranks - 1;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (g.begin[middle] <= row) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* A warp a row. */
extern "C" __global__ void __launch_bounds__(1024) xep_cuda_gather(const __grid_constant__ xep_direct_gather_t g)
{
    const uint64_t warps = (uint64_t)gridDim.x * blockDim.x / 32, rows = g.begin[g.nranks];
    const uint64_t odd = (uint64_t)g.x | g.x_stride | g.bytes;
    for (uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < rows; i += warps) {
        const uint32_t rank = rank_of(g, i);
        copy_row(g.to[rank] + (i - g.begin[rank]) * g.stride, g.x + g.tokens[i] * g.x_stride, g.bytes, odd);
    }
}

/* ---- sums ---- */

template <typename E>
static __device__ __forceinline__ void sum_pack(const char *const *rows, uint32_t n, uint64_t at, char *out)
{
    constexpr int EACH = 4 / sizeof(typename E::raw);
    float sum[4 * EACH] = {};
    for (uint32_t i = 0; i < n; i++) {
        const int4 pack = *(const int4 *)(rows[i] + at);
        add_word<E, false>(sum, pack.x, 1);
        add_word<E, false>(sum + EACH, pack.y, 1);
        add_word<E, false>(sum + 2 * EACH, pack.z, 1);
        add_word<E, false>(sum + 3 * EACH, pack.w, 1);
    }
    uint32_t word[4];
    for (int w = 0; w < 4; w++) word[w] = round_word<E>(sum + EACH * w);
    *(int4 *)(out + at) = make_int4((int)word[0], (int)word[1], (int)word[2], (int)word[3]);
}

template <typename E>
static __device__ __forceinline__ void sum_element(const char *const *rows, uint32_t n, uint64_t h, char *out)
{
    typedef typename E::raw raw;
    float sum[2] = {};
    for (uint32_t i = 0; i < n; i++) sum[0] = add_float<false>(sum[0], E::load(((const raw *)rows[i])[h]), 1);
    ((raw *)out)[h] = (raw)round_word<E>(sum);
}

/* The rows of a token, biases first; whether packs will not do is or-ed into *odd_p. At most MOST_ROWS. */
static __device__ __forceinline__ uint32_t list_rows(const xep_direct_sum_t &s, uint32_t token, const char **rows,
                                                     uint64_t *odd_p)
{
    const uint64_t first = s.first[token], terms = s.first[token + 1] - first;
    const uint32_t biases = (s.bias[0] != nullptr) + (s.bias[1] != nullptr);
    for (uint32_t i = threadIdx.x; i < terms + biases && i < MOST_ROWS; i += blockDim.x) {
        const char *row;
        if (i < biases) {
            const int b = s.bias[0] == nullptr || i == 1;
            row = s.bias[b] + token * s.bias_stride[b];
        } else {
            const xep_direct_term_t term = s.terms[first + i - biases];
            row = s.sources[term.rank].x + term.row * s.sources[term.rank].stride;
        }
        rows[i] = row;
        if ((uint64_t)row % 16 != 0) *odd_p = 1;
    }
    return (uint32_t)(terms + biases);
}

/* A block a token. */
template <typename E> static __device__ __forceinline__ void sum_all(const xep_direct_sum_t &s)
{
    __shared__ const char *rows[MOST_ROWS];
    __shared__ uint64_t odd;
    const uint64_t bytes = s.hidden * sizeof(typename E::raw);
    for (uint32_t t = blockIdx.x; t < s.tokens; t += gridDim.x) {
        char *out = s.out + t * s.out_stride;
        if (threadIdx.x == 0) odd = (uint64_t)out % 16 != 0;
        __syncthreads();
        const uint32_t n = list_rows(s, t, rows, &odd);
        __syncthreads();
        const uint64_t packed = odd ? 0 : bytes / 16 * 16;
        for (uint64_t at = threadIdx.x * 16; at < packed; at += blockDim.x * 16) sum_pack<E>(rows, n, at, out);
        for (uint64_t h = packed / sizeof(typename E::raw) + threadIdx.x; h < s.hidden; h += blockDim.x)
            sum_element<E>(rows, n, h, out);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(1024) xep_cuda_sum_bf16(const __grid_constant__ xep_direct_sum_t s)
{
    sum_all<bf16_t>(s);
}

extern "C" __global__ void __launch_bounds__(1024) xep_cuda_sum_fp16(const __grid_constant__ xep_direct_sum_t s)
{
    sum_all<fp16_t>(s);
}

extern "C" __global__ void __launch_bounds__(1024) xep_cuda_sum_fp32(const __grid_constant__ xep_direct_sum_t s)
{
    sum_all<fp32_t>(s);
}
