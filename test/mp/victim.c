/* SPDX-License-Identifier: BSD-3-Clause */

/* For victim.sh: rank 1 kills itself in the phase named by the argument; the others must say who died, and end in time. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mp_rig.h"

static const mp_case_t base = {.name = "victim", .experts = 12, .topk = 4, .hidden = 300, .tokens = 30, .weights = 1, .slots = 2};

static void maybe_die(const char *here, const char *phase)
{
    if (mp_rank() == 1 && strcmp(here, phase) == 0) raise(SIGKILL);
}

int main(int argc, char **argv)
{
    const char *phase = argc > 1 ? argv[1] : "";
    xep_group_t *group = mp_group();
    mp_job_t job;
    xep_handle_t *handle;
    xep_status_t status;
    mp_job_open(&job, &base, 1);
    mp_job_buffer(&job, group);
    mp_job_round(&job);
    maybe_die("dispatch", phase);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    status = xep_dispatch(job.buffer, &d, &handle, NULL);
    if (status == XEP_OK) {
        maybe_die("combine", phase);
        xep_combine_args_t c = mp_job_combine(&job, handle);
        status = xep_combine(handle, &c, NULL);
    }
    maybe_die("destroy", phase);
    if (strcmp(phase, "destroy") != 0) {
        MP_CHECK(status == XEP_ERR_PEER || status == XEP_ERR_TRANSPORT);
        if (status == XEP_ERR_PEER) MP_REASON("rank 1");
    }
    mp_job_close(&job);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}
