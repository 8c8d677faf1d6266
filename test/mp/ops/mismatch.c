/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4 */

/* Ranks that disagree: every rank gets the error, which names the parameter, the ranks and both values. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t base =
    {.name = "mismatch", MP_SHAPE(12, 4, 64, 20), .weights = 1, .nscales = 2, .payloads = 3, .slots = 2};

/* the odd rank changes a field of good params; text is what every rank must be told */
#define DISAGREE(_field, _value, _text)                                 \
    do {                                                                \
        xep_buffer_params_t p_ = mp_small_params();                     \
        xep_buffer_t *b_ = NULL;                                        \
        if (mp_is_last()) p_._field = (_value);                         \
        MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p_, &b_)); \
        must_say(_text);                                                \
        MP_CHECK(b_ == NULL);                                           \
    } while (0)

static void must_say(const char *text)
{
    char ranks[64];
    snprintf(ranks, sizeof ranks, "rank %u and rank 0 disagree on ", mp_nranks() - 1);
    MP_REASON(ranks);
    MP_REASON(text);
}

static void buffers(xep_group_t *group)
{
    xep_buffer_t *buffer = NULL;
    DISAGREE(experts, 13, "experts: 13, 12");
    DISAGREE(topk, 3, "topk: 3, 4");
    DISAGREE(hidden, 65, "hidden: 65, 64");
    DISAGREE(tokens, 21, "tokens: 21, 20");
    DISAGREE(scales, 2, "scales: 2, 1");
    DISAGREE(slots, 3, "slots: 3, 2");
    DISAGREE(recv_rows, 7, "recv_rows: 7, 0");
    DISAGREE(dtype, XEP_FP16, "dtype: fp16, bf16");
    DISAGREE(combine_dtype, XEP_FP32, "combine_dtype: fp32, bf16");
    DISAGREE(path, XEP_PATH_FLAT, "path: flat, ");
    DISAGREE(pass_rows, 100, "pass_rows: 100, 0");
    /* wrong on one rank alone: that one says what, the others who */
    xep_buffer_params_t p = mp_small_params();
    if (mp_is_last()) p.hidden = 0;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, &buffer));
    if (mp_is_last()) MP_REASON("invalid hidden: 0");
    else MP_REASON("cannot create its buffer");
    p = mp_small_params();
    if (mp_is_last()) p.mode = "missing";
    MP_FAILS(XEP_ERR_PLUGIN, xep_buffer_create(group, &p, &buffer));
    p = mp_small_params();
    p.threads = 1 + mp_rank(); /* per rank: no disagreement */
    MP_OK(xep_buffer_create(group, &p, &buffer));
    xep_buffer_destroy(buffer);
}

/* The buffer stays usable: after each, a whole round. */
#define DISAGREE_DISPATCH(_change, _text)                                      \
    do {                                                                       \
        xep_dispatch_args_t a_ = mp_job_dispatch(job);                         \
        xep_handle_t *h_ = NULL;                                               \
        if (mp_is_last()) {                                                    \
            _change;                                                           \
        }                                                                      \
        MP_FAILS(XEP_ERR_MISMATCH, xep_dispatch(job->buffer, &a_, &h_, NULL)); \
        MP_REASON(_text);                                                      \
        MP_REASON("rank");                                                     \
        MP_CHECK(h_ == NULL);                                                  \
        mp_job_round(job);                                                     \
    } while (0)

