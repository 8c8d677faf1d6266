/* SPDX-License-Identifier: BSD-3-Clause */

/** What the processor can do, and how many there are. */
#ifndef XEP_UTIL_CPU_H
#define XEP_UTIL_CPU_H

#include <stdint.h>

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

#endif
