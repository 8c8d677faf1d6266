/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels of the limit for AVX-512 and AVX2. */
#ifndef PERF_KERNELS_X86_H
#define PERF_KERNELS_X86_H

#include "perf_kernels.h"

/** The same without the plain ones: may be 0. */
uint32_t perf_kernels_x86(const perf_kernels_t **kernels);

#endif
