/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Out of device memory, or of anything else: the calls of each function fail one after the other, until a create has
 * fewer of them. Each time memory, events, modules and the current context are what they were, and the next buffer is
 * as any other. Then the same with operations, and a reset mends what they have broken.
 */
#include "cuda_parts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

static const struct {
    const char *name;
    xep_status_t status;
    const char *reason;
} functions[] = {
    {"cuCtxGetDevice", XEP_ERR_TRANSPORT, "CUDA cannot tell its device: "},
    {"cuDeviceGetAttribute", XEP_ERR_TRANSPORT, "CUDA cannot use its device: invalid argument"},
    {"cuEventCreate", XEP_ERR_NO_MEMORY, "out of memory"},
    {"cuMemHostAlloc", XEP_ERR_NO_MEMORY, "out of memory"},
    {"cuMemAlloc_v2", XEP_ERR_NO_MEMORY, "memory"},
    {"cuMemsetD8_v2", XEP_ERR_TRANSPORT, "invalid argument"},
    {"cuMemsetD8Async", XEP_ERR_TRANSPORT, "invalid argument"},
    {"cuMemcpyAsync", XEP_ERR_TRANSPORT, "CUDA cannot copy rows: invalid argument"},
    {"cuCtxSynchronize", XEP_ERR_TRANSPORT, "unspecified launch failure"},
    {"cuIpcGetMemHandle", XEP_ERR_TRANSPORT, "CUDA cannot make a heap that other processes can open"},
    {"cuIpcOpenMemHandle_v2", XEP_ERR_TRANSPORT, "cannot reach the memory of rank"},
    {"cuModuleLoadData", XEP_ERR_UNSUPPORTED, "a driver no older than the nvcc that built them"},
    {"cuModuleGetFunction", XEP_ERR_TRANSPORT, "CUDA cannot find a kernel of the mode"},
    {"cuFuncSetAttribute", XEP_ERR_TRANSPORT, "CUDA cannot find a kernel of the mode"},
};

static int (*fail)(const char *, int);
static int (*alive)(void);
static void (*lose)(void);

static int find_tools(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbols[3];
    MP_CHECK(library != NULL);
    symbols[0] = dlsym(library, "standin_fail");
    symbols[1] = dlsym(library, "standin_alive");
    symbols[2] = dlsym(library, "standin_lose");
    memcpy(&fail, &symbols[0], sizeof fail);
    memcpy(&alive, &symbols[1], sizeof alive);
    memcpy(&lose, &symbols[2], sizeof lose);
    return symbols[0] != NULL && symbols[1] != NULL && symbols[2] != NULL;
}

/* Whether the create has come to that call; all ranks agree, since it fails on all of them or on none. */
static int fails_at(xep_group_t *group, const xep_buffer_params_t *params, size_t function, int call)
{
    const int before = alive();
    void *context = cuda_rig_context();
    xep_buffer_t *buffer = NULL;
    if (mp_rank() == 0) fail(functions[function].name, call);
    xep_status_t status = xep_buffer_create(group, params, &buffer);
    /* where rows are staged kernels are for captures alone, which are refused then */
    const int can_spare =
        status == XEP_OK && strcmp(functions[function].name, "cuModuleLoadData") == 0 && cuda_captures_staged();
    if (mp_rank() == 0) MP_CHECK((fail(NULL, 0) >= call) == (status != XEP_OK) || can_spare);
    if (status != XEP_OK) {
        MP_CHECK(status == functions[function].status && buffer == NULL);
        if (mp_rank() == 0) mp_reason(functions[function].reason, __FILE__, __LINE__);
    }
    xep_buffer_destroy(buffer);
    MP_CHECK(alive() == before && cuda_rig_context() == context);
    return status != XEP_OK;
}

static void faults_of_create(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = mp_small_params();
    int faults = 0;
    p.mode = mode;
    p.memory = XEP_MEMORY_CUDA;
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++)
        for (int call = 1; fails_at(group, &p, f, call); call++) faults++;
    MP_CHECK(faults >= 5); /* staged, there are no kernels and no handles */
}

/* ---- operations: on all ranks at once, so that most often none waits for another ---- */

