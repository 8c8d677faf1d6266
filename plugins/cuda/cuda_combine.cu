/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: pulls the rows that ranks contribute to a token and sums them: +0, biases, then ranks ascending. */
#include "cuda_kernels.h"
#include "cuda_sum.cuh"
#include "cuda_words.cuh"

/* Biases first, then the ranks that got the token. */
static __device__ __forceinline__ const char *contribution(const xep_cuda_combine_t &c, uint32_t token, uint32_t n,
                                                           float *weight_p)
{
    const char *bias = bias_of(c.sum, token, &n);
    (void)weight_p;
    if (bias != nullptr) return bias;
    const xep_cuda_dest_t dest = c.dest[(uint64_t)token * c.max_dests + n];
    if (dest.rank == XEP_CUDA_NOBODY) return nullptr;
    return c.there[dest.rank].area[XEP_CUDA_INPUT] + dest.row * c.row_stride;
}

/* A warp a token, a lane a weight: ranks ascending, as on the host. */
static __device__ void sum_weights(const xep_cuda_combine_t &c)
{
    const uint32_t warps = blockDim.x / 32, lane = blockIdx.x * warps + threadIdx.x / 32, lanes = gridDim.x * warps;
    for (uint32_t t = lane; t < c.sum.tokens; t += lanes) {
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

/* Waits for the others, in every block by itself; then sums where they agree and the dispatch has moved rows. */
template <typename E>
static __device__ __forceinline__ void sum_all(const xep_cuda_combine_t &c, uint64_t epoch, char *shared)
{
    if (!wait_all(c.peer[c.rank], c.nranks, c.ready, c.word_stride, epoch, c.deadline)) {
        lose_step(&c.now->lost, epoch);
        return;
    }
    if (!compare_offers(
            c.nranks, [&](uint32_t r) { return c.peer[c.rank] + c.said + r * c.word_stride; }, c.differs) ||
        *c.verdict != XEP_CUDA_GO)
        return;
    sum_tokens<E, false>(c, shared);
    if (c.out_weights != nullptr) sum_weights(c);
}

/*
 * The last block counts the operation: by then all blocks have read the epoch of the one before. Where a rank did not
 * come in time it may come yet, and find the input as it was, since the end of this kernel waits for it once more.
 */
template <typename E> static __device__ __forceinline__ void combine(const xep_cuda_combine_t &c)
{
    extern __shared__ __align__(128) char shared[];
    const uint64_t epoch = c.now->epoch + 1;
    const int lost = has_lost_step(&c.now->lost, epoch); /* loaded beside the other word, not behind it */
    if (is_stale(c.life) || lost) return;                /* all blocks */
    /* one block tells; its word to this rank itself is among those that all blocks wait for */
    if (blockIdx.x == 0) {
        say_offer(c.peer, c.nranks, c.said + c.rank * c.word_stride, c.offer);
        tell_all(c.peer, c.rank, c.nranks, c.ready, c.word_stride, epoch);
    }
    open_pulls(c.sum, shared);
    sum_all<E>(c, epoch, shared);
    if (!is_last_block(c.blocks_done)) return;
    if (threadIdx.x == 0) c.now->epoch = epoch;
    /* all blocks have pulled what they sum; told also where they summed nothing, as the owners wait for it */
    tell_all(c.peer, c.rank, c.nranks, c.read, c.word_stride, epoch);
    if (!wait_all(c.peer[c.rank], c.nranks, c.read, c.word_stride, epoch, c.at_the_end)) lose_step(&c.now->lost, epoch);
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
