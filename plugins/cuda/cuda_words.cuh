/* SPDX-License-Identifier: BSD-3-Clause */

/** Words between devices: a release by one thread of one rank, an acquire by those that wait, and a deadline. */
#ifndef XEP_CUDA_WORDS_CUH
#define XEP_CUDA_WORDS_CUH

#include "cuda_args.h"

__device__ __forceinline__ void store_word(char *address, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_word(const char *address)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

/** Waits for all threads of a cluster, whose blocks run at the same time: each sees what any of them wrote before. */
__device__ __forceinline__ void sync_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/**
 * A kernel that was launched to follow may begin when all blocks of the one before it have said so, or ended; it waits
 * itself until that one has ended, and then sees all that it wrote.
 */
__device__ __forceinline__ void begin_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_last()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ uint64_t clock_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

/**
 * Tells every rank, each by another thread of the block: what those threads saw written is there when the word is. A
 * release waits for 2 us until all stores have come, so no fence is before it.
 */
__device__ __forceinline__ void tell_all(char *const *peer, uint32_t rank, uint32_t nranks, uint64_t word,
                                         uint64_t word_stride, uint64_t epoch)
{
    for (uint32_t i = threadIdx.x; i < nranks; i += blockDim.x) {
        uint32_t to = (rank + 1 + i) % nranks; /* no rank is everyone's first */
        store_word(peer[to] + word + rank * word_stride, epoch);
    }
}

/** One thread: waits until the word of a rank is at an epoch. 0: the deadline has passed. */
__device__ __forceinline__ int wait_word(const char *address, uint32_t rank, uint64_t epoch,
                                         const xep_cuda_deadline_t &deadline)
{
    if (load_word(address) >= epoch) return 1;
    const uint64_t begin = clock_ns();
    for (uint32_t looks = 1; load_word(address) < epoch; looks++) {
        /* the word that stops is in the host's memory: far away */
        if (looks % 256 == 0 && *(volatile const uint32_t *)deadline.stop != 0) return 0;
        if (deadline.timeout_ns == 0 || clock_ns() - begin < deadline.timeout_ns) continue;
        *(volatile uint32_t *)deadline.late = rank + 1;
        return 0;
    }
    return 1;
}

/**
 * Waits until the words of all ranks, which are where at(rank) says, are at an epoch. All threads of the block; 0: the
 * deadline has passed.
 */
template <typename F>
__device__ __forceinline__ int wait_words(uint32_t nranks, F at, uint64_t epoch, const xep_cuda_deadline_t &deadline)
{
    int here = 1;
    for (uint32_t r = threadIdx.x; r < nranks && here; r += blockDim.x) here = wait_word(at(r), r, epoch, deadline);
    return __syncthreads_and(here);
}

/** The same of words that lie at equal distances in this rank's heap. */
__device__ __forceinline__ int wait_all(const char *heap, uint32_t nranks, uint64_t word, uint64_t word_stride,
                                        uint64_t epoch, const xep_cuda_deadline_t &deadline)
{
    return wait_words(
        nranks, [=](uint32_t r) { return heap + word + r * word_stride; }, epoch, deadline);
}

/**
 * Whether all ranks that have an opinion offer the same, as it is said at(rank); else differs is the second rank of two
 * that do not, plus 1. All threads of the block; the first two compare.
 */
template <typename F> __device__ __forceinline__ int compare_offers(uint32_t nranks, F at, uint32_t *differs)
{
    uint64_t offer = UINT64_MAX;
    int same = 1;
    for (uint32_t r = 0; r < nranks && threadIdx.x < 2; r++) {
        const uint64_t value = ((volatile const uint64_t *)at(r))[threadIdx.x];
        if (value == UINT64_MAX || value == offer) continue;
        if (offer != UINT64_MAX) {
            *(volatile uint32_t *)differs = r + 1;
            same = 0;
        }
        offer = value;
    }
    return __syncthreads_and(same);
}

/** Whether the operation was called before a reset: of a graph, which is told of, and does nothing. */
__device__ __forceinline__ int is_stale(const xep_cuda_life_t &life)
{
    if (*life.now == life.number) return 0;
    if (threadIdx.x == 0) *(volatile uint32_t *)life.stale = 1;
    return 1;
}

/** All threads of the block: of what the buffer does next, nothing is done any more. */
__device__ __forceinline__ void lose_step(uint64_t *lost, uint64_t epoch)
{
    if (threadIdx.x == 0) *(volatile uint64_t *)lost = epoch;
}

/** Whether an operation before this one has lost step; not if only another block of this one has. */
__device__ __forceinline__ int has_lost_step(const uint64_t *lost, uint64_t epoch)
{
    const uint64_t first = *(const volatile uint64_t *)lost;
    return first != 0 && first < epoch;
}

/**
 * True in the last block of the grid that comes here: all that the others wrote is visible to it, and to whom it tells.
 * One thread orders what its block wrote: with 1,024 of them that waited for their stores each, this took microseconds.
 */
__device__ __forceinline__ int is_last_block(uint32_t *blocks_done)
{
    __shared__ uint32_t before;
    __syncthreads();
    if (gridDim.x == 1) return 1; /* words are releases of threads that have seen what their block wrote */
    if (threadIdx.x == 0) {
        __threadfence_system();
        before = atomicAdd(blocks_done, 1);
        if (before == gridDim.x - 1) {
            *blocks_done = 0;
            __threadfence(); /* of this device: words are releases to all */
        }
    }
    __syncthreads();
    return before == gridDim.x - 1;
}

#endif
