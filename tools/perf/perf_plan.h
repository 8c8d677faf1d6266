/* SPDX-License-Identifier: BSD-3-Clause */

/** Where each token goes, found out by a plain loop: what any dispatch must know before it can move a row. */
#ifndef PERF_PLAN_H
#define PERF_PLAN_H

#include "perf.h"

typedef struct perf_plan {
    uint32_t ndest;   /* destinations: ranks, or experts where rows are by expert */
    uint32_t width;   /* most destinations of a token */
    uint32_t *owner;  /* [experts] destination of an expert */
    uint32_t *copies; /* [T] destinations of a token */
    uint32_t *to;     /* [T][width] these, in order of selection */
    uint64_t *place;  /* [T][width] row within that destination's share */
    uint64_t *begin;  /* [ndest + 1] first row of a destination's share, of all rows this rank sends */
    uint64_t *seen;   /* [ndest] last token, plus 1, that went there */
} perf_plan_t;

void perf_plan_open(perf_plan_t *plan, const perf_t *perf);
void perf_plan_close(perf_plan_t *plan);

/** Which destinations a token has, each once, and which row it is there. */
void perf_plan_make(perf_plan_t *plan, const perf_t *perf);

#endif
