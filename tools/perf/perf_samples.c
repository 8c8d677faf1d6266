/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_samples.h"

#include <stdlib.h>

#include "oracle_alloc.h"

/* Room for what all ranks gather (perf_time.c). A tool that measures ends where there is no memory: no status. */
void perf_samples_open(perf_samples_t *samples, const perf_t *perf, uint32_t steps)
{
    *samples = (perf_samples_t){.nranks = perf->info.nranks,
                                .steps = steps,
                                .iters = perf->options.iters,
                                .one_clock = perf->one_clock};
    samples->samples = oracle_alloc(steps * samples->iters * samples->nranks * sizeof *samples->samples);
    samples->values = oracle_alloc(samples->iters * sizeof *samples->values);
}

void perf_samples_close(perf_samples_t *samples)
{
    free(samples->samples);
    free(samples->values);
}

/* By rank first: that is how an allgather puts the shares [steps][iters] of all ranks one behind the other. */
static const perf_sample_t *sample_of(const perf_samples_t *samples, uint32_t rank, uint32_t step, uint64_t iter)
{
    return &samples->samples[((uint64_t)rank * samples->steps + step) * samples->iters + iter];
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* With one clock for all ranks, from the first that began to the last that ended; else the longest of them, as times of
 * several hosts cannot be compared. */
double perf_sample_span(const perf_samples_t *samples, uint32_t step, uint64_t iter)
{
    uint64_t begin = UINT64_MAX, end = 0, longest = 0;

    for (uint32_t rank = 0; rank < samples->nranks; rank++) {
        const perf_sample_t *sample = sample_of(samples, rank, step, iter);
        if (sample->begin < begin) begin = sample->begin;
        end = larger(end, sample->end);
        longest = larger(longest, sample->end - sample->begin);
    }
    return (double)(samples->one_clock ? end - begin : longest) / 1e3;
}

/*
 * Of the slowest rank. Here and below only times of one rank are subtracted from one another, so that clocks of several
 * hosts do not matter.
 */
double perf_sample_send(const perf_samples_t *samples, uint32_t step, uint64_t iter)
{
    uint64_t longest = 0;

    for (uint32_t rank = 0; rank < samples->nranks; rank++) {
        const perf_sample_t *sample = sample_of(samples, rank, step, iter);
        longest = larger(longest, sample->sent - sample->begin);
    }
    return (double)longest / 1e3;
}

double perf_sample_receive(const perf_samples_t *samples, uint32_t step, uint64_t iter)
{
    uint64_t longest = 0;

    for (uint32_t rank = 0; rank < samples->nranks; rank++)
        longest =
            larger(longest, sample_of(samples, rank, step, iter)->end - sample_of(samples, rank, step, iter)->sent);
    return (double)longest / 1e3;
}

double perf_sample_device(const perf_samples_t *samples, uint32_t step, uint64_t iter)
{
    uint64_t longest = 0;

    for (uint32_t rank = 0; rank < samples->nranks; rank++)
        longest = larger(longest, sample_of(samples, rank, step, iter)->device);
    return (double)longest / 1e3;
}

/* Of all ranks together: what an operation costs a machine that has more ranks than cores. */
double perf_sample_cpu(const perf_samples_t *samples, uint32_t step, uint64_t iter)
{
    uint64_t sum = 0;

    for (uint32_t rank = 0; rank < samples->nranks; rank++) sum += sample_of(samples, rank, step, iter)->cpu;
    return (double)sum / 1e3;
}

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Into values [iters], the one scratch there is: percentiles are asked for before another figure is sorted. */
void perf_samples_sort(perf_samples_t *samples, uint32_t step, perf_sample_fn value_of)
{
    for (uint64_t iter = 0; iter < samples->iters; iter++) samples->values[iter] = value_of(samples, step, iter);
    qsort(samples->values, samples->iters, sizeof *samples->values, compare_values);
}

/*
 * Of the figure that was sorted last, in its unit. A value that was measured, none between two: of 20 iterations p99 is
 * the slowest.
 */
double perf_samples_percentile(const perf_samples_t *samples, uint64_t percent)
{
    return samples->values[samples->iters * percent / 100];
}

double perf_samples_median(perf_samples_t *samples, uint32_t step, perf_sample_fn value_of)
{
    perf_samples_sort(samples, step, value_of);
    return perf_samples_percentile(samples, 50);
}
