/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4 */

/*
 * Calls that one rank refuses: its next one is never taken for that which the others are in. All get an error that
 * names the rank, and after as many of them as it had, all are in the same call again.
 */

#include <stdio.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "normal", MP_SHAPE(12, 4, 64, 20), .weights = 1, .slots = 2},
    {.name = "ll", .mode = "ll", MP_SHAPE(12, 4, 64, 20), .weights = 1, .slots = 2},
};

/* This rank's own, and no other's business: nothing is sent. */
static void refuse_dispatch(mp_job_t *job)
{
    xep_dispatch_args_t bad = mp_job_dispatch(job);
    xep_handle_t *none = NULL;
    bad.x_stride = 3;
    MP_REFUSES(job, &bad, XEP_ERR_INVALID, "invalid x_stride: 3");
    MP_CHECK(none == NULL);
}

static void must_name(uint32_t calls)
{
    char text[96];
    snprintf(text, sizeof text, "rank 0 and rank %u are not in the same call: %u of those before it", mp_nranks() - 1,
             calls);
    MP_REASON(text);
    snprintf(text, sizeof text, "failed on rank %u alone", mp_nranks() - 1);
    MP_REASON(text);
}

static void mismatched_dispatch(mp_job_t *job, uint32_t calls)
{
    xep_dispatch_args_t good = mp_job_dispatch(job);
    xep_handle_t *none = NULL;
    MP_FAILS(XEP_ERR_MISMATCH, xep_dispatch(job->buffer, &good, &none, NULL));
    must_name(calls);
    MP_CHECK(none == NULL);
}

/* without a word to the others, who are not there */
static void left_out(mp_job_t *job, uint32_t calls)
{
    mismatched_dispatch(job, calls);
    MP_REASON("refused on this rank, too");
}

/* What all refuse alike costs no call. */
static void refused_by_all(mp_job_t *job)
{
    refuse_dispatch(job);
    refuse_dispatch(job);
    mp_job_round(job);
}

/* So many calls of the odd rank; the others come to as many errors. */
static void refused_by_one(mp_job_t *job, uint32_t calls)
{
    for (uint32_t i = 0; i < calls && mp_is_last(); i++) refuse_dispatch(job);
    mismatched_dispatch(job, calls);
    for (uint32_t i = 0; i < calls && !mp_is_last(); i++) left_out(job, calls);
    mp_job_round(job);
    mp_job_round(job);
}

/* Two of each rank in flight, and both are not the same call everywhere. */
static void in_flight(mp_job_t *job)
{
    xep_handle_t *handles[2];
    xep_request_t *requests[2];
    xep_dispatch_args_t args = mp_job_dispatch(job);
    if (mp_is_last()) refuse_dispatch(job);
    for (int i = 0; i < 2; i++) MP_OK(xep_dispatch(job->buffer, &args, &handles[i], &requests[i]));
    for (int i = 0; i < 2; i++) {
        MP_FAILS(XEP_ERR_MISMATCH, xep_request_wait(requests[i]));
        must_name(1);
        xep_request_free(requests[i]);
        xep_handle_release(handles[i]);
    }
    if (!mp_is_last()) left_out(job, 1);
    mp_job_round(job);
}

/* A combine of the same handle: what the others have in mind are other outputs. */
static void combines(mp_job_t *job)
{
    xep_handle_t *handle = mp_job_send(job);
    xep_combine_args_t good = mp_job_combine(job, handle), bad = good;
    bad.out_stride = 3;
    if (mp_is_last()) MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &bad, NULL));
    MP_FAILS(XEP_ERR_MISMATCH, xep_combine(handle, &good, NULL));
    must_name(1);
    if (!mp_is_last()) MP_FAILS(XEP_ERR_MISMATCH, xep_combine(handle, &good, NULL));
    mp_job_sum(job, handle);
    xep_handle_release(handle);
}

/* All begin anew, whoever is behind. */
static void reset(mp_job_t *job)
{
    if (mp_is_last()) refuse_dispatch(job);
    MP_OK(xep_buffer_reset(job->buffer));
    mp_job_round(job);
    if (mp_is_last()) refuse_dispatch(job);
    mismatched_dispatch(job, 1);
    MP_OK(xep_buffer_reset(job->buffer));
    mp_job_round(job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_job_t job;
        mp_job_begin(&job, &cases[i], 1, group);
        refused_by_all(&job);
        refused_by_one(&job, 1);
        refused_by_one(&job, 3);
        in_flight(&job);
        combines(&job);
        reset(&job);
        mp_job_close(&job);
    }
    return mp_end(group);
}
