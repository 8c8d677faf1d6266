/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_parts.h"

#include <stdatomic.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

#define CUDA .memory = XEP_MEMORY_CUDA

/* The kernel begins when most of the host's time is over, and has all of its own: so it is the one that says who. */
static void late_rank(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "late", MP_SHAPE(8, 2, 64, 16), CUDA};
    const uint32_t last = mp_nranks() - 1;
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = 400;
    atomic_int *begin = mp_counter(group);
    if (mp_rank() == last) {
        mp_sleep_us(300 * 1000);
        ++*begin;
    } else {
        if (!job.staged) cuda_rig_hold(stream, begin, 1);
        MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job.host.buffer, &a, &handle, NULL));
        if (strstr(xep_last_error(), "given up by rank") == NULL) /* another rank may be the first */
            MP_REASON(job.staged ? "waits for counts: rank" : "a kernel has waited too long for counts: rank");
        MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    }
    MP_OK(xep_buffer_reset(job.host.buffer));
    cuda_job_round(&job);
    cuda_job_close(&job);
}

static void other_combines(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "other combines", MP_SHAPE(8, 2, 64, 16), CUDA};
    cuda_job_t job;
    if (mp_nranks() == 1) return;
    cuda_job_open(&job, &c, 5, group, stream);
    cuda_job_other_combines(&job);
    cuda_job_close(&job);
}

void cuda_break(xep_group_t *group, void *stream)
{
    late_rank(group, stream);
    other_combines(group, stream);
}

void cuda_give_up(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "given up", MP_SHAPE(8, 2, 64, 16), CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = -1;
    if (mp_rank() == 0) MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
    atomic_int *here = mp_counter(group);
    ++*here;
    mp_await(here, (int)mp_nranks()); /* no barrier of the group: who has left it ends it for those that are still in */
    xep_group_abort(group);
    if (mp_rank() == 0 && mp_nranks() > 1) MP_FAILS(XEP_ERR_ABORTED, xep_request_wait(req));
    cuda_job_close(&job);
}
