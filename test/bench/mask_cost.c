/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What XEP_ON_FAILURE_MASK costs while nobody fails: two buffers of one group, one with it and one without, whose
 * operations take turns, so that whatever disturbs the machine disturbs both. Both are made again and again, as where
 * their memory lies makes more of a difference than masks do.
 *
 *     xep_run -n RANKS test/bench/mask_cost [MODE, normal] [TOKENS, 128] [HIDDEN, 7168] [TURNS, 200] [TIMES MADE, 20]
 *
 * Rank 0 prints the time of a dispatch and its combine without masks, and by how much those with them take longer: of
 * each time that buffers were made the mean of the middle half of the differences of neighbours, as a clock's steps may
 * be larger than a difference; of all these the median, with the interval that holds the true one in 95 of 100 cases,
 * whatever they are distributed like. Each rank has a processor of its own where there are enough.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { WARM_UP = 10, KINDS = 2 };

typedef struct bench {
    mp_case_t c[KINDS]; /* without masks, with them */
    mp_job_t jobs[KINDS];
    size_t turns, creations;
    double *times[KINDS], *differences; /* [turns] us */
    double *middles[KINDS];             /* [creations] of the times without, of the differences */
} bench_t;

static size_t number(int argc, char **argv, int at, size_t otherwise)
{
    return argc > at ? strtoull(argv[at], NULL, 0) : otherwise;
}

static double median(double *numbers, size_t count)
{
    mp_sort(numbers, count);
    return count % 2 ? numbers[count / 2] : (numbers[count / 2 - 1] + numbers[count / 2]) / 2;
}

/* Of the middle half. */
static double middle_mean(double *numbers, size_t count)
{
    double sum = 0;
    size_t skipped = count / 4;
    mp_sort(numbers, count);
    for (size_t i = skipped; i < count - skipped; i++) sum += numbers[i];
    return sum / (double)(count - 2 * skipped);
}

/* Neither kind is always the one that comes first, nor the one that was made first. */
static void measure(bench_t *bench, xep_group_t *group, size_t creation)
{
    for (size_t i = 0; i < KINDS; i++) {
        size_t kind = (i + creation) % KINDS;
        mp_job_begin(&bench->jobs[kind], &bench->c[kind], 1, group);
    }
    for (size_t i = 0; i < WARM_UP * KINDS; i++) mp_job_time(&bench->jobs[i % KINDS]);
    for (size_t turn = 0; turn < bench->turns; turn++) {
        for (size_t i = 0; i < KINDS; i++) {
            size_t kind = (i + turn) % KINDS;
            bench->times[kind][turn] = mp_job_time(&bench->jobs[kind]) * 1e6;
        }
        bench->differences[turn] = bench->times[1][turn] - bench->times[0][turn];
    }
    bench->middles[0][creation] = middle_mean(bench->times[0], bench->turns);
    bench->middles[1][creation] = middle_mean(bench->differences, bench->turns);
    for (size_t kind = 0; kind < KINDS; kind++) mp_job_close(&bench->jobs[kind]);
}

/* Of the sign test: so many of the smallest, and of the largest, lie outside of the interval. */
static void report(bench_t *bench)
{
    size_t n = bench->creations;
    double without = median(bench->middles[0], n), *more = bench->middles[1];
    double difference = median(more, n), outside = floor(((double)n - 1.96 * sqrt((double)n)) / 2);
    size_t lowest = outside < 0 ? 0 : (size_t)outside;
    printf("mode %s, %llu tokens, hidden %u, %u ranks: %.3f us; with masks %+.3f us [%+.3f, %+.3f], %+.2f %% [%+.2f, "
           "%+.2f]\n",
           bench->c[0].mode, (unsigned long long)bench->c[0].tokens, bench->c[0].hidden, mp_nranks(), without,
           difference, more[lowest], more[n - 1 - lowest], 100 * difference / without, 100 * more[lowest] / without,
           100 * more[n - 1 - lowest] / without);
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group();
    bench_t bench = {.turns = number(argc, argv, 4, 200), .creations = number(argc, argv, 5, 20)};
    MP_CHECK(bench.turns > 0 && bench.creations > 0);
    for (size_t kind = 0; kind < KINDS; kind++) {
        bench.c[kind] = (mp_case_t){.name = "masks", .experts = 64, .topk = 8, .weights = 1, .slots = 2};
        bench.c[kind].mode = argc > 1 ? argv[1] : "normal";
        bench.c[kind].tokens = number(argc, argv, 2, 128);
        bench.c[kind].hidden = (uint32_t)number(argc, argv, 3, 7168);
        bench.c[kind].on_failure = kind == 0 ? XEP_ON_FAILURE_FAIL : XEP_ON_FAILURE_MASK;
        bench.times[kind] = calloc(bench.turns, sizeof(double));
        bench.middles[kind] = calloc(bench.creations, sizeof(double));
    }
    bench.differences = calloc(bench.turns, sizeof(double));
    mp_stay_on_one_cpu();
    for (size_t i = 0; i < bench.creations; i++) measure(&bench, group, i);
    if (mp_rank() == 0) report(&bench);
    free(bench.differences);
    for (size_t kind = 0; kind < KINDS; kind++) {
        free(bench.times[kind]);
        free(bench.middles[kind]);
    }
    xep_group_destroy(group);
    return 0;
}
