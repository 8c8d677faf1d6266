/* SPDX-License-Identifier: BSD-3-Clause */

/** The row copies and row sums of the limit and of --peer: those of the modes, the widest that this CPU runs. */
#ifndef PERF_KERNELS_H
#define PERF_KERNELS_H

#include "copy.h"
#include "weigh.h"

typedef struct perf_kernels {
    xep_copy_fn copy_streaming;
    xep_weigh_fn sum[2]; /* [1]: streaming */
} perf_kernels_t;

/** dtype: of the sums. Whatever XEP_SIMD says to the modes. */
perf_kernels_t perf_kernels(xep_dtype_t dtype);

#endif
