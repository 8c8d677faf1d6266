/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_time.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_say.h"

void perf_samples_open(perf_samples_t *samples, perf_t *perf, uint32_t steps)
{
    *samples = (perf_samples_t){.perf = perf, .steps = steps, .iters = perf->options.iters};
    samples->own = oracle_alloc(steps * samples->iters * sizeof *samples->own);
    samples->values = oracle_alloc(samples->iters * sizeof *samples->values);
}

void perf_samples_close(perf_samples_t *samples)
{
    free(samples->own);
    free(samples->all);
    free(samples->values);
}

void perf_samples_gather(perf_samples_t *samples)
{
    samples->all = perf_gather(samples->perf, samples->own, samples->steps * samples->iters * sizeof *samples->own);
}

/*
 * Of one iteration, in us. With one clock for all ranks a span is from the first that began to the last that ended;
 * else of the longest of them, as times of several hosts cannot be compared. Of the others only times of one rank are
 * subtracted from one another.
 */
static double value_of(const perf_samples_t *samples, uint32_t step, uint64_t iter, perf_figure_t figure)
{
    uint64_t begin = UINT64_MAX, end = 0, longest = 0, sum = 0;

    for (uint32_t rank = 0; rank < samples->perf->info.nranks; rank++) {
        const perf_sample_t *sample = &samples->all[((uint64_t)rank * samples->steps + step) * samples->iters + iter];
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
    if (figure == PERF_SPAN && samples->perf->one_clock) longest = end - begin;
    return (double)(figure == PERF_CPU ? sum : longest) / 1e3;
}

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* A value that was measured, none between two: of 20 iterations p99 is the slowest. */
double perf_samples_percentile(perf_samples_t *samples, uint32_t step, perf_figure_t figure, uint64_t percent)
{
    for (uint64_t iter = 0; iter < samples->iters; iter++)
        samples->values[iter] = value_of(samples, step, iter, figure);
    qsort(samples->values, samples->iters, sizeof *samples->values, compare_values);
    return samples->values[samples->iters * percent / 100];
}

/* ---- --waits ---- */

/* For whom a rank waited, over the iterations of an operation. */
typedef struct perf_wait {
    uint64_t times, sum_ns, max_ns; /* iterations in which it did, and how long */
} perf_wait_t;

/* Of every rank, in each operation, for each rank: [R][PERF_OPS][R]. */
static perf_wait_t *wait_at(const perf_t *perf, uint32_t waiting, perf_op_t op, uint32_t late)
{
    return &perf->waits[((size_t)waiting * PERF_OPS + op) * perf->info.nranks + late];
}

void perf_waits_open(perf_t *perf)
{
    const size_t nranks = perf->info.nranks;

    if (!perf->options.waits) return;
    perf->wait_ns = oracle_alloc(nranks * sizeof *perf->wait_ns);
    perf->waits = oracle_alloc(nranks * PERF_OPS * nranks * sizeof *perf->waits);
}

void perf_waits_close(perf_t *perf)
{
    free(perf->wait_ns);
    free(perf->waits);
}

void perf_waits_begin(perf_t *perf)
{
    if (perf->wait_ns != NULL) memset(perf->wait_ns, 0, perf->info.nranks * sizeof *perf->wait_ns);
}

/* wait_ns is added to by the library over all operations of a step; it was cleared before the step. */
void perf_waits_book(perf_t *perf, perf_op_t op)
{
    for (uint32_t late = 0; perf->wait_ns != NULL && late < perf->info.nranks; late++) {
        perf_wait_t *wait = wait_at(perf, perf->info.rank, op, late);
        const uint64_t ns =
            perf->wait_ns[late] / perf->options.slots; /* operations in flight share the time of their step */
        wait->times += ns != 0;
        wait->sum_ns += ns;
        if (ns > wait->max_ns) wait->max_ns = ns;
    }
}

void perf_waits_gather(perf_t *perf)
{
    if (perf->waits == NULL) return;
    perf_wait_t *mine = perf->waits;
    perf->waits = perf_gather(perf, wait_at(perf, perf->info.rank, PERF_DISPATCH, 0),
                              PERF_OPS * perf->info.nranks * sizeof *perf->waits);
    free(mine);
}

/* In us, over all iterations: those in which it did not wait count as 0. */
double perf_waits_mean(const perf_t *perf, perf_op_t op, uint32_t waiting, uint32_t late)
{
    return (double)wait_at(perf, waiting, op, late)->sum_ns / (double)perf->options.iters / 1e3;
}

/* Mean and percent are over all other ranks, as nobody else can have waited; max is that of any one. */
void perf_waits_late(const perf_t *perf, perf_op_t op, uint32_t late, perf_late_t *late_p)
{
    const uint32_t others = perf->info.nranks > 1 ? perf->info.nranks - 1 : 1;
    perf_late_t sum = {0};

    for (uint32_t waiting = 0; waiting < perf->info.nranks; waiting++) {
        const perf_wait_t *wait = wait_at(perf, waiting, op, late);
        sum.mean += perf_waits_mean(perf, op, waiting, late) / others;
        sum.percent += 100 * (double)wait->times / (double)perf->options.iters / others;
        if ((double)wait->max_ns / 1e3 > sum.max) sum.max = (double)wait->max_ns / 1e3;
    }
    *late_p = sum;
}
