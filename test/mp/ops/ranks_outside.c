/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 3, brief: 3, limit: 120, again: 2 */

/*
 * Ranks that are in no call of xep between their calls, until all others have ended theirs, as in a barrier of another
 * library, or one of them for longer: what they owe to others has gone by then, or is nothing that these wait for. And
 * the other way round: several combines from one slot with nothing between them, where each rank's input is free when
 * the others have read it.
 */

#include "mp_job.h"
#include "mp_rig.h"

static atomic_int *met, *done;
static int nmet, ndone;

static void meet(void)
{
    ++*met;
    mp_await(met, ++nmet * (int)mp_nranks());
}

/* Rank 0 is away until the others are done with their operation. */
static void away_or_done(void)
{
    ndone += (int)mp_nranks() - 1;
    if (mp_rank() == 0) mp_await(done, ndone);
    else (*done)++;
}

static void round_of(mp_job_t *job, uint64_t payload)
{
    mp_job_payload(job, payload);
    xep_handle_t *handle = mp_job_receive(job, NULL);
    meet();
    mp_job_check_recv(job, handle);
    for (int i = 0; i < 3; i++) {
        const xep_combine_args_t c =
            mp_job_combine(job, handle); /* asks for the input, which others have read by then */
        MP_OK(xep_combine(handle, &c, NULL));
        if (payload % 2 == 0) meet();
        mp_job_check_out(job);
    }
    xep_handle_release(handle);
}

static void rounds(xep_group_t *group, const char *mode, uint64_t tokens)
{
    const mp_case_t c =
        {.name = "between", .mode = mode, MP_SHAPE(12, 3, 640, tokens), .ragged = 1, .weights = 1, .slots = 2};
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    for (uint64_t payload = 1; payload <= 6; payload++) round_of(&job, payload);
    mp_job_close(&job);
}

static void away(xep_group_t *group, uint32_t hidden, uint64_t tokens, int copy_in)
{
    const mp_case_t c = {.name = "away", MP_SHAPE(16, 8, hidden, tokens), .weights = 1, .copy_in = copy_in};
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    xep_handle_t *handle = mp_job_send(&job);
    away_or_done();
    xep_combine_args_t a = mp_job_combine(&job, handle);
    MP_OK(xep_combine(handle, &a, NULL));
    away_or_done();
    mp_job_check_out(&job);
    xep_handle_release(handle);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    met = mp_counter(group);
    done = mp_counter(group);
    for (uint64_t tokens = 2; tokens < 1000; tokens *= 20) {
        rounds(group, "normal", tokens);
        rounds(group, "ll", tokens);
    }
    away(group, 64, 8, 0);
    away(group, 7168, 600, 1);
    return mp_end(group);
}
