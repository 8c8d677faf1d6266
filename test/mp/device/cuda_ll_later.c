/* SPDX-License-Identifier: BSD-3-Clause */

/* What shows while kernels run: a later operation tells it, and a reset makes the buffer good again. */
#include "cuda_parts.h"

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

#define LL .mode = "ll", .memory = XEP_MEMORY_CUDA

/* Dispatches, and combines what nobody got; then all must be told why, and can go on after a reset. */
static void told_later(cuda_job_t *job, const xep_dispatch_args_t *a, const char *reason)
{
    xep_handle_t *handle = NULL, *next = NULL;
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = job->out;
    b.stream = job->stream;
    MP_OK(xep_dispatch(job->host.buffer, a, &handle, NULL));
    MP_CHECK(mp_input(handle, NULL) != NULL);
    xep_status_t status = xep_combine(handle, &b, NULL); /* before or after the device has found it */
    MP_CHECK(status == XEP_OK || status == XEP_ERR_PROTOCOL);
    cuda_rig_wait(job->stream);
    if (status == XEP_OK) status = xep_dispatch(job->host.buffer, a, &next, NULL);
    MP_CHECK(status == XEP_ERR_PROTOCOL);
    MP_REASON(reason);
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job->host.buffer, a, &next, NULL));
    MP_OK(xep_buffer_reset(job->host.buffer));
    cuda_job_round(job);
}

static void refused_by_all(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "refused by all", MP_SHAPE(8, 2, 64, 16), LL};
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, stream);
    cuda_job_round(&job);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.capacity = 1;
    told_later(&job, &a, "it has room for 1");
    a = cuda_job_dispatch(&job, NULL);
    a.hidden = 32 + mp_rank() % 2;
    if (mp_nranks() > 1) told_later(&job, &a, "rank 0 and rank 1 disagree on hidden: 32, 33");
    cuda_job_wrong_index(&job);
    cuda_job_close(&job);
}

static void late_rank(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "late", MP_SHAPE(8, 2, 64, 16), LL};
    cuda_job_t job;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &c, 5, group, stream);
    cuda_job_late_rank(&job);
    cuda_job_close(&job);
}

static void other_combines(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "other combines", MP_SHAPE(8, 2, 64, 16), LL};
    cuda_job_t job;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &c, 5, group, stream);
    cuda_job_other_combines(&job);
    cuda_job_close(&job);
}

void cuda_ll_told_later(xep_group_t *group, void *stream)
{
    refused_by_all(group, stream);
    late_rank(group, stream);
    other_combines(group, stream);
}
