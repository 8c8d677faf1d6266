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

/*
 * Of one iteration, in us. With one clock for all ranks a span is from the first that began to the last that ended;
 * else of the longest of them, as times of several hosts cannot be compared. Of the others only times of one rank are
 * subtracted from one another.
 */
static double value_of(const perf_samples_t *samples, uint32_t step, uint64_t iter, perf_figure_t figure)
{
    uint64_t begin = UINT64_MAX, end = 0, longest = 0, sum = 0;

    for (uint32_t rank = 0; rank < samples->nranks; rank++) {
        const perf_sample_t *sample = sample_of(samples, rank, step, iter);
        const uint64_t values[] = {[PERF_SPAN] = sample->end - sample->begin,
                                   [PERF_SEND] = sample->sent - sample->begin,
                                   [PERF_RECEIVE] = sample->end - sample->sent,
                                   [PERF_DEVICE] = sample->device,
                                   [PERF_CPU] = sample->cpu};
        if (sample->begin < begin) begin = sample->begin;
        if (sample->end > end) end = sample->end;
        if (values[figure] > longest) longest = values[figure];
        sum += values[figure];
    }
    if (figure == PERF_SPAN && samples->one_clock) longest = end - begin;
    return (double)(figure == PERF_CPU ? sum : longest) / 1e3;
}

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The middle one, and none between two. */
double perf_median(double *values, uint64_t count)
{
    qsort(values, count, sizeof *values, compare_values);
    return values[count / 2];
}

/* A value that was measured, none between two: of 20 iterations p99 is the slowest. */
double perf_samples_percentile(perf_samples_t *samples, uint32_t step, perf_figure_t figure, uint64_t percent)
{
    for (uint64_t iter = 0; iter < samples->iters; iter++)
        samples->values[iter] = value_of(samples, step, iter, figure);
    qsort(samples->values, samples->iters, sizeof *samples->values, compare_values);
    return samples->values[samples->iters * percent / 100];
}
