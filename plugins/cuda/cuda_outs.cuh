/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Going on without ranks (XEP_ON_FAILURE_MASK). A kernel that waits for a rank gives it up when the host says that it
 * is gone, or at the deadline if that rank is not waiting in a kernel of this buffer itself. No host is needed: a graph
 * that is replayed goes on, too.
 *
 * To give a rank up is to seal its claim, a word in its own heap, by an atomic operation: then the rank finds that it
 * is out and tells nothing any more, and all see the same number in it. In mode normal a rank claims an operation, by
 * a compare-and-swap that fails once it is sealed, when its record is in its own heap and in no other. So an operation
 * counts the record of a rank that is out if the claim says so, on all ranks alike, and who has not got it fetches it
 * from that heap: places are the same everywhere. Whether the rows came each rank finds for itself, by the last word.
 * In mode ll, where receivers lay and pull their rows themselves, nothing has to be alike, and nothing is claimed.
 *
 * One block decides for the whole grid, as a word may come between two looks.
 */
#ifndef XEP_CUDA_OUTS_CUH
#define XEP_CUDA_OUTS_CUH

#include "cuda_words.cuh"

enum { LATE = -1, PATIENCE = 3 /* deadlines of a rank that waits itself */, GRACE_SHARE = 20, HAS_ENDED = 2 };

/* Who waits: heaps as this device reaches them. */
typedef struct waiter {
    const xep_cuda_outs_t &outs;
    char *const *peer;
    uint32_t rank, nranks;
} waiter_t;

/* Kernels that are compiled with all ranks are for buffers that leave none out. */
static __device__ __forceinline__ int leaves_out(const xep_cuda_outs_t &outs)
{
#ifdef XEP_CUDA_WITH_ALL
    return 0;
#else
    return outs.gone != nullptr;
#endif
}

static __device__ __forceinline__ xep_cuda_own_words_t *words_of(const waiter_t &w, uint32_t rank)
{
    return (xep_cuda_own_words_t *)(w.peer[rank] + w.outs.words);
}

static __device__ __forceinline__ uint32_t how_with(const xep_cuda_outs_t &outs, uint32_t rank)
{
    return ((const volatile uint32_t *)outs.with)[rank];
}

/* Whether the host says that the rank is out. */
static __device__ __forceinline__ uint32_t is_gone(const waiter_t &w, uint32_t rank)
{
    return ((const volatile uint32_t *)w.outs.gone)[rank];
}

static __device__ __forceinline__ void leave_out(const waiter_t &w, uint32_t rank)
{
    const uint64_t claim = atomicOr_system((unsigned long long *)&words_of(w, rank)->claim, 1ull);
    ((volatile uint64_t *)w.outs.out)[rank] = claim / 2 + 1;
    ((volatile uint32_t *)w.outs.left)[rank] = 1;
}

/* Others have left this rank out. */
static __device__ __forceinline__ int is_left_by_others(const waiter_t &w)
{
    if (load_word((const char *)&words_of(w, w.rank)->claim) % 2 == 0) return 0;
    ((volatile uint32_t *)w.outs.left)[w.rank] = 1;
    return 1;
}

static __device__ __forceinline__ uint64_t grace_ns(uint64_t timeout_ns)
{
    const uint64_t least = 5 * 1000 * 1000, most = 1000 * 1000 * 1000, share = timeout_ns / GRACE_SHARE;
    return share < least ? least : share > most ? most : share;
}

/* Until a rank is to be given up: 1. 0: its word has come; LATE: neither, in a long time. */
static __device__ int wait_until_given_up(const waiter_t &w, const char *address, uint32_t rank, uint64_t value,
                                          const xep_cuda_deadline_t &deadline)
{
    uint64_t begin = clock_ns(), doubted = 0, beat = 0;
    for (uint32_t looks = 1, over = 0; load_word(address) < value; looks++) {
        if (looks % 256 != 0) continue;
        const uint64_t now = clock_ns();
        if (*(volatile const uint32_t *)deadline.stop != 0) return LATE;
        *(volatile uint64_t *)&words_of(w, w.rank)->beat = now;
        if (is_gone(w, rank)) return 1;
        if (deadline.timeout_ns == 0) continue;
        if (doubted == 0 && now - begin >= deadline.timeout_ns) {
            doubted = now;
            beat = load_word((const char *)&words_of(w, rank)->beat);
        } else if (doubted != 0 && now - doubted >= grace_ns(deadline.timeout_ns)) {
            if (load_word((const char *)&words_of(w, rank)->beat) == beat) return 1;
            if (++over == PATIENCE) {
                *(volatile uint32_t *)deadline.late = rank + 1;
                return LATE;
            }
            doubted = 0;
            begin = now;
        }
    }
    return 0;
}

/* One thread: how the operation is with a rank whose word should be at a value; or LATE. */
static __device__ int await_rank(const waiter_t &w, const char *address, uint32_t rank, uint64_t value, uint64_t epoch,
                                 const xep_cuda_deadline_t &deadline)
{
    const volatile uint64_t *out = &w.outs.out[rank];
    if (*out != 0 && epoch >= *out) return XEP_CUDA_WITHOUT;
    if (*out == 0 && w.outs.some_gone && is_gone(w, rank)) leave_out(w, rank);
    if (*out == 0) {
        const int over = wait_until_given_up(w, address, rank, value, deadline);
        if (over == LATE) return LATE;
        if (over) leave_out(w, rank);
    }
    if (*out != 0 && epoch >= *out) return XEP_CUDA_WITHOUT;
    return load_word(address) >= value ? XEP_CUDA_WITH : XEP_CUDA_HEARD;
}

/* All threads of a block: waits for all ranks, whose words are at(rank); calls heard(rank, how). 0: step is lost. */
template <typename F, typename G>
static __device__ int await_all(const waiter_t &w, F at, uint64_t value, uint64_t epoch,
                                const xep_cuda_deadline_t &deadline, G heard)
{
    int good = 1;
    for (uint32_t r = threadIdx.x; r < w.nranks; r += blockDim.x) {
        const int how = await_rank(w, at(r), r, value, epoch, deadline);
        if (how == LATE) good = 0;
        else heard(r, (uint32_t)how);
    }
    if (threadIdx.x == 0 && is_left_by_others(w)) good = 0;
    return __syncthreads_and(good);
}

/*
 * All threads of all blocks, once in a kernel: block 0 waits for the ranks, unless it has lost step already, and all
 * others take from it whom the operation is with, and whether it goes on.
 */
template <typename F, typename G>
static __device__ int decide(const waiter_t &w, int good, F at, uint64_t value, uint64_t epoch,
                             const xep_cuda_deadline_t &deadline, G heard)
{
    __shared__ int goes_on;
    if (blockIdx.x == 0) {
        if (good)
            good = await_all(w, at, value, epoch, deadline, [&](uint32_t r, uint32_t how) {
                ((volatile uint32_t *)w.outs.with)[r] = how;
                heard(r, how);
            });
        if (threadIdx.x == 0) {
            __threadfence();
            store_word((char *)w.outs.decided, epoch * 2 + (uint64_t)(good != 0));
        }
        return good;
    }
    if (threadIdx.x == 0) {
        uint64_t decided;
        while ((decided = load_word((const char *)w.outs.decided)) / 2 < epoch) continue; /* block 0 has a deadline */
        goes_on = (int)(decided % 2);
    }
    __syncthreads();
    return goes_on;
}

#endif
