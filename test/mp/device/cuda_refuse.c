/* SPDX-License-Identifier: BSD-3-Clause */

/* Where a buffer cannot be, or a stream has no meaning, the error says what there should be. */
#include "cuda_parts.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        if (cuda_job_stages(group)) {
            p.on_failure = XEP_ON_FAILURE_MASK;
            MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_create(group, &p, &buffer));
            mp_reason("in device memory needs all ranks", __FILE__, __LINE__);
            p.on_failure = XEP_ON_FAILURE_FAIL;
        }
        p.flags = XEP_BUFFER_SEND_MEMORY;
        MP_FAILS(XEP_ERR_UNSUPPORTED, xep_buffer_create(group, &p, &buffer));
        mp_reason("in device memory copies every row", __FILE__, __LINE__);
        p.flags = 0;
    }
    cannot_create(group, "none", XEP_ERR_PLUGIN,
                  cuda_job_stages(group) ? "there is no xep_none.so in" : "there is no xep_none_cuda.so in");
}

/* ---- arrays of the wrong memory ---- */

enum { NORMAL = 1, LL = 2, BOTH = 3 };

typedef struct array {
    const char *name;
    size_t at; /* in the arguments */
    int modes; /* in which it is the device's, and has a meaning */
} array_t;

#define OF_DISPATCH(_name, _modes)                           \
    {                                                        \
#_name, offsetof(xep_dispatch_args_t, _name), _modes \
    }
#define OF_COMBINE(_name, _field, _modes)                   \
    {                                                       \
        _name, offsetof(xep_combine_args_t, _field), _modes \
    }
static const array_t of_dispatch[] = {OF_DISPATCH(x, BOTH), OF_DISPATCH(topk_idx, BOTH), OF_DISPATCH(scales, BOTH),
                                      OF_DISPATCH(topk_weights, BOTH), OF_DISPATCH(expert_stats, LL)};
static const array_t of_combine[] = {OF_COMBINE("x", x, BOTH),
                                     OF_COMBINE("topk_weights", topk_weights, NORMAL),
                                     OF_COMBINE("weights", weights, LL),
                                     OF_COMBINE("bias", bias[0], BOTH),
                                     OF_COMBINE("bias", bias[1], BOTH),
                                     OF_COMBINE("out", out, BOTH),
                                     OF_COMBINE("out_weights", out_weights, NORMAL)};

static void put_address(void *args, const array_t *array, void *address)
{
    memcpy((char *)args + array->at, &address, sizeof address);
}

static void check_sentence(const char *name, const char *why)
{
    char invalid[64];
    snprintf(invalid, sizeof invalid, "invalid %s: ", name);
    mp_reason(invalid, __FILE__, __LINE__);
    mp_reason(why, __FILE__, __LINE__);
}

static void refuse_dispatches(xep_buffer_t *buffer, const xep_dispatch_args_t *right, int mode, void *wrong,
                              const char *why)
{
    xep_handle_t *handle = NULL;
    for (size_t i = 0; i < sizeof of_dispatch / sizeof of_dispatch[0]; i++) {
        xep_dispatch_args_t a = *right;
        if ((of_dispatch[i].modes & mode) == 0) continue;
        put_address(&a, &of_dispatch[i], wrong);
        MP_FAILS(XEP_ERR_INVALID, xep_dispatch(buffer, &a, &handle, NULL));
        check_sentence(of_dispatch[i].name, why);
    }
}

static void refuse_combines(xep_handle_t *handle, const xep_combine_args_t *right, int mode, void *wrong,
                            const char *why)
{
    for (size_t i = 0; i < sizeof of_combine / sizeof of_combine[0]; i++) {
        xep_combine_args_t a = *right;
        if ((of_combine[i].modes & mode) == 0) continue;
        put_address(&a, &of_combine[i], wrong);
        MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &a, NULL));
        check_sentence(of_combine[i].name, why);
    }
}

/* In mode normal the host's, in ll the device's, and staged in ll either: never another device's. */
static void refuse_recv_rows(cuda_job_t *job, int mode, void *here, void *there, void *elsewhere)
{
    xep_handle_t *handle = NULL;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    a.recv_rows_p = mode == LL ? here : there;
    if (!job->staged) {
        MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->host.buffer, &a, &handle, NULL));
        check_sentence("recv_rows_p", mode == LL ? "is host memory" : "(host memory)");
    }
    a.recv_rows_p = elsewhere;
    if (elsewhere == NULL) return;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->host.buffer, &a, &handle, NULL));
    check_sentence("recv_rows_p", "is memory of CUDA device");
}

