/* SPDX-License-Identifier: BSD-3-Clause */

/** --waits: for whom ranks waited. Without it open, begin, book and gather do nothing. */
#ifndef PERF_WAITS_H
#define PERF_WAITS_H

#include "perf.h"

void perf_waits_open(perf_t *perf);
void perf_waits_close(perf_t *perf);

/** A step begins; it was an iteration of this operation. */
void perf_waits_begin(perf_t *perf);
void perf_waits_book(perf_t *perf, perf_op_t op);

/** Every rank gets those of all. Collective. */
xep_status_t perf_waits_gather(perf_t *perf);

/** What the others waited for a rank, in microseconds of one operation. */
typedef struct perf_late {
    double mean, max;
    double percent; /* of the operations */
} perf_late_t;

void perf_waits_late(const perf_t *perf, perf_op_t op, uint32_t late, perf_late_t *late_p);

/** What one rank waited for another, on average. */
double perf_waits_mean(const perf_t *perf, perf_op_t op, uint32_t waiting, uint32_t late);

#endif
