/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The fastest row copies and row sums of this CPU, for the limit alone. The modes have the like in plugins/kernels, and
 * these repeat it on purpose: a limit that shared code with what it is compared to would be slow in the same places.
 */
#ifndef PERF_KERNELS_H
#define PERF_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

typedef struct perf_kernels {
    const char *name;

    /** Copies past the caches what is a whole cache line, where to begins one; the rest through them. */
    void (*copy_streaming)(void *to, const void *from, size_t bytes);

    /** out[h] = sum of rows[i][h] in fp32, rounded once; XEP_BF16, XEP_FP16, XEP_FP32. No NaN. */
    void (*sum)(void *out, const void *const *rows, uint32_t n, uint32_t hidden, xep_dtype_t dtype, int streaming);

    /** Orders streaming stores before what follows. */
    void (*fence)(void);
} perf_kernels_t;

enum { PERF_KERNELS = 3 };

/** Those this CPU can run, the fastest first, into kernels [PERF_KERNELS]; returns how many, at least 1. */
uint32_t perf_kernels(const perf_kernels_t **kernels);

#endif
