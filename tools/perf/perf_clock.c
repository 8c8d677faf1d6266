/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_clock.h"

#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t perf_clock_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Of all threads of the process: with XEP_THREADS or a progress thread more than the time that has passed. */
uint64_t perf_clock_cpu_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}
