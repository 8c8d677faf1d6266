/* SPDX-License-Identifier: BSD-3-Clause */

/** The least these operations can take: the same rows, in private memory. */
#ifndef PERF_LIMIT_H
#define PERF_LIMIT_H

#include "perf.h"

typedef struct perf_limit perf_limit_t;

perf_limit_t *perf_limit_open(const perf_t *perf);
void perf_limit_close(perf_limit_t *limit);

/** Plans (with plan) and stores each row everywhere it goes. */
void perf_limit_dispatch(perf_limit_t *limit, int plan, int streaming);

/** Makes what perf_limit_combine() sums proper numbers again, after rows of another type were stored there. */
void perf_limit_experts(perf_limit_t *limit);

/** Reads each contribution once and stores one sum for each token. */
void perf_limit_combine(perf_limit_t *limit, int streaming);

#endif
