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
    double *values; /* [iters] scratch: what was sorted last */
} perf_samples_t;

void perf_samples_open(perf_samples_t *samples, const perf_t *perf, uint32_t steps);
void perf_samples_close(perf_samples_t *samples);

/** A figure of one iteration of a step, in us. */
typedef double (*perf_sample_fn)(const perf_samples_t *samples, uint32_t step, uint64_t iter);

/** From the first begin to the last end, or of the slowest where clocks differ. */
double perf_sample_span(const perf_samples_t *samples, uint32_t step, uint64_t iter);

/** The slowest rank's send phase, and receive phase; with --split alone these are calls of their own. */
double perf_sample_send(const perf_samples_t *samples, uint32_t step, uint64_t iter);
double perf_sample_receive(const perf_samples_t *samples, uint32_t step, uint64_t iter);

/** The longest of any rank, as its own device has counted it. */
double perf_sample_device(const perf_samples_t *samples, uint32_t step, uint64_t iter);

/** Of all ranks together: waiting by spinning counts, as the core is not there for anything else. */
double perf_sample_cpu(const perf_samples_t *samples, uint32_t step, uint64_t iter);

/** Sorts a figure's values for perf_samples_percentile(). */
void perf_samples_sort(perf_samples_t *samples, uint32_t step, perf_sample_fn value_of);

/** The value below which so many percent of the sorted ones are. */
double perf_samples_percentile(const perf_samples_t *samples, uint64_t percent);

double perf_samples_median(perf_samples_t *samples, uint32_t step, perf_sample_fn value_of);

#endif
