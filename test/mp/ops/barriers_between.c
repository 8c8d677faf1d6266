/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 3 */

/*
 * Ranks that are in no call of xep between their calls, until all others have ended theirs, as in a barrier of another
 * library: what they owe to others has gone by then, or is nothing that these wait for. And the other way round: two
 * combines from one slot with nothing between them, where each rank's input is free when the others have read it.
 */

#include "mp_job.h"
#include "mp_rig.h"

static atomic_int *met;
static int nmet;

static void meet(void)
{
    ++*met;
    mp_await(met, ++nmet * (int)mp_nranks());
}

static void round_of(mp_job_t *job, uint64_t payload)
{
    xep_dispatch_args_t d;
    xep_combine_args_t c;
    xep_handle_t *handle;
    mp_job_payload(job, payload);
    d = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &d, &handle, NULL));
    meet();
    mp_job_check_recv(job, handle);
    for (int i = 0; i < 3; i++) {
        c = mp_job_combine(job, handle); /* asks for the input, which others have read by then */
        MP_OK(xep_combine(handle, &c, NULL));
        if (payload % 2 == 0) meet();
        mp_job_check_out(job);
    }
    xep_handle_release(handle);
}

static void rounds(xep_group_t *group, const char *mode, uint64_t tokens)
{
    mp_case_t c =
        {.name = "between", .mode = mode, MP_SHAPE(12, 3, 640, tokens), .ragged = 1, .weights = 1, .slots = 2};
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    for (uint64_t payload = 1; payload <= 6; payload++) round_of(&job, payload);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    met = mp_counter(group);
    for (uint64_t tokens = 2; tokens < 1000; tokens *= 20) {
        rounds(group, "normal", tokens);
        rounds(group, "ll", tokens);
    }
    xep_group_destroy(group);
    return 0;
}
