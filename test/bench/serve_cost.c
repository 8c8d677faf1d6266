/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a rank that serves costs the others: dispatch and combine of rank 0, which alone has tokens, while all others
 * serve, and while they call both with no tokens on a buffer that is not served, in turn: of ranks that serve without
 * and with dispatches that rank 0 announces early, behind each combine. Prints medians in us, and their ratios. On a
 * busy machine with a priority of its own: chrt -f 1.
 *
 *     xep_run -n 2 test/bench/serve_cost normal|ll TOKENS HIDDEN [ROUNDS]
 */

#include <stdio.h>
#include <stdlib.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { BATCH = 50, TURNS = 30, CALLED = 0, SERVED, EARLY, WAYS };

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
static double batch(mp_job_t *job, int way, int rounds, double *times)
{
    if (way != CALLED && mp_rank() != 0) {
        serve(job);
        return 0;
    }
    for (int i = 0; i < rounds; i++) {
        times[i] = mp_job_time(job) * 1e6;
        if (way == EARLY && i + 1 < rounds) MP_OK(xep_announce_dispatch(job->buffer));
    }
    if (way != CALLED) MP_OK(xep_step_end(&job->buffer, 1, XEP_STEP_LAST));
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
    double *times = calloc((size_t)rounds, sizeof *times), medians[WAYS][TURNS];
    xep_group_t *group = mp_group();
    mp_job_t jobs[2];
    c[1] = c[0];
    c[1].served = 1;
    for (int i = 0; i < 2; i++) {
        mp_job_open(&jobs[i], &c[i], 3);
        mp_job_buffer(&jobs[i], group);
        (void)batch(&jobs[i], CALLED, rounds, times);
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int way = 0; way < WAYS; way++) {
            medians[way][turn] = batch(&jobs[way != CALLED], way, rounds, times);
            MP_OK(xep_group_barrier(group));
        }
    for (int way = 0; way < WAYS; way++) mp_sort(medians[way], TURNS);
    const double called = medians[CALLED][TURNS / 2], served = medians[SERVED][TURNS / 2],
                 early = medians[EARLY][TURNS / 2];
    if (mp_rank() == 0)
        printf("%s, %d tokens of %u: called %.1f us, served %.1f us (%.3f), announced early %.1f us (%.3f)\n",
               c[0].mode, (int)c[0].tokens, c[0].hidden, called, served, served / called, early, early / called);
    for (int i = 0; i < 2; i++) mp_job_close(&jobs[i]);
    xep_group_destroy(group);
    free(times);
    return 0;
}
