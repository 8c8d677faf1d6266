/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A level of kernels stands for several instruction sets that processors have together: AVX2 with FMA and F16C; AVX-512
 * F, BW, VL and DQ; and these with VBMI (Ice Lake, Zen 4). A processor that lacks one of them gets the level below.
 * NEON is part of aarch64.
 */
#define _GNU_SOURCE
#include "cpu.h"

#include <sched.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* clang 14 does not know this name in __builtin_cpu_supports */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

/* All parts of a level must be there: kernels are compiled for them together. */
xep_simd_t xep_cpu_simd(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
            return __builtin_cpu_supports("avx512vbmi") ? XEP_SIMD_AVX512VBMI : XEP_SIMD_AVX512;
        return XEP_SIMD_AVX2;
    }
#elif defined(__aarch64__)
    return XEP_SIMD_NEON;
#endif
    return XEP_SIMD_SCALAR;
}

/* In the order of xep_simd_t, as XEP_SIMD and xep_info have them. */
const char *xep_cpu_simd_name(xep_simd_t simd)
{
#if defined(__aarch64__)
    static const char *const names[] = {"scalar", "neon"};
#else
    static const char *const names[] = {"scalar", "avx2", "avx512", "avx512vbmi"};
#endif
    return names[simd];
}

/*
 * Counts what launchers or containers allow; all processors if the system does not say, for instance if the mask is too
 * small for the machine.
 */
unsigned xep_cpu_count(const int32_t *pids, uint32_t count)
{
    cpu_set_t all, set;
    CPU_ZERO(&all);
    for (uint32_t i = 0; i < count; i++)
        if (sched_getaffinity(pids[i], sizeof set, &set) == 0) CPU_OR(&all, &all, &set);
    return CPU_COUNT(&all) != 0 ? (unsigned)CPU_COUNT(&all) : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
}