/* Where all inputs and outputs are the device's memory, which is as large as any of them. */
static xep_combine_args_t right_combine(const cuda_job_t *job, int mode, void *there)
{
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.x = b.bias[0] = b.bias[1] = there;
    b.out = there;
    b.weights = mode == LL ? there : NULL;
    b.out_weights = mode == LL ? NULL : there;
    b.topk_weights = b.out_weights;
    b.stream = job->stream;
    return b;
}

void cuda_refuse_memory(cuda_job_t *job)
{
    static char here[1 << 16];
    void *there = cuda_rig_alloc(NULL, sizeof here), *elsewhere = cuda_rig_alloc_elsewhere(mp_rank(), sizeof here);
    void *context = cuda_rig_context();
    const int mode = job->host.shape.by_expert ? LL : NORMAL;
    xep_handle_t *handle = NULL;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    refuse_dispatches(job->host.buffer, &a, mode, here, "host memory");
    if (elsewhere != NULL) refuse_dispatches(job->host.buffer, &a, mode, elsewhere, "is memory of CUDA device");
    refuse_recv_rows(job, mode, here, there, elsewhere);
    MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL));
    const xep_combine_args_t b = right_combine(job, mode, there);
    if (mp_recv(handle)->rows != 0) {
        refuse_combines(handle, &b, mode, here, "host memory");
        if (elsewhere != NULL) refuse_combines(handle, &b, mode, elsewhere, "is memory of CUDA device");
    }
    MP_CHECK(cuda_rig_context() == context);
    cuda_job_end(job, handle);
    cuda_rig_free(elsewhere);
    cuda_rig_free(there);
}

/* ---- streams that are none of the buffer's context ---- */

static void refuse_stream(cuda_job_t *job, xep_handle_t *handle, const xep_combine_args_t *outputs, void *there,
                          void *stream)
{
    xep_handle_t *none = NULL;
    xep_layout_args_t layout = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t out = XEP_LAYOUT_INIT;
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    xep_combine_args_t b = *outputs;
    a.stream = b.stream = layout.stream = stream;
    layout.buffer = job->host.buffer;
    layout.topk_idx = job->idx;
    layout.tokens = job->host.tokens;
    layout.topk = job->host.c->topk;
    layout.experts = job->host.c->experts;
    layout.nranks = mp_nranks();
    out.tokens_per_rank = there;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job->host.buffer, &a, &none, NULL));
    check_sentence("stream", "is of another context (CUDA device");
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &b, NULL));
    check_sentence("stream", "is of another context (CUDA device");
    MP_FAILS(XEP_ERR_INVALID, xep_layout(&layout, &out));
    check_sentence("stream", "is of another context (CUDA device");
}

void cuda_refuse_streams(cuda_job_t *job)
{
    void *streams[] = {cuda_rig_stream_elsewhere(mp_rank()), cuda_rig_stream_apart(mp_rank())};
    void *there = cuda_rig_alloc(NULL, 1 << 16), *context = cuda_rig_context();
    xep_request_t *req;
    xep_handle_t *handle = cuda_job_send(job);
    const xep_combine_args_t b = cuda_job_outputs(job, handle);
    for (int i = 0; i < 2; i++)
        if (streams[i] != NULL) refuse_stream(job, handle, &b, there, streams[i]);
    MP_OK(xep_combine(handle, &b, &req));
    for (int i = 0; i < 2; i++) {
        if (streams[i] == NULL) continue;
        MP_FAILS(XEP_ERR_INVALID, xep_request_stream_wait(req, streams[i]));
        check_sentence("stream", "is of another context (CUDA device");
    }
    mp_finish(req);
    cuda_job_check_sums(job, &b);
    MP_CHECK(cuda_rig_context() == context);
    xep_handle_release(handle);
    cuda_rig_free(there);
}

/* ---- machines ---- */

/* Of 1 TiB of rows. What was begun is undone: the next buffer is as any other. */
static void cannot_hold(xep_group_t *group)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.memory = XEP_MEMORY_CUDA;
    p.hidden = 1 << 19;
    p.recv_rows = 1 << 20;
    MP_SAYS(XEP_ERR_NO_MEMORY, " bytes for the buffer", xep_buffer_create(group, &p, &buffer));
}

/* By the stand-in alone: on rank 0, which says why, while the others are told of it. */
static void cannot(xep_group_t *group, const char *mode, const char *function, xep_status_t status, const char *reason)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.mode = mode;
    p.memory = XEP_MEMORY_CUDA;
    if (mp_rank() == 0) setenv("STANDIN_FAILS", function, 1);
    MP_FAILS(status, xep_buffer_create(group, &p, &buffer));
    if (mp_rank() == 0) mp_reason(reason, __FILE__, __LINE__);
    unsetenv("STANDIN_FAILS");
    MP_OK(xep_buffer_create(group, &p, &buffer));
    xep_buffer_destroy(buffer);
}

