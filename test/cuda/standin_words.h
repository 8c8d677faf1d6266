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

/* ---- ranks that are out ---- */

enum { STANDIN_LATE = -1, STANDIN_PATIENCE = 3 };

typedef struct standin_waiter {
    const xep_cuda_outs_t *outs;
    char *const *peer;
    uint32_t rank, nranks;
} standin_waiter_t;

static inline xep_cuda_own_words_t *words_of(const standin_waiter_t *w, uint32_t rank)
{
    return (xep_cuda_own_words_t *)(void *)(w->peer[rank] + w->outs->words);
}

static inline int is_left_by_others(const standin_waiter_t *w)
{
    if (__atomic_load_n(&words_of(w, w->rank)->claim, __ATOMIC_ACQUIRE) % 2 == 0) return 0;
    __atomic_store_n(&w->outs->left[w->rank], 1, __ATOMIC_RELEASE);
    return 1;
}

/* 1: the rank is to be left out; 0: its word is here. */
static inline int wait_until_given_up(const standin_waiter_t *w, uint64_t at, uint32_t rank, uint64_t value,
                                      const xep_cuda_deadline_t *deadline)
{
    const uint64_t grace = deadline->timeout_ns / 20 > 5000000 ? deadline->timeout_ns / 20 : 5000000;
    uint64_t begin = now_ns(), doubted = 0, beat = 0;
    int over = 0;
    for (uint32_t round = 0;; round++) {
        const uint64_t now = now_ns(), its = __atomic_load_n(&words_of(w, rank)->beat, __ATOMIC_ACQUIRE);
        if (atomic_load_explicit(word(w->peer[w->rank], at), memory_order_acquire) >= value) return 0;
        if (__atomic_load_n(deadline->stop, __ATOMIC_ACQUIRE) != 0) return STANDIN_LATE;
        __atomic_store_n(&words_of(w, w->rank)->beat, now, __ATOMIC_RELEASE);
        if (__atomic_load_n(&w->outs->gone[rank], __ATOMIC_ACQUIRE) != 0) return 1;
        rest(round);
        if (deadline->timeout_ns == 0) continue;
        if (doubted == 0 && now - begin >= deadline->timeout_ns) {
            doubted = now;
            beat = its;
        } else if (doubted != 0 && now - doubted >= grace) {
            if (its == beat) return 1;
            if (++over == STANDIN_PATIENCE) {
                __atomic_store_n(deadline->late, rank + 1, __ATOMIC_RELEASE);
                return STANDIN_LATE;
            }
            doubted = 0;
            begin = now;
        }
    }
}

static inline int await_rank(const standin_waiter_t *w, uint64_t at, uint32_t rank, uint64_t value, uint64_t epoch,
                             const xep_cuda_deadline_t *deadline)
{
    uint64_t *out = &w->outs->out[rank];
    if (*out != 0 && epoch >= *out) return XEP_CUDA_WITHOUT;
    if (*out == 0 && w->outs->some_gone && __atomic_load_n(&w->outs->gone[rank], __ATOMIC_ACQUIRE) != 0) {
        *out = __atomic_fetch_or(&words_of(w, rank)->claim, 1, __ATOMIC_SEQ_CST) / 2 + 1;
        __atomic_store_n(&w->outs->left[rank], 1, __ATOMIC_RELEASE);
    }
    if (*out == 0) {
        const int over = wait_until_given_up(w, at, rank, value, deadline);
        if (over == STANDIN_LATE) return over;
        if (over) {
            *out = __atomic_fetch_or(&words_of(w, rank)->claim, 1, __ATOMIC_SEQ_CST) / 2 + 1;
            __atomic_store_n(&w->outs->left[rank], 1, __ATOMIC_RELEASE);
        }
    }
    if (*out != 0 && epoch >= *out) return XEP_CUDA_WITHOUT;
    return atomic_load_explicit(word(w->peer[w->rank], at), memory_order_acquire) >= value ? XEP_CUDA_WITH
                                                                                           : XEP_CUDA_HEARD;
}

static inline int how_with(const xep_cuda_outs_t *outs, uint32_t rank)
{
    return outs->gone == NULL ? XEP_CUDA_WITH : (int)outs->with[rank];
}

#endif
