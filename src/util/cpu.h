/* SPDX-License-Identifier: BSD-3-Clause */

/** What the processor can do, how many there are, and the clock. */
#ifndef XEP_UTIL_CPU_H
#define XEP_UTIL_CPU_H

#include <stdint.h>
#include <time.h>

#include <xep/plugin.h>

/** The widest kernels this CPU runs. */
xep_simd_t xep_cpu_simd(void);

/** "scalar", "avx2", "avx512", "avx512vbmi"; "scalar", "neon". */
const char *xep_cpu_simd_name(xep_simd_t simd);

/**
 * The number of CPUs on which any of these processes of this host may run; pid 0 is this process. Ended ones do not
 * count.
 */
unsigned xep_cpu_count(const int32_t *pids, uint32_t count);

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

#endif
