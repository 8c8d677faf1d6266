/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows by expert: what is refused. */
#include "cuda_parts.h"

#include "cuda_rig.h"
#include "mp_rig.h"

#define WRONG(_field, _value, _text) \
    MP_WRONG(good, _field, _value, XEP_ERR_INVALID, _text, xep_handle_expand(handle, &good))

/* On every rank alike: a refused combine counts as a call. */
static void refuse_slots(xep_handle_t *handle, void *there, void *stream)
{
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    c.out = there, c.stream = stream, c.slots = there;
    MP_CHECK(mp_input(handle, NULL) != NULL);
    MP_SAYS(XEP_ERR_INVALID, "slots without x: ", xep_combine(handle, &c, NULL));
    c.x = there, c.slots = (const int32_t *)(const void *)((char *)there + 2);
    MP_SAYS(XEP_ERR_INVALID, "misaligned slots: ", xep_combine(handle, &c, NULL));
    c.slots = (const int32_t *)(const void *)&c;
    MP_SAYS(XEP_ERR_INVALID, "invalid slots: ", xep_combine(handle, &c, NULL));
}

static void refuse(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "refused by expert", MP_SHAPE(8, 2, 64, 16), MP_CUDA};
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    void *there = cuda_rig_alloc(NULL, 1 << 16);
    xep_expand_args_t good = XEP_EXPAND_ARGS_INIT;
    good.slots = there, good.expert_begin = there, good.expert_count = there, good.stream = stream;
    WRONG(slots, NULL, "slots is NULL");
    WRONG(slots, (int32_t *)((char *)there + 2), "misaligned slots: ");
    WRONG(expert_count, NULL, "expert_count is NULL");
    WRONG(flags, 2, "invalid flags: 0x2 (XEP_EXPAND_ZERO)");
    WRONG(capacity, UINT64_C(1) << 31, "invalid capacity: 2147483648");
    WRONG(topk_weights, there, "none were received");
    WRONG(scales, there, "none were received");
    WRONG(x_stride, 2, "invalid x_stride: 2 bytes (at least the 128 of a row)");
    WRONG(slots, job.host.x, "invalid slots: ");
    xep_reduce_args_t r = XEP_REDUCE_ARGS_INIT;
    r.dtype = XEP_BF16, r.out_dtype = XEP_FP16;
    MP_SAYS(XEP_ERR_INVALID, "invalid out_dtype: ", xep_handle_reduce(handle, &r));
    MP_FAILS(XEP_ERR_INVALID, xep_handle_reduce(NULL, &r));
    refuse_slots(handle, there, stream);
    cuda_rig_free(there);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

static void refuse_host(xep_group_t *group)
{
    const mp_case_t c = {.name = "by expert on the host", MP_SHAPE(8, 2, 64, 16)};
    mp_job_t job;
    xep_expand_args_t a = XEP_EXPAND_ARGS_INIT;
    mp_job_begin(&job, &c, 5, group);
    xep_handle_t *handle = mp_job_send(&job);
    MP_SAYS(XEP_ERR_UNSUPPORTED, "rows of host memory are not arranged by expert (mode normal in device memory",
            xep_handle_expand(handle, &a));
    xep_combine_args_t back = mp_job_combine(&job, handle);
    back.x = job.out, back.slots = (const int32_t *)(const void *)job.out;
    MP_SAYS(XEP_ERR_UNSUPPORTED, "mode normal does not support slots", xep_combine(handle, &back, NULL));
    xep_handle_release(handle);
    mp_job_close(&job);
}

void cuda_refuse_experts(xep_group_t *group, void *stream)
{
    refuse(group, stream);
    refuse_host(group);
}
