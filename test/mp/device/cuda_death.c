/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_parts.h"

#include <signal.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

/* Staged, the call says so. */
static void call_in_vain(cuda_job_t *job)
{
    xep_handle_t *handle = NULL;
    if (mp_is_last()) raise(SIGKILL);
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_FAILS(XEP_ERR_PEER, xep_dispatch(job->host.buffer, &a, &handle, NULL));
    MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(job->host.buffer, &a, &handle, NULL));
    cuda_job_close(job);
}

/*
 * Kernels of the middle ranks begin only when the last rank is dead and rank 0 has ended its buffer: they store into
 * the heaps of both, which nobody may have taken away from them, and wait in vain until their deadline. What the
 * device has of theirs is as before then.
 */
static void store_to_the_gone(cuda_job_t *job, xep_group_t *group)
{
    const uint32_t last = mp_nranks() - 1;
    atomic_int *enqueued = mp_counter(group), *ended = mp_counter(group);
    xep_handle_t *handle = NULL, *next = NULL;
    char was[64], is[64];
    if (mp_rank() == last) {
        mp_await(enqueued, (int)last);
        raise(SIGKILL);
    }
    if (mp_rank() != 0) cuda_rig_hold(job->stream, ended, 1);
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    a.timeout_ms = MP_VAIN_MS;
    MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL));
    ++*enqueued;
    if (mp_rank() == 0) {
        cuda_job_close(job);
        ++*ended;
        return;
    }
    cuda_rig_wait(job->stream);
    MP_CHECK(atomic_load(ended) == 1);
    memset(was, MP_POISON, sizeof was);
    cuda_rig_put(job->x, was, sizeof was, job->stream);
    cuda_rig_get(is, job->x, sizeof is, job->stream);
    MP_CHECK(memcmp(was, is, sizeof was) == 0);
    xep_status_t status = xep_dispatch(job->host.buffer, &a, &next, NULL);
    MP_CHECK(status == XEP_ERR_PEER || status == XEP_ERR_TIMEOUT);
    cuda_job_close(job);
}

int cuda_death(xep_group_t *group, const char *mode, void *stream)
{
    const int is_captured = strcmp(mode, "ll") == 0 && cuda_captures_staged();
    const mp_case_t c = {.name = "death",
                         .mode = mode,
                         MP_SHAPE(8, 2, 64, 16),
                         .fixed_capacity = is_captured || strcmp(mode, "ll") != 0,
                         MP_CUDA};
    cuda_job_t job;
    cuda_job_open(&job, &c, 5, group, stream);
    job.counts_there = c.fixed_capacity && !job.staged;
    cuda_job_round(&job);
    if (job.staged && is_captured) cuda_captured_death(&job);
    else if (job.staged) call_in_vain(&job);
    else store_to_the_gone(&job, group);
    return mp_end(group);
}