static void dispatches(mp_job_t *job)
{
    xep_payload_t moved[3];
    memcpy(moved, job->payloads, sizeof moved);
    moved[0].alignment = 1;
    int32_t *idx32 = mp_alloc(20 * 4 * sizeof *idx32, 0);
    for (int i = 0; i < 80; i++) idx32[i] = (int32_t)((int64_t *)job->idx)[i];
    DISAGREE_DISPATCH(a_.hidden = 63, "hidden");
    DISAGREE_DISPATCH(a_.dtype = XEP_FP16, "dtype");
    DISAGREE_DISPATCH(a_.topk = 3, "topk");
    if (!job->shape.by_expert) DISAGREE_DISPATCH(a_.topk_weights = NULL, "weights");
    DISAGREE_DISPATCH(a_.nscales = 1, "nscales");
    DISAGREE_DISPATCH(a_.scales_dtype = XEP_INT32, "scales_dtype");
    if (!job->shape.by_expert)
        DISAGREE_DISPATCH((a_.topk_idx = idx32, a_.topk_idx_dtype = XEP_INT32), "topk_idx_dtype");
    DISAGREE_DISPATCH(a_.npayloads = 2, "payloads, by a digest of their bytes and alignments");
    DISAGREE_DISPATCH(a_.payloads = moved, "payloads, by a digest of their bytes and alignments");
    mp_free(idx32, "idx32");
}

/* Rows that are cast are agreed on as the caller has them; without room for the scales all are refused alike. */
static void casts(xep_group_t *group)
{
    mp_case_t c = base;
    mp_job_t one, *job = &one;
    c.nscales = c.payloads = 0, c.quant = XEP_QUANT_MXFP8;
    mp_job_begin(job, &c, 5, group);
    DISAGREE_DISPATCH(a_.quant = XEP_QUANT_NONE, "quant");
    DISAGREE_DISPATCH(a_.quant = XEP_QUANT_E4M3, "quant");
    DISAGREE_DISPATCH(a_.dtype = XEP_FP16, "dtype: bf16, fp16");
    DISAGREE_DISPATCH(a_.hidden = 63, "hidden");
    xep_dispatch_args_t a = mp_job_dispatch(job);
    a.quant = XEP_QUANT_NVFP4;
    MP_REFUSES(job, &a, XEP_ERR_INVALID,
               "too few scales in a row for quant 7: 1 (params.scales: at least 2 for a hidden of 64)");
    mp_job_round(job);
    mp_job_close(job);
}

static void cached(mp_job_t *job)
{
    xep_handle_t *first, *second, *none = NULL;
    xep_dispatch_args_t a = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &a, &first, NULL));
    a.topk_idx = NULL;
    a.topk_weights = NULL;
    a.cached = first;
    xep_dispatch_args_t fresh = mp_job_dispatch(job);
    fresh.topk_weights = NULL;
    MP_SAYS(XEP_ERR_MISMATCH, "cached", xep_dispatch(job->buffer, mp_is_last() ? &fresh : &a, &none, NULL));
    MP_OK(xep_dispatch(job->buffer, &fresh, &second, NULL));
    a.cached = mp_is_last() ? second : first;
    xep_handle_release(NULL);
    /* both slots are taken: free one of them first, the other stays a wrong routing on one rank */
    if (mp_is_last()) xep_handle_release(first);
    else xep_handle_release(second);
    MP_REFUSES(job, &a, XEP_ERR_MISMATCH, "cached");
    xep_handle_release(mp_is_last() ? second : first);
    mp_job_round(job);
}

static void combines(mp_job_t *job)
{
    xep_handle_t *handle = mp_job_send(job);
    xep_combine_args_t good = mp_job_combine(job, handle), bad = good;
    bad.dtype = XEP_FP16;
    MP_SAYS(XEP_ERR_MISMATCH, "dtype", xep_combine(handle, mp_is_last() ? &bad : &good, NULL));
    bad = good;
    bad.topk_weights = NULL;
    bad.out_weights = NULL;
    MP_SAYS(XEP_ERR_MISMATCH, "weights", xep_combine(handle, mp_is_last() ? &bad : &good, NULL));
    mp_job_sum(job, handle);
    xep_handle_release(handle);
}

int main(void)
{
    xep_group_t *group = mp_group();
    mp_job_t job;
    buffers(group);
    mp_job_begin(&job, &base, 1, group);
    dispatches(&job);
    cached(&job);
    combines(&job);
    mp_job_close(&job);
    casts(group);
    mp_case_t ll = base;
    ll.mode = "ll";
    mp_job_begin(&job, &ll, 1, group);
    dispatches(&job);
    mp_job_close(&job);
    return mp_end(group);
}
