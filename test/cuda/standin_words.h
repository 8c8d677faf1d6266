/* SPDX-License-Identifier: BSD-3-Clause */

/** Words between devices, as one thread sets them and waits for them. */
#ifndef TEST_CUDA_STANDIN_WORDS_H
#define TEST_CUDA_STANDIN_WORDS_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "cuda_args.h"

static inline _Atomic uint64_t *word(char *heap, uint64_t offset)
{
    return (_Atomic uint64_t *)(void *)(heap + offset);
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline void tell_all(char *const *peer, uint32_t rank, uint32_t nranks, uint64_t at, uint64_t stride,
                            uint64_t epoch)
{
    for (uint32_t r = 0; r < nranks; r++)
        atomic_store_explicit(word(peer[r], at + rank * stride), epoch, memory_order_release);
}

/* Of an operation that was called before a reset. */
static inline int is_stale(const xep_cuda_life_t *life)
{
    if (*life->now == life->number) return 0;
    __atomic_store_n(life->stale, 1, __ATOMIC_RELEASE);
    return 1;
}

/* A word that does not come soon is of a rank that sleeps, or has no processor, and needs the one of this thread. */
static inline void rest(uint32_t round)
{
    const struct timespec a_little = {.tv_nsec = 50 * 1000};
    if (round < 50) sched_yield();
    else nanosleep(&a_little, NULL);
}

/* 0: the word of a rank has not come. */
static inline int wait_word(char *heap, uint64_t at, uint32_t rank, uint64_t epoch, uint64_t begin,
                            const xep_cuda_deadline_t *deadline)
{
    for (uint32_t round = 0; atomic_load_explicit(word(heap, at), memory_order_acquire) < epoch; round++) {
        if (__atomic_load_n(deadline->stop, __ATOMIC_ACQUIRE) != 0) return 0;
        if (deadline->timeout_ns != 0 && now_ns() - begin >= deadline->timeout_ns) {
            __atomic_store_n(deadline->late, rank + 1, __ATOMIC_RELEASE);
            return 0;
        }
        rest(round);
    }
    return 1;
}

static inline int wait_all(char *heap, uint32_t nranks, uint64_t at, uint64_t stride, uint64_t epoch,
                           const xep_cuda_deadline_t *deadline)
{
    const uint64_t begin = now_ns();
    for (uint32_t r = 0; r < nranks; r++)
        if (!wait_word(heap, at + r * stride, r, epoch, begin, deadline)) return 0;
    return 1;
}

#endif
