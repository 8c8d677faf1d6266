/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4 */

/* A group that is made by an allgather of the program's own, here another group's: both modes, whole rounds. */

#include "mp_job.h"
#include "mp_rig.h"

static mp_case_t base = {.name = "over callback", MP_SHAPE(26, 5, 320, 70), .ragged = 1, .weights = 1};

static void rounds(xep_group_t *group, const char *mode)
{
    mp_job_t job;
    base.mode = mode;
    mp_job_begin(&job, &base, 11, group);
    mp_job_rounds(&job, 3, 40);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group(), *own = mp_second_group(group, 0);
    rounds(own, "normal");
    rounds(own, "ll");
    xep_group_destroy(own);
    return mp_end(group);
}
