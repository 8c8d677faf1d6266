/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 120, again: 2 */

/*
 * A rank whose operation is done may stay away from the library for long: nobody's operation may need it any more. Rank
 * 0 is away after each operation until the others are done with theirs.
 */

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "small", MP_SHAPE(16, 4, 64, 8), .weights = 1},
    {.name = "large", MP_SHAPE(16, 8, 7168, 600), .weights = 1, .copy_in = 1},
};

static void away_or_done(atomic_int *done, int operations)
{
    if (mp_rank() == 0) mp_await(done, operations * ((int)mp_nranks() - 1));
    else (*done)++;
}

int main(void)
{
    xep_group_t *group = mp_group();
    atomic_int *done = mp_counter(group);
    int operations = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_job_t job;
        xep_handle_t *handle;
        mp_job_begin(&job, &cases[i], 1, group);
        xep_dispatch_args_t d = mp_job_dispatch(&job);
        MP_OK(xep_dispatch(job.buffer, &d, &handle, NULL));
        away_or_done(done, ++operations);
        xep_combine_args_t c = mp_job_combine(&job, handle);
        MP_OK(xep_combine(handle, &c, NULL));
        away_or_done(done, ++operations);
        mp_job_check_out(&job);
        xep_handle_release(handle);
        mp_job_close(&job);
    }
    xep_group_destroy(group);
    return 0;
}
