/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What devices and their links need for the same bytes: all ranks at once copy them by the driver, in one piece for
 * each peer.
 */
#ifndef PERF_CUDA_LIMIT_H
#define PERF_CUDA_LIMIT_H

#include "perf.h"

typedef struct perf_cuda_limit perf_cuda_limit_t;

/** NULL without --memory cuda. Both are collective. */
perf_cuda_limit_t *perf_cuda_limit_open(const perf_t *perf);
void perf_cuda_limit_close(perf_cuda_limit_t *limit);

/** Copies to the peers for a dispatch, from them for a combine. in_turn: one peer after the other, else all at once. */
void perf_cuda_limit_run(const perf_cuda_limit_t *limit, perf_op_t op, int in_turn);

#endif
