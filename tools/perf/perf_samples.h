/* SPDX-License-Identifier: BSD-3-Clause */

/** What all iterations of all ranks took, and the figures that are made of it. */
#ifndef PERF_SAMPLES_H
#define PERF_SAMPLES_H

#include "perf.h"

/** One step of one rank in one iteration, in ns. */
typedef struct perf_sample {
    uint64_t begin, sent, end, cpu, device;
} perf_sample_t;

typedef struct perf_samples {
    perf_sample_t *samples; /* [R][steps][iters], as an allgather leaves them */
    uint32_t nranks, steps;
    uint64_t iters;
    int one_clock;
    double *values; /* [iters] scratch: what is sorted */
} perf_samples_t;

void perf_samples_open(perf_samples_t *samples, const perf_t *perf, uint32_t steps);
void perf_samples_close(perf_samples_t *samples);

/**
 * A figure of one iteration of a step: from the first begin to the last end, or of the slowest where clocks differ; the
 * slowest rank's send phase, and receive phase; the longest that any rank's device has counted; processor time of all
 * ranks together: waiting by spinning counts, as the core is not there for anything else.
 */
typedef enum { PERF_SPAN, PERF_SEND, PERF_RECEIVE, PERF_DEVICE, PERF_CPU } perf_figure_t;

/** The value, in us, below which so many percent of a figure's are. */
double perf_samples_percentile(perf_samples_t *samples, uint32_t step, perf_figure_t figure, uint64_t percent);

/** Sorts what it is given. */
double perf_median(double *values, uint64_t count);

#endif
