/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a rank that serves costs the others: dispatch and combine of rank 0, which alone has tokens, while all others
 * serve, and while they call both with no tokens on a buffer that is not served, in turn. Prints medians in us, and
 * their ratio. On a busy machine with a priority of its own: chrt -f 1.
 *
 *     xep_run -n 2 test/bench/serve_cost normal|ll TOKENS HIDDEN [ROUNDS]
 */

#include <stdio.h>
#include <stdlib.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { BATCH = 50, TURNS = 30 };

static xep_status_t no_experts(void *arg, xep_serve_call_t *call)
{
    (void)arg;
    (void)call;
    return XEP_OK;
}

static void serve(mp_job_t *job)
{
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    args.buffers = &job->buffer, args.count = 1, args.fn = no_experts;
    MP_OK(xep_serve(&args));
}

/* Of rank 0. */
static double batch(mp_job_t *job, int serving, int rounds, double *times)
{
    if (serving && mp_rank() != 0) {
        serve(job);
        return 0;
    }
    for (int i = 0; i < rounds; i++) times[i] = mp_job_time(job) * 1e6;
    if (serving) MP_OK(xep_step_end(&job->buffer, 1, XEP_STEP_LAST));
    mp_sort(times, (size_t)rounds);
    return times[rounds / 2];
}

int main(int argc, char **argv)
{
    const int rounds = argc > 4 ? atoi(argv[4]) : BATCH;
    mp_case_t c[2] = {
        {.name = "serve_cost",
         .mode = argc > 1 ? argv[1] : "normal",
         .ragged = 2,
         MP_SHAPE(32, 8, argc > 3 ? (uint32_t)atoi(argv[3]) : 7168, argc > 2 ? (uint64_t)atoi(argv[2]) : 128)}};
    double *times = calloc((size_t)rounds, sizeof *times), medians[2][TURNS];
    xep_group_t *group = mp_group();
    mp_job_t jobs[2];
    c[1] = c[0];
    c[1].served = 1;
    for (int i = 0; i < 2; i++) {
        mp_job_open(&jobs[i], &c[i], 3);
        mp_job_buffer(&jobs[i], group);
        (void)batch(&jobs[i], 0, rounds, times);
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int serving = 0; serving < 2; serving++) {
            medians[serving][turn] = batch(&jobs[serving], serving, rounds, times);
            MP_OK(xep_group_barrier(group));
        }
    mp_sort(medians[0], TURNS);
    mp_sort(medians[1], TURNS);
    if (mp_rank() == 0)
        printf("%s, %d tokens of %u: called %.1f us, served %.1f us, ratio %.3f (best %.1f, %.1f)\n", c[0].mode,
               (int)c[0].tokens, c[0].hidden, medians[0][TURNS / 2], medians[1][TURNS / 2],
               medians[1][TURNS / 2] / medians[0][TURNS / 2], medians[0][0], medians[1][0]);
    for (int i = 0; i < 2; i++) mp_job_close(&jobs[i]);
    xep_group_destroy(group);
    free(times);
    return 0;
}
