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

/** A release, as that of store_word(). */
__device__ __forceinline__ void add_word_to(char *address, uint64_t value)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/** Orders nothing. */
__device__ __forceinline__ void add_plainly(char *address, uint64_t value)
{
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
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

/** One thread: waits until is_here() says that a rank has told something. 0: the deadline has passed. */
template <typename F>
__device__ __forceinline__ int wait_until(F is_here, uint32_t rank, const xep_cuda_deadline_t &deadline)
{
    if (is_here()) return 1;
    const uint64_t begin = clock_ns();
    for (uint32_t looks = 1; !is_here(); looks++) {
        /* the word that stops is in the host's memory: far away */
        if (looks % 256 == 0 && *(volatile const uint32_t *)deadline.stop != 0) return 0;
        if (deadline.timeout_ns == 0 || clock_ns() - begin < deadline.timeout_ns) continue;
        *(volatile uint32_t *)deadline.late = rank + 1;
        return 0;
    }
    return 1;
}

/** The same, until the word of a rank is at an epoch. */
__device__ __forceinline__ int wait_word(const char *address, uint32_t rank, uint64_t epoch,
                                         const xep_cuda_deadline_t &deadline)
{
    return wait_until([=] { return load_word(address) >= epoch; }, rank, deadline);
}

/* ---- numbers of 4 bytes that are told each with the epoch beside it: whoever sees that has the number ---- */

__device__ __forceinline__ void store_told(uint64_t *address, uint32_t number, uint64_t epoch)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(epoch << 32 | number) : "memory");
}

__device__ __forceinline__ uint64_t load_told(const uint64_t *address)
{
    uint64_t told;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(told) : "l"(address) : "memory");
    return told;
}

/** One thread: waits for what a rank tells in an epoch. 0: the deadline has passed. */
__device__ __forceinline__ int wait_told(const uint64_t *address, uint32_t rank, uint64_t epoch,
                                         const xep_cuda_deadline_t &deadline, uint32_t *number_p)
{
    uint64_t told;
    const int here = wait_until(
        [&] {
            told = load_told(address);
            return (uint32_t)(told >> 32) == (uint32_t)epoch;
        },
        rank, deadline);
    *number_p = (uint32_t)told;
    return here;
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
 * Whether all ranks that have an opinion offer the same, as it is said at(rank); else differs is a rank whose offer is
 * another than that of a rank before it, plus 1. All threads of the block; a warp compares a word, a lane has a rank.
 */
template <typename F> __device__ __forceinline__ int compare_offers(uint32_t nranks, F at, uint32_t *differs)
{
    int same = 1;
    for (uint32_t word = threadIdx.x / 32; word < 2; word += blockDim.x / 32) {
        uint64_t offer = UINT64_MAX;
        for (uint32_t begin = 0; begin < nranks; begin += 32) {
            const uint32_t r = begin + threadIdx.x % 32;
            const uint64_t value = r < nranks ? ((volatile const uint64_t *)at(r))[word] : UINT64_MAX;
            const uint32_t said = __ballot_sync(UINT32_MAX, value != UINT64_MAX);
            if (offer == UINT64_MAX && said != 0) offer = __shfl_sync(UINT32_MAX, value, __ffs((int)said) - 1);
            if (value == UINT64_MAX || value == offer) continue;
            *(volatile uint32_t *)differs = r + 1;
            same = 0;
        }
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

/** What a block adds to a word that goes up by so many times a whole, or a half. */
__device__ __forceinline__ uint64_t share_of(uint64_t times, uint32_t whole)
{
    const uint32_t each = whole / gridDim.x;
    return times * (blockIdx.x == 0 ? whole - each * (gridDim.x - 1) : each);
}

/**
 * All threads of each block, once in a kernel, when the block is done: as soon as all have told, the word of this
 * rank at every rank has gone from one epoch to another, and all that they wrote is visible to whom it tells. Each adds
 * its share, so no block waits for another, and each has one fence: a word by the last block would have two, and an
 * atomic operation between them. Of a block that has lost step only this rank itself hears.
 */
__device__ __forceinline__ void add_share(char *const *peer, uint32_t rank, uint32_t nranks, uint64_t word,
                                          uint64_t word_stride, uint64_t share, int good)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x + (good ? 0 : nranks - 1); i < nranks; i += blockDim.x)
        add_word_to(peer[(rank + 1 + i) % nranks] + word + rank * word_stride, share);
}

/** The same of whole epochs. */
__device__ __forceinline__ void tell_share(char *const *peer, uint32_t rank, uint32_t nranks, uint64_t word,
                                           uint64_t word_stride, uint64_t from, uint64_t to, int good)
{
    add_share(peer, rank, nranks, word, word_stride, share_of(to - from, XEP_CUDA_WHOLE), good);
}

/**
 * The same of a word that says only what a block has read. It has no fence, which would wait for what the block has
 * stored: nothing goes with the word, and every value that was loaded is in a register or in shared memory by then.
 */
__device__ __forceinline__ void tell_read(char *const *peer, uint32_t rank, uint32_t nranks, uint64_t word,
                                          uint64_t word_stride, uint64_t from, uint64_t to)
{
    const uint64_t share = share_of(to - from, XEP_CUDA_WHOLE);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < nranks; i += blockDim.x)
        add_plainly(peer[(rank + 1 + i) % nranks] + word + rank * word_stride, share);
}

/** One thread of a block that has told: until all blocks of this kernel have. They run at the same time. */
__device__ __forceinline__ void wait_for_blocks(const char *word, uint64_t epoch)
{
    while (load_word(word) < epoch * XEP_CUDA_WHOLE) continue;
}

#endif
