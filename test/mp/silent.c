/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 120 */

/*
 * A rank whose operation is done may stay away from the library for long: nobody's operation may need
 * it any more. Rank 0 computes for a while after each operation; the others must be done long before.
 */

#include <stdio.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "small", .experts = 16, .topk = 4, .hidden = 64, .tokens = 8, .weights = 1},
    {.name = "large", .experts = 16, .topk = 8, .hidden = 7168, .tokens = 600, .weights = 1, .copy_in = 1},
};

enum { AWAY_MS = 2000 };

/* All begin together; the rank that goes away says by when it was done, the others compare. */
static void together(xep_group_t *group, double *begin_p)
{
    MP_OK(xep_group_barrier(group));
    *begin_p = mp_now();
}

static void away_or_done(double begin, const char *what)
{
    if (mp_rank() == 0) mp_sleep_us(AWAY_MS * 1000);
    else if (mp_now() - begin > 0.9 * AWAY_MS / 1000)
        mp_fail(__FILE__, __LINE__, "%s took %.1f s: it waited for a rank that was done", what, mp_now() - begin);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_job_t job;
        xep_handle_t *handle;
        double begin;
        mp_job_open(&job, &cases[i], 1);
        mp_job_buffer(&job, group);
        xep_dispatch_args_t d = mp_job_dispatch(&job);
        together(group, &begin);
        MP_OK(xep_dispatch(job.buffer, &d, &handle, NULL));
        away_or_done(begin, "dispatch");
        xep_combine_args_t c = mp_job_combine(&job, handle);
        together(group, &begin);
        MP_OK(xep_combine(handle, &c, NULL));
        away_or_done(begin, "combine");
        mp_job_check_out(&job);
        xep_handle_release(handle);
        mp_job_close(&job);
    }
    xep_group_destroy(group);
    return 0;
}
