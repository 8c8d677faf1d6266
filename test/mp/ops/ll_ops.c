/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, brief: 1 4, limit: 180 */

/*
 * Operations of ll in flight: what every mode must do; one program that every mode runs; weights that travel,
 * statistics, what a mode refuses, LogFMT, a rank that is away between its phases; two modes on one group, from one
 * thread and from two.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mode_ops.h"
#include "mp_rig.h"

/* ---- one program for every mode ---- */

enum { EXPERTS = 12, TOPK = 3, HIDDEN = 96, TOKENS = 10 };

/* Small integers and weights that are eighths: every sum is exact in every order and every mode. */
typedef struct batch {
    float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], weights[TOKENS][TOPK];
    int64_t idx[TOKENS][TOPK];
} batch_t;

static void batch_fill(batch_t *b, unsigned seed)
{
    for (unsigned t = 0; t < TOKENS; t++) {
        for (unsigned h = 0; h < HIDDEN; h++) b->x[t][h] = (float)((seed + t * 5 + h * 3 + mp_rank()) % 17) - 8;
        for (unsigned k = 0; k < TOPK; k++) {
            b->idx[t][k] = (seed + t * 7 + k * 5 + mp_rank()) % EXPERTS;
            if ((seed + t + k) % 9 == 0) b->idx[t][k] = -1;
            b->weights[t][k] = (float)((t + k) % 8 + 1) / 8;
        }
    }
    memset(b->out, 0xa5, sizeof b->out);
}

static void batch_check(const batch_t *b)
{
    for (unsigned t = 0; t < TOKENS; t++) {
        float factor = 0; /* expert e multiplies by e + 1 */
        for (unsigned k = 0; k < TOPK; k++)
            if (b->idx[t][k] >= 0) factor += b->weights[t][k] * (float)(b->idx[t][k] + 1);
        for (unsigned h = 0; h < HIDDEN; h++) MP_CHECK(b->out[t][h] == factor * b->x[t][h]);
    }
}

static xep_buffer_t *make_buffer(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS;
    p.dtype = XEP_FP32, p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

/* What xep.h says is right in every mode. */
static void experts(xep_handle_t *handle)
{
    const xep_recv_t *r = mp_recv(handle);
    size_t stride;
    char *y = mp_input(handle, &stride);
    MP_CHECK(r != NULL && y != NULL);
    for (uint64_t row = 0; row < r->rows; row++) {
        const float *x = (const float *)(const void *)((const char *)r->x + row * r->x_stride);
        float factor = 0;
        for (uint32_t k = 0; k < r->topk; k++) {
            int64_t e = ((const int64_t *)r->topk_idx)[row * r->topk + k];
            if (e >= 0) factor += r->topk_weights[row * r->topk + k] * (float)(e + r->first_expert + 1);
        }
        for (uint32_t h = 0; h < HIDDEN; h++)
            ((float *)(void *)(y + row * stride))[h] = factor == 0 ? 0 : factor * x[h];
    }
}

static void round_trip(xep_buffer_t *buffer, unsigned seed, uint32_t flags)
{
    batch_t *b = malloc(sizeof *b);
    xep_handle_t *handle;
    batch_fill(b, seed);
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    a.tokens = TOKENS, a.x = b->x, a.topk_idx = b->idx[0], a.topk_weights = b->weights[0], a.flags = flags;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    experts(handle);
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    c.out = b->out;
    MP_OK(xep_combine(handle, &c, NULL));
    batch_check(b);
    xep_handle_release(handle);
    free(b);
}

/* Both modes on one group, in turn. */
static void one_program(xep_group_t *group)
{
    xep_buffer_t *normal = make_buffer(group, "normal"), *ll = make_buffer(group, "ll");
    for (unsigned i = 0; i < 40; i++) round_trip(i % 2 ? ll : normal, i, 0);
    for (unsigned i = 0; i < 5; i++) round_trip(ll, i, XEP_DISPATCH_SEND_WEIGHTS);
    xep_buffer_destroy(normal);
    xep_buffer_destroy(ll);
}

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

/* What the other mode does is refused by name, before anything is sent. */
static void refusals(xep_group_t *group)
{
    mp_case_t normal_case = mode_ops_case("normal"), ll_case = mode_ops_case("ll");
    mp_job_t normal, ll;
    xep_handle_t *handle = NULL;
    normal_case.ragged = ll_case.ragged = 0; /* every rank has tokens, so that every rank is refused */
    mp_job_begin(&normal, &normal_case, 22, group);
    mp_job_begin(&ll, &ll_case, 22, group);
    xep_dispatch_args_t a = mp_job_dispatch(&normal);
    a.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(normal.buffer, &a, &handle, NULL));
    a = mp_job_dispatch(&ll);
    a.arrangement = XEP_ROWS_BY_RANK;
    MP_REFUSES(&ll, &a, XEP_ERR_UNSUPPORTED, "mode ll does not support arrangement 1");
    a = mp_job_dispatch(&ll);
    a.quant = (xep_quant_t)99;
    MP_REFUSES(&ll, &a, XEP_ERR_INVALID, "quant");
    a = mp_job_dispatch(&ll);
    a.topk_weights = NULL, a.flags = XEP_DISPATCH_SEND_WEIGHTS;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(ll.buffer, &a, &handle, NULL));
    MP_CHECK(handle == NULL);
    mp_job_close(&normal);
    mp_job_close(&ll);
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
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    mp_job_begin(&job, &c, 23, group);
    MP_OK(xep_buffer_query(job.buffer, &info));
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
    MP_FAILS(status, xep_combine(handle, args, NULL));
    MP_REASON(why);
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
    xep_handle_t *handle;
    c.hidden = 104;
    mode_ops_fewer_bits(group, &c, 0);
    mp_job_begin(&job, &c, 24, group);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &d, &handle, NULL));
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
    one_program(group);
    sent_weights(group);
    statistics(group);
    refusals(group);
    away(group);
    casts(group);
    fewer_bits(group);
    mode_ops_two_threads(group, &ll, &normal);
    xep_group_destroy(group);
    return 0;
}
