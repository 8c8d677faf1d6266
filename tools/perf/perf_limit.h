/* SPDX-License-Identifier: BSD-3-Clause */

/** The least these operations can take: the same rows, in private memory. */
#ifndef PERF_LIMIT_H
#define PERF_LIMIT_H

#include "cast.h"
#include "copy.h"
#include "perf.h"
#include "weigh.h"

typedef struct perf_limit perf_limit_t;

perf_limit_t *perf_limit_open(const perf_t *perf);
void perf_limit_close(perf_limit_t *limit);

/** Plans (with plan), casts each row if the dispatch does, and stores it everywhere it goes. */
void perf_limit_dispatch(perf_limit_t *limit, int plan, int streaming);

/** Makes what perf_limit_combine() sums proper numbers again, after rows of another type were stored there. */
void perf_limit_experts(perf_limit_t *limit);

/** Reads each contribution once and stores one sum for each token. */
void perf_limit_combine(perf_limit_t *limit, int streaming);

/* ---- perf_limit_kernels.c ---- */

/* The row copies and row sums of the limit and of --peer: those of the modes, the widest that this CPU runs. */

typedef struct perf_kernels {
    xep_simd_t simd;
    xep_copy_fn copy_streaming;
    xep_weigh_fn sum[2]; /* [1]: streaming */
} perf_kernels_t;

/** dtype: of the sums. Whatever XEP_SIMD says to the modes. */
perf_kernels_t perf_kernels(xep_dtype_t dtype);

#endif