static xep_status_t try_round(cuda_job_t *job)
{
    xep_handle_t *handle = NULL;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    a.timeout_ms = 3000;
    xep_status_t status = xep_dispatch(job->host.buffer, &a, &handle, NULL);
    if (status != XEP_OK) return status;
    xep_combine_args_t b = cuda_job_outputs(job, handle);
    b.timeout_ms = 3000;
    status = xep_combine(handle, &b, NULL);
    if (status == XEP_OK) xep_handle_release(handle);
    return status;
}

/* Whether any rank has come to that call. */
static int round_fails_at(xep_group_t *group, cuda_job_t *job, const char *function, int call)
{
    int failed[64] = {0}, any = 0;
    fail(function, call);
    xep_status_t status = try_round(job);
    int mine = fail(NULL, 0) >= call;
    MP_CHECK(!mine || status != XEP_OK);
    MP_OK(xep_group_allgather(group, &mine, failed, sizeof mine));
    for (uint32_t r = 0; r < mp_nranks(); r++) any |= failed[r];
    MP_CHECK(any || status == XEP_OK);
    if (any) MP_OK(xep_buffer_reset(job->host.buffer));
    return any;
}

static void faults_of_operations(xep_group_t *group, const char *mode, void *stream)
{
    static const char *const names[] = {"cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync"};
    const mp_case_t c = {.name = "faults", .mode = mode, MP_SHAPE(8, 2, 64, 16), .copy_in = 1, MP_CUDA};
    cuda_job_t job;
    int faults = 0;
    cuda_job_open(&job, &c, 5, group, stream);
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++)
        for (int call = 1; round_fails_at(group, &job, names[f], call); call++) faults++;
    MP_CHECK(faults >= 6);
    cuda_job_round(&job);
    cuda_job_close(&job);
}

void cuda_faults(xep_group_t *group, const char *mode, void *stream)
{
    if (!find_tools()) return;
    faults_of_create(group, mode);
    faults_of_operations(group, mode, stream);
}

/* ---- a device that falls off ---- */

/* By a call of its own, by the request, or, where the host waits for nothing, by the next call. */
static void hear_of_device(cuda_job_t *job, const xep_dispatch_args_t *args, atomic_int *begin)
{
    xep_handle_t *handle = NULL;
    xep_request_t *req;
    if (job->staged) lose();
    else cuda_rig_hold(job->stream, begin, 1);
    xep_status_t status = xep_dispatch(job->host.buffer, args, &handle, &req);
    lose();
    ++*begin;
    if (status == XEP_OK) {
        status = xep_request_wait(req);
        xep_request_free(req);
    }
    if (status == XEP_OK) status = xep_dispatch(job->host.buffer, args, &handle, NULL);
    MP_SAYS(XEP_ERR_TRANSPORT, "unspecified launch failure", status);
}

static void hear_of_rank(cuda_job_t *job, const xep_dispatch_args_t *args)
{
    char rank[32];
    xep_handle_t *handle = NULL;
    xep_status_t status = xep_dispatch(job->host.buffer, args, &handle, NULL);
    if (status == XEP_OK) cuda_rig_wait(job->stream);
    if (status == XEP_OK) status = xep_dispatch(job->host.buffer, args, &handle, NULL);
    MP_FAILS(XEP_ERR_TIMEOUT, status);
    snprintf(rank, sizeof rank, "rank %u", mp_nranks() - 1);
    if (strstr(xep_last_error(), "given up by rank") == NULL) MP_REASON(rank);
}

/* While a dispatch waits on the stream. Neither a reset, which may say so, too, nor an end hangs. */
int cuda_lost(xep_group_t *group, const char *mode, void *stream)
{
    const mp_case_t c = {.name = "lost", .mode = mode, MP_SHAPE(8, 2, 64, 16), MP_CUDA};
    atomic_int *begin = mp_counter(group);
    cuda_job_t job;
    if (!find_tools()) return mp_skip("there is no stand-in for the driver");
    cuda_job_open(&job, &c, 5, group, stream);
    cuda_job_round(&job);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.timeout_ms = MP_VAIN_MS;
    if (mp_is_last()) hear_of_device(&job, &a, begin);
    else hear_of_rank(&job, &a);
    (void)xep_buffer_reset(job.host.buffer);
    cuda_job_close(&job);
    xep_group_destroy(group);
    return 0;
}