void cuda_refuse_machine(xep_group_t *group)
{
    void *context = cuda_rig_context();
    if (cuda_job_stages(group)) return;
    cannot_hold(group);
    for (int ll = 0; ll < 2 && getenv("STANDIN_SEED") != NULL; ll++) {
        const char *mode = ll ? "ll" : "normal";
        cannot(group, mode, "cuModuleLoadData", XEP_ERR_UNSUPPORTED, "a driver no older than the nvcc that built them");
        if (mp_nranks() == 1) continue;
        cannot(group, mode, "cuIpcOpenMemHandle_v2", XEP_ERR_TRANSPORT,
               "of this rank cannot reach the memory of rank 1, on device");
    }
    MP_CHECK(cuda_rig_context() == context);
}

/* ---- buffers in host memory ---- */

static void refuse_there(xep_handle_t *handle, void *there)
{
    static char here[1 << 16];
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = b.out_weights = (void *)here;
    b.x = b.topk_weights = b.weights = b.bias[0] = b.bias[1] = (void *)here;
    if (mp_recv(handle)->rows != 0) refuse_combines(handle, &b, BOTH, there, "(host memory: so is the buffer)");
}

/* Calls that move nothing between ranks. */
static void refuse_layouts(const mp_job_t *job, void *there)
{
    static const char *const names[] = {"tokens_per_rank", "tokens_per_node", "tokens_per_expert", "token_in_rank"};
    xep_layout_args_t a = XEP_LAYOUT_ARGS_INIT;
    a.tokens = job->tokens;
    a.topk = job->c->topk;
    a.experts = job->c->experts;
    a.nranks = mp_nranks();
    for (int i = -1; i < 4; i++) {
        xep_layout_t out = XEP_LAYOUT_INIT;
        a.topk_idx = i < 0 ? there : job->idx;
        if (i == 0) out.tokens_per_rank = there;
        if (i == 1) out.tokens_per_node = there;
        if (i == 2) out.tokens_per_expert = there;
        if (i == 3) out.token_in_rank = there;
        MP_FAILS(XEP_ERR_INVALID, xep_layout(&a, &out));
        check_sentence(i < 0 ? "topk_idx" : names[i], "(host memory, or a buffer in device memory as args.buffer)");
    }
    xep_layout_t out = XEP_LAYOUT_INIT;
    a.tokens = 0;
    a.topk_idx = out.token_in_rank = there; /* of no elements */
    MP_OK(xep_layout(&a, &out));
}

static void refuse_gather(const xep_handle_t *handle, void *there)
{
    if (mp_recv(handle)->rows == 0) return;
    MP_FAILS(XEP_ERR_INVALID, xep_handle_gather(handle, there, 0));
    check_sentence("out", "(host memory: so is the buffer)");
}

void cuda_refuse_stream(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "host", MP_SHAPE(8, 2, 64, 16), .nscales = 2};
    mp_job_t job;
    xep_handle_t *handle = NULL;
    mp_job_begin(&job, &c, 5, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    a.stream = stream;
    MP_REFUSES(&job, &a, XEP_ERR_INVALID, "invalid stream: ");
    xep_request_t *req;
    void *there = cuda_rig_alloc(NULL, 1 << 16);
    a.stream = NULL;
    refuse_dispatches(job.buffer, &a, BOTH, there, "is memory of CUDA device");
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    MP_SAYS(XEP_ERR_UNSUPPORTED, "a stream cannot wait for a request in host memory",
            xep_request_stream_wait(req, stream));
    MP_FAILS(XEP_ERR_INVALID, xep_request_stream_wait(NULL, stream));
    mp_finish(req);
    refuse_there(handle, there);
    refuse_gather(handle, there);
    refuse_layouts(&job, there);
    xep_handle_release(handle);
    cuda_rig_free(there);
    mp_job_round(&job);
    mp_job_close(&job);
}

int cuda_refuse(xep_group_t *group, const char *driver)
{
    const char *reason = strcmp(driver, "absent") == 0 ? "there is no driver for CUDA devices here"
                         : strcmp(driver, "old") == 0  ? "the driver of the CUDA devices is too old: it has no cuInit"
                                                       : "the driver finds no CUDA device that this process may use";
    cannot_create(group, "normal", XEP_ERR_UNSUPPORTED, reason);
    return mp_end(group);
}
