/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The own stream goes on only when every rank has called all of its operations, and the last rank begins to call only
 * when the others are through: a call that waited for the device, or for a rank, would wait for ever.
 */
#include "cuda_parts.h"

#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { HANDLES = 3 };

/* As it was, from its cached handle, and with a request whose second phase is enqueued apart. */
static void call_all(cuda_job_t *job, xep_handle_t *handles[HANDLES])
{
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    xep_request_t *req;
    size_t stride;
    b.out = job->out;
    b.out_stride = job->host.out_stride;
    b.stream = job->stream;
    for (int i = 0; i < HANDLES; i++) {
        xep_dispatch_args_t a = cuda_job_dispatch(job, i == 1 ? handles[0] : NULL);
        MP_OK(xep_dispatch(job->host.buffer, &a, &handles[i], i == 2 ? &req : NULL));
        if (i == 2) mp_finish(req);
        MP_CHECK(mp_recv(handles[i]) != NULL && mp_input(handles[i], &stride) != NULL);
    }
    for (int i = 0; i < HANDLES; i++) {
        MP_OK(xep_combine(handles[i], &b, i == 2 ? &req : NULL));
        if (i == 2) mp_finish(req);
    }
}

void cuda_standing(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c = {.name = "standing",
                         .mode = mode,
                         MP_SHAPE(12, 3, 80, 37),
                         .slots = HANDLES,
                         .fixed_capacity = strcmp(mode, "ll") != 0,
                         MP_CUDA};
    const int last = (int)mp_nranks() - 1;
    cuda_job_t job;
    xep_handle_t *handles[HANDLES];
    cuda_job_open(&job, &c, 29, group, stream);
    job.counts_there = c.fixed_capacity;
    cuda_job_round(&job);
    atomic_int *called = mp_counter(group);
    cuda_rig_hold(stream, called, last + 1);
    if ((int)mp_rank() == last) mp_await(called, last);
    call_all(&job, handles);
    ++*called;
    for (int i = 0; i < HANDLES; i++) {
        cuda_job_check_recv(&job, handles[i]);
        cuda_job_combine(&job, handles[i]);
    }
    for (int i = 0; i < HANDLES; i++) xep_handle_release(handles[i]);
    cuda_job_close(&job);
}
