/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The records that ranks tell each other before rows move. The host checks and compares them too, as it does for rows
 * in its own memory, and finds the words for what is wrong; here it is only found whether rows may move, so that nobody
 * waits for a host. Both look at the same records.
 */
#include "cuda_kernels.h"
#include "cuda_words.cuh"

#include <stddef.h>

enum { HEADER = sizeof(normal_record_t) / 4, AGREES_WITH_ALL = -1 };

static __device__ __forceinline__ const uint32_t *record_of(const xep_cuda_counts_t &counts, uint32_t source)
{
    return (const uint32_t *)(counts.peer[counts.rank] + counts.ring + source * counts.record_bytes);
}

static __device__ __forceinline__ const normal_record_t &header_of(const xep_cuda_counts_t &counts, uint32_t source)
{
    return *(const normal_record_t *)record_of(counts, source);
}

static __device__ __forceinline__ uint32_t experts_of(const xep_cuda_counts_t &counts, uint32_t rank)
{
    return counts.first_expert[rank + 1] - counts.first_expert[rank];
}

/* A warp writes the record of one rank: rows to everyone, and the selections of that rank's experts. */
static __device__ __forceinline__ void store_record(const xep_cuda_counts_t &counts, uint32_t to, uint32_t wrong)
{
    uint32_t *record = (uint32_t *)(counts.peer[to] + counts.ring + counts.rank * counts.record_bytes);
    const uint32_t *header = (const uint32_t *)&counts.header;
    const uint32_t first = counts.first_expert[to], lane = threadIdx.x % 32;
    for (uint32_t i = lane; i < HEADER; i += 32)
        record[i] = i == offsetof(normal_record_t, wrong) / 4 ? wrong : header[i];
    if (counts.header.params[NORMAL_CACHED]) return;
    record += HEADER;
    for (uint32_t i = lane; i < counts.nranks; i += 32) record[i] = counts.rows[i];
    for (uint32_t i = lane; i < experts_of(counts, to); i += 32)
        record[counts.nranks + i] = counts.selections[first + i];
}

/* A warp shows the host what came from one rank. */
static __device__ __forceinline__ void mirror_record(const xep_cuda_counts_t &counts, uint32_t from)
{
    uint32_t *to = (uint32_t *)(counts.mirror + from * counts.record_bytes), words = HEADER;
    if (!counts.header.params[NORMAL_CACHED]) words += counts.nranks + experts_of(counts, counts.rank);
    for (uint32_t i = threadIdx.x % 32; i < words; i += 32) to[i] = record_of(counts, from)[i];
}

static __device__ __forceinline__ int is_sound(const xep_cuda_counts_t &counts, uint32_t rank)
{
    const normal_record_t &header = header_of(counts, rank), &first = header_of(counts, 0);
    return header.epoch == counts.header.epoch && header.wrong == 0 && header.slot < counts.slots &&
           header.capacity <= counts.recv_rows &&
           (!counts.header.params[NORMAL_CACHED] || header.routing == first.routing);
}

/* Whether all ranks that have an opinion of a parameter have the same. */
static __device__ __forceinline__ int is_agreed(const xep_cuda_counts_t &counts, uint32_t param)
{
    uint32_t said = (uint32_t)AGREES_WITH_ALL;
    for (uint32_t r = 0; r < counts.nranks; r++) {
        const uint32_t value = header_of(counts, r).params[param];
        if (value == (uint32_t)AGREES_WITH_ALL || value == said) continue;
        if (said != (uint32_t)AGREES_WITH_ALL) return 0;
        said = value;
    }
    return 1;
}

/* Rows to a rank: whether they have room there. Where those of this rank begin is in *before_p. */
static __device__ __forceinline__ int add_rank(const xep_cuda_counts_t &counts, uint32_t rank, uint64_t *before_p)
{
    uint64_t all = 0;
    for (uint32_t s = 0; s < counts.nranks; s++) {
        uint32_t *rows = &counts.rank_rows[s * counts.nranks + rank];
        if (s == counts.rank) *before_p = all;
        if (!counts.header.params[NORMAL_CACHED]) *rows = record_of(counts, s)[HEADER + rank];
        all += *rows;
    }
    return all <= header_of(counts, rank).capacity;
}

static __device__ __forceinline__ void find_places(const xep_cuda_counts_t &counts, uint32_t rank, uint64_t row)
{
    const uint32_t slot = header_of(counts, rank).slot;
    for (int i = 0; i < XEP_CUDA_AREAS; i++) {
        const xep_cuda_area_t &area = counts.area[i];
        counts.there[rank].area[i] = counts.peer[rank] + area.first + slot * area.stride + row * area.row_bytes;
    }
}

/* All threads of the block; true: rows may move. */
static __device__ __forceinline__ int judge(const xep_cuda_counts_t &counts)
{
    int good = 1;
    for (uint32_t p = threadIdx.x; p < NORMAL_PARAMS; p += blockDim.x) good &= is_agreed(counts, p);
    for (uint32_t r = threadIdx.x; r < counts.nranks; r += blockDim.x) {
        uint64_t row = 0;
        good &= is_sound(counts, r) & add_rank(counts, r, &row);
        if (good) find_places(counts, r, row);
    }
    return __syncthreads_and(good);
}

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_counts(const __grid_constant__ xep_cuda_counts_t counts)
{
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const uint64_t first = counts.header.params[NORMAL_CACHED] ? UINT64_MAX : *counts.wrong;
    if (threadIdx.x == 0) *counts.verdict = XEP_CUDA_LOST;
    for (uint32_t i = warp; i < counts.nranks; i += warps)
        store_record(counts, (counts.rank + 1 + i) % counts.nranks, first != UINT64_MAX);
    __threadfence_system();
    __syncthreads();
    tell_all(counts.peer, counts.rank, counts.nranks, counts.word, counts.word_stride, counts.header.epoch);
    if (!wait_all(counts.peer[counts.rank], counts.nranks, counts.word, counts.word_stride, counts.header.epoch,
                  counts.deadline))
        return;
    const int go = judge(counts);
    for (uint32_t r = warp; r < counts.nranks; r += warps) mirror_record(counts, r);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) return;
    *counts.verdict = go ? XEP_CUDA_GO : XEP_CUDA_STAY;
    *counts.wrong_first = first;
    __threadfence_system();
    *(volatile uint64_t *)counts.counted = counts.header.epoch;
}
