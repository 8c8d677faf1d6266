/* SPDX-License-Identifier: BSD-3-Clause */

/** What the operations of a routing move. */
#ifndef PERF_BYTES_H
#define PERF_BYTES_H

#include "perf.h"

/** Bytes an operation moves, all ranks together but for deepep: a rank's average. */
typedef struct perf_bytes {
    double logical, dedup, wire, deepep;
} perf_bytes_t;

void perf_bytes_of(const perf_t *perf, perf_op_t op, perf_bytes_t *bytes_p);

/** Rows received by all ranks. */
uint64_t perf_rows_of(const perf_t *perf);

#endif
