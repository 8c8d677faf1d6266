/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, brief: 1 4, limit: 180 */

/*
 * Operations of ll in flight: what every mode must do; weights that travel, statistics, what the mode refuses, casts, a
 * rank that is away between its phases; two modes on one group, from two threads.
 */

#include <math.h>
#include <string.h>

#include "mode_ops.h"
#include "mp_rig.h"

static void sent_weights(xep_group_t *group)
{
    mp_case_t c = mode_ops_case("ll");
    mp_job_t job;
    c.sent = 1;
    mp_job_begin(&job, &c, 20, group);
    for (int i = 0; i < 5; i++) mp_job_round(&job);
    mp_job_close(&job);
}

static void statistics(xep_group_t *group)
{
    const mp_case_t c = mode_ops_case("ll");
    int32_t stats[64], before[64];
    mp_job_t job;
    xep_handle_t *handle;
    MP_CHECK(c.experts < 64);
    for (int e = 0; e < 64; e++) stats[e] = before[e] = 100 * e;
    mp_job_begin(&job, &c, 21, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    a.expert_stats = stats;
    for (int i = 0; i < 3; i++) {
        MP_OK(xep_dispatch(job.buffer, &a, &handle, NULL));
        const xep_recv_t *r = mp_recv(handle);
        for (uint32_t e = 0; e < r->local_experts; e++) before[e] += (int32_t)r->expert_count[e];
        xep_handle_release(handle);
    }
    MP_CHECK(memcmp(stats, before, sizeof stats) == 0);
    mp_job_close(&job);
}

/* Before anything is sent. */
static void refusals(xep_group_t *group)
{
    mp_case_t c = mode_ops_case("ll");
    mp_job_t job;
    c.ragged = 0; /* every rank has tokens, so that every rank is refused */
    mp_job_begin(&job, &c, 22, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    a.arrangement = XEP_ROWS_BY_RANK;
    MP_REFUSES(&job, &a, XEP_ERR_UNSUPPORTED, "mode ll does not support XEP_ROWS_BY_RANK");
    a = mp_job_dispatch(&job);
    a.quant = (xep_quant_t)99;
    MP_REFUSES(&job, &a, XEP_ERR_INVALID, "quant");
    a = mp_job_dispatch(&job);
    a.topk_weights = NULL, a.flags = XEP_DISPATCH_SEND_WEIGHTS;
    MP_REFUSES(&job, &a, XEP_ERR_INVALID, "topk_weights");
    mp_job_close(&job);
}

/* ---- a rank that is away ---- */

/* Rank 0 is away, not in xep, until all others have received; they only count. */
static void receive_without(atomic_int *received, int before, xep_request_t *req)
{
    if (mp_rank() == 0) mp_await(received, before + (int)mp_nranks() - 1);
    MP_OK(xep_request_wait(req));
    xep_request_free(req);
    if (mp_rank() != 0) (*received)++;
}

/* After the send phase nothing needs a rank's processor: the others receive from it while it is away. */
static void away(xep_group_t *group)
{
    const mp_case_t c = mode_ops_case("ll");
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    mp_job_begin(&job, &c, 23, group);
    const xep_buffer_info_t info = mp_buffer_info(job.buffer);
    atomic_int *received = mp_counter(group);
    for (int round = 0; info.mapped_peers == mp_nranks() && round < 5; round++) {
        int before = 2 * round * ((int)mp_nranks() - 1);
        mp_job_payload(&job, (uint64_t)round);
        xep_dispatch_args_t d = mp_job_dispatch(&job);
        MP_OK(xep_group_barrier(group));
        MP_OK(xep_dispatch(job.buffer, &d, &handle, &req));
        receive_without(received, before, req);
        mp_job_check_recv(&job, handle);
        xep_combine_args_t a = mp_job_combine(&job, handle);
        MP_OK(xep_group_barrier(group));
        MP_OK(xep_combine(handle, &a, &req));
        receive_without(received, before + (int)mp_nranks() - 1, req);
        mp_job_check_out(&job);
        xep_handle_release(handle);
    }
    mp_job_close(&job);
}

/* ---- casts: rows of odd lengths by each, a scale of the caller's, and scales that are refused ---- */

static void cast_once(xep_group_t *group, xep_quant_t quant, float quant_scale, uint32_t hidden)
{
    mp_case_t c = mode_ops_case("ll");
    mp_job_t job;
    c.quant = quant, c.quant_scale = quant_scale, c.hidden = hidden, c.nscales = 0;
    mp_job_begin(&job, &c, 26, group);
    mp_job_round(&job);
    mp_job_close(&job);
}

static void refuse_quant_scale(const mp_job_t *job, xep_dispatch_args_t a, xep_quant_t quant, float quant_scale)
{
    a.quant = quant, a.quant_scale = quant_scale, a.nscales = 0, a.scales = NULL;
    MP_REFUSES(job, &a, XEP_ERR_INVALID, "quant_scale");
}

static void casts(xep_group_t *group)
{
    const mp_case_t c = mode_ops_case("ll");
    mp_job_t job;
    for (xep_quant_t quant = XEP_QUANT_E4M3; quant <= XEP_QUANT_INT8_ROW; quant++) {
        cast_once(group, quant, 0, 77);
        cast_once(group, quant, 0, 1056);
    }
    cast_once(group, XEP_QUANT_E4M3_STATIC, 0.01f, 77);
    cast_once(group, XEP_QUANT_NVFP4, 0.001f, 1056);
    mp_job_begin(&job, &c, 26, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    refuse_quant_scale(&job, a, XEP_QUANT_E4M3_STATIC, 0);
    refuse_quant_scale(&job, a, XEP_QUANT_E4M3_STATIC, -1);
    refuse_quant_scale(&job, a, XEP_QUANT_E4M3_STATIC, NAN);
    refuse_quant_scale(&job, a, XEP_QUANT_NVFP4, INFINITY);
    refuse_quant_scale(&job, a, XEP_QUANT_MXFP8, 1);
    mp_job_close(&job);
}

/*
 * ---- fewer bits, and sums at owners: rows of mapped ranks stay as they are, to the bit, those of others are what the
 * codec makes ----
 */

static void refuse_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_status_t status, const char *why)
{
    MP_SAYS(status, why, xep_combine(handle, args, NULL));
}

/* Weights that stayed here are known to nobody else. */
static void refuse_combines(mp_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t a = mp_job_combine(job, handle);
    a.quant = (xep_quant_t)99;
    refuse_combine(handle, &a, XEP_ERR_INVALID, "invalid quant: 99 (one of XEP_QUANT_*)");
    a.quant = XEP_QUANT_E4M3_STATIC;
    refuse_combine(handle, &a, XEP_ERR_INVALID, "invalid quant_scale: 0");
    a.quant = XEP_QUANT_NONE;
    a.flags = 2;
    refuse_combine(handle, &a, XEP_ERR_INVALID, "invalid flags: 0x2");
    a.flags = XEP_COMBINE_SUM_AT_OWNER;
    refuse_combine(handle, &a, XEP_ERR_UNSUPPORTED, "with weights that owners do not have");
}

static void fewer_bits(xep_group_t *group)
{
    mp_case_t c = mode_ops_case("ll");
    mp_job_t job;
    c.hidden = 104;
    mode_ops_fewer_bits(group, &c, 0);
    mp_job_begin(&job, &c, 24, group);
    xep_handle_t *handle = mp_job_send(&job);
    refuse_combines(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
    c.sent = 1;
    mode_ops_fewer_bits(group, &c, XEP_COMBINE_SUM_AT_OWNER);
}

int main(void)
{
    xep_group_t *group = mp_group();
    const mp_case_t normal = mode_ops_case("normal"), ll = mode_ops_case("ll");
    mode_ops_run(group, "ll");
    sent_weights(group);
    statistics(group);
    refusals(group);
    away(group);
    casts(group);
    fewer_bits(group);
    mode_ops_two_threads(group, &ll, &normal);
    return mp_end(group);
}
