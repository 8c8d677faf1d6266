/* SPDX-License-Identifier: BSD-3-Clause */

/* For death_in_phase.sh: rank 1 kills itself in the phase named by the argument; the others must say who died, and
 * end in time. For shared_memory.sh: all kill themselves. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t base = {.name = "victim", MP_SHAPE(12, 4, 300, 30), .weights = 1, .slots = 2};

static void maybe_die(const char *here, const char *phase)
{
    if (strcmp(here, phase) == 0 && (mp_rank() == 1 || strcmp(phase, "all") == 0)) raise(SIGKILL);
}

/* As a program does that computes meanwhile; it ends with the deadline at the latest. */
static xep_status_t dispatch_by_tests(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p)
{
    const struct timespec pause = {0, 1000 * 1000};
    xep_request_t *req;
    xep_status_t status = xep_dispatch(buffer, args, handle_p, &req);
    if (status != XEP_OK) return status;
    while ((status = xep_request_test(req)) == XEP_INPROGRESS) nanosleep(&pause, NULL);
    return status;
}

int main(int argc, char **argv)
{
    const char *phase = argc > 1 ? argv[1] : "";
    xep_group_t *group = mp_group();
    mp_job_t job;
    xep_handle_t *handle;
    xep_status_t status;
    mp_job_begin(&job, &base, 1, group);
    mp_job_round(&job);
    maybe_die("all", phase);
    maybe_die("dispatch", phase);
    maybe_die("test", phase);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    if (strcmp(phase, "test") == 0) status = dispatch_by_tests(job.buffer, &d, &handle);
    else status = xep_dispatch(job.buffer, &d, &handle, NULL);
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
