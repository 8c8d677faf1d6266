/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a rank that serves costs the others: dispatch and combine of rank 0, which alone has tokens, in turn while the
 * others call both with no tokens, and while they serve. Of both ways with parts left out: calls on a buffer that is
 * served, which are announced to nobody; dispatches announced early, behind each combine; and all layers announced at
 * once. Prints the median over the turns of the tenth smallest of a hundred, in us, and ratios. Each rank has a
 * processor of its own where there are enough; on a busy machine with a priority of its own: chrt -f 1.
 *
 *     xep_run -n 2 test/bench/serve_cost normal|ll TOKENS HIDDEN [ROUNDS]
 */
#include <stdio.h>
#include <stdlib.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { BATCH = 50, TURNS = 30, CALLED = 0, ON_SERVED, SERVED, EARLY, LAYERS, WAYS };

static const char *const names[WAYS] = {"called", "called on a served buffer", "served", "announced early",
                                        "announced layers"};

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
static double batch(mp_job_t *job, int way, uint32_t rounds, double *times)
{
    if (way >= SERVED && mp_rank() != 0) {
        serve(job);
        return 0;
    }
    if (way == LAYERS) {
        (void)mp_job_time(job); /* what the layers are like */
        MP_OK(xep_announce_layers(job->buffer, rounds));
    }
    for (uint32_t i = 0; i < rounds; i++) {
        times[i] = mp_job_time(job) * 1e6;
        if (way == EARLY && i + 1 < rounds) MP_OK(xep_announce_dispatch(job->buffer));
    }
    if (way >= SERVED) MP_OK(xep_step_end(&job->buffer, 1, XEP_STEP_LAST));
    mp_sort(times, rounds);
    return times[rounds / 10];
}

int main(int argc, char **argv)
{
    const uint32_t rounds = argc > 4 ? (uint32_t)atoi(argv[4]) : BATCH;
    mp_case_t c[2] = {
        {.name = "serve_cost",
         .mode = argc > 1 ? argv[1] : "normal",
         .ragged = 2,
         MP_SHAPE(32, 8, argc > 3 ? (uint32_t)atoi(argv[3]) : 7168, argc > 2 ? (uint64_t)atoi(argv[2]) : 128)}};
    double *times = calloc(rounds, sizeof *times), smallest[WAYS][TURNS];
    xep_group_t *group = mp_group();
    mp_job_t jobs[2];
    mp_stay_on_one_cpu();
    c[1] = c[0];
    c[1].served = 1;
    for (int i = 0; i < 2; i++) {
        mp_job_begin(&jobs[i], &c[i], 3, group);
        (void)batch(&jobs[i], CALLED, rounds, times);
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int way = 0; way < WAYS; way++) {
            smallest[way][turn] = batch(&jobs[way != CALLED], way, rounds, times);
            MP_OK(xep_group_barrier(group));
        }
    for (int way = 0; way < WAYS; way++) mp_sort(smallest[way], TURNS);
    const double called = smallest[CALLED][TURNS / 2];
    for (int way = 0; way < WAYS && mp_rank() == 0; way++)
        printf("%s, %d tokens of %u, %s: %.2f us (%.3f)\n", c[0].mode, (int)c[0].tokens, c[0].hidden, names[way],
               smallest[way][TURNS / 2], smallest[way][TURNS / 2] / called);
    for (int i = 0; i < 2; i++) mp_job_close(&jobs[i]);
    xep_group_destroy(group);
    free(times);
    return 0;
}
