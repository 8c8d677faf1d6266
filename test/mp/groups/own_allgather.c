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
    mp_job_open(&job, &base, 11);
    mp_job_buffer(&job, group);
    for (uint64_t i = 0; i < 3; i++) {
        mp_job_payload(&job, 40 + i);
        mp_job_round(&job);
    }
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group(), *own = mp_second_group(group, 0);
    rounds(own, "normal");
    rounds(own, "ll");
    xep_group_destroy(own);
    xep_group_destroy(group);
    return 0;
}
