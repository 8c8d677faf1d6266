/* SPDX-License-Identifier: BSD-3-Clause */

/* Where a buffer cannot be, or a stream has no meaning, the error says what there should be. */
#include "cuda_refuse.h"

#include <pthread.h>

#include "cuda_rig.h"
#include "mp_rig.h"

static void cannot_create(xep_group_t *group, const char *mode, xep_status_t status, const char *reason)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.mode = mode;
    p.memory = XEP_MEMORY_CUDA;
    MP_FAILS(status, xep_buffer_create(group, &p, &buffer));
    MP_CHECK(buffer == NULL);
    mp_reason(reason, __FILE__, __LINE__);
}

/* A thread has no device until it chooses one. */
static void *without_device(void *group)
{
    cannot_create(group, "normal", XEP_ERR_INVALID, "no CUDA device is current in this thread");
    return NULL;
}

void cuda_refuse_no_device(xep_group_t *group)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, without_device, group) == 0);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.memory = XEP_MEMORY_CUDA;
    for (int ll = 0; ll < 2; ll++) {
        p.mode = ll ? "ll" : "normal";
        p.on_failure = XEP_ON_FAILURE_MASK;
        MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_create(group, &p, &buffer));
        mp_reason("in device memory needs all ranks", __FILE__, __LINE__);
        p.on_failure = XEP_ON_FAILURE_FAIL, p.flags = XEP_BUFFER_SEND_MEMORY;
        MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_create(group, &p, &buffer));
        mp_reason("in device memory copies every row", __FILE__, __LINE__);
        p.flags = 0;
    }
    cannot_create(group, "none", XEP_ERR_PLUGIN,
                  cuda_job_stages(group) ? "there is no xep_none.so in" : "there is no xep_none_cuda.so in");
}

void cuda_refuse_stream(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "host", .experts = 8, .topk = 2, .hidden = 64, .tokens = 16};
    mp_job_t job;
    xep_handle_t *handle = NULL;
    mp_job_open(&job, &c, 5);
    mp_job_buffer(&job, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    a.stream = stream;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.buffer, &a, &handle, NULL));
    MP_REASON("invalid stream: ");
    xep_request_t *req;
    a.stream = NULL;
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_request_stream_wait(req, stream));
    MP_REASON("a stream cannot wait for a request in host memory");
    MP_FAILS(XEP_ERR_INVALID, xep_request_stream_wait(NULL, stream));
    mp_finish(req);
    xep_handle_release(handle);
    mp_job_round(&job);
    mp_job_close(&job);
}

void cuda_refuse_index(cuda_job_t *job)
{
    xep_handle_t *handle = NULL;
    int64_t wrong = 8, right = ((int64_t *)job->host.idx)[5];
    if (mp_rank() == 0) cuda_rig_put((int64_t *)job->idx + 5, &wrong, sizeof wrong, job->stream);
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->host.buffer, &a, &handle, NULL));
    MP_REASON(mp_rank() == 0 ? "invalid topk_idx[2][1]" : "topk_idx of rank 0");
    if (mp_rank() == 0) cuda_rig_put((int64_t *)job->idx + 5, &right, sizeof right, job->stream);
    cuda_rig_wait(job->stream); /* right is gone then */
}

int cuda_refuse(xep_group_t *group)
{
    cannot_create(group, "normal", XEP_ERR_UNSUPPORTED, "there is no driver for CUDA devices here");
    xep_group_destroy(group);
    return 0;
}
