/* SPDX-License-Identifier: BSD-3-Clause */

/** The clock, and the backoff of waiting loops: spin, then yield, then sleep, until a deadline. */
#ifndef XEP_UTIL_BACKOFF_H
#define XEP_UTIL_BACKOFF_H

#include <stdint.h>
#include <time.h>

/** Nanoseconds of a monotonic clock. */
uint64_t xep_clock_ns(void);

/** A time of this clock as a condition of CLOCK_MONOTONIC wants it. */
static inline struct timespec xep_clock_at(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/** Tells the core that this is a spinning loop. */
static inline void xep_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

typedef enum xep_backoff_kind {
    XEP_BACKOFF_ALONE,          /* every rank of this host has a processor */
    XEP_BACKOFF_OVERSUBSCRIBED, /* the host has more ranks than processors */
    XEP_BACKOFF_RARE,           /* a wait that is not urgent */
} xep_backoff_kind_t;

typedef struct xep_backoff {
    uint64_t begin_ns;    /* when the wait began, or something last moved; 0: the clock was not read since */
    uint64_t deadline_ns; /* UINT64_MAX: none */
    uint64_t now_ns;      /* when the clock was last read */
    uint64_t slow_ns;     /* when xep_backoff_is_slow() last said yes; 0: never */
    uint32_t rounds;
    uint32_t moves; /* of the last round */
    xep_backoff_kind_t kind;
} xep_backoff_t;

/** The deadline of a wait of timeout_ms (< 0: none) that begins now, or at a time of xep_clock_ns(). */
uint64_t xep_deadline(int32_t timeout_ms);
uint64_t xep_deadline_from(uint64_t now_ns, int32_t timeout_ms);

void xep_backoff_begin(xep_backoff_t *backoff, xep_backoff_kind_t kind, uint64_t deadline_ns);

/**
 * Waits a little. If moves, any count of events, differs from the last call's, it does not wait at all, and the backoff
 * starts over, but not the deadline. Returns 0 once the deadline has passed, else 1.
 */
int xep_backoff_wait(xep_backoff_t *backoff, uint32_t moves);

/** The same for a round in which the caller has slept itself. */
int xep_backoff_slept(xep_backoff_t *backoff);

/** Whether slow checks are due: about once in a hundred milliseconds. */
int xep_backoff_is_slow(xep_backoff_t *backoff);

#endif
