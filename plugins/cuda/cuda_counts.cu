/* SPDX-License-Identifier: BSD-3-Clause */

/* The records that ranks tell each other before rows move. */
#include "cuda_words.cuh"

static __device__ __forceinline__ const uint32_t *record_of(const xep_cuda_counts_t &counts, uint32_t source)
{
    return (const uint32_t *)(counts.peer[counts.rank] + counts.record + source * counts.record_bytes);
}

/* A warp writes the record of one rank: rows to everyone, and the selections of that rank's experts. */
static __device__ __forceinline__ void store_record(const xep_cuda_counts_t &counts, uint32_t to)
{
    uint32_t *record = (uint32_t *)(counts.peer[to] + counts.record + counts.rank * counts.record_bytes);
    uint32_t first = counts.first_expert[to], local = counts.first_expert[to + 1] - first;
    for (uint32_t i = threadIdx.x % 32; i < counts.nranks; i += 32) record[i] = counts.rows[i];
    for (uint32_t i = threadIdx.x % 32; i < local; i += 32) record[counts.nranks + i] = counts.selections[first + i];
}

static __device__ __forceinline__ void add_rank(const xep_cuda_counts_t &counts, uint32_t rank, uint32_t *overflow)
{
    uint64_t before = 0, all = 0;
    for (uint32_t s = 0; s < counts.nranks; s++) {
        uint32_t rows = record_of(counts, s)[rank];
        counts.rank_rows[s * counts.nranks + rank] = rows;
        if (s == counts.rank) before = all;
        if (rank == counts.rank) counts.src_begin[s] = all;
        all += rows;
    }
    counts.place[rank] = before;
    if (rank == counts.rank) counts.src_begin[counts.nranks] = all;
    if (all > counts.capacity) atomicOr(overflow, 1);
}

static __device__ __forceinline__ void add_expert(const xep_cuda_counts_t &counts, uint32_t local)
{
    uint64_t selections = 0;
    for (uint32_t s = 0; s < counts.nranks; s++) selections += record_of(counts, s)[counts.nranks + local];
    counts.expert_rows[local] = selections;
}

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_counts(const __grid_constant__ xep_cuda_counts_t counts)
{
    __shared__ uint32_t overflow;
    const uint32_t local = counts.first_expert[counts.rank + 1] - counts.first_expert[counts.rank];
    if (threadIdx.x == 0) overflow = 0;
    for (uint32_t i = threadIdx.x / 32; i < counts.nranks; i += blockDim.x / 32)
        store_record(counts, (counts.rank + 1 + i) % counts.nranks);
    __threadfence_system();
    __syncthreads();
    tell_all(counts.peer, counts.rank, counts.nranks, counts.word, counts.word_stride, counts.epoch);
    if (!wait_all(counts.peer[counts.rank], counts.nranks, counts.word, counts.word_stride, counts.epoch,
                  counts.deadline))
        return;
    for (uint32_t r = threadIdx.x; r < counts.nranks; r += blockDim.x) add_rank(counts, r, &overflow);
    for (uint32_t e = threadIdx.x; e < local; e += blockDim.x) add_expert(counts, e);
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    *(volatile uint64_t *)counts.counted = overflow ? UINT64_MAX : counts.src_begin[counts.nranks] + 1;
}
