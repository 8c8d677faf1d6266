/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Operations of normal on rows in device memory: every byte compared with the oracle, streams, errors. Started by
 * test/mp/device/cuda_standin.sh, with a stand-in for the driver, and by contrib/check-cuda.sh, on devices.
 */
#include <string.h>

#include "cuda_job.h"
#include "cuda_parts.h"
#include "cuda_rig.h"
#include "cuda_rounds.h"
#include "mp_rig.h"

enum { ROUNDS = 3, STREAMS = 2 };

static void *streams[STREAMS];

#define CUDA .memory = XEP_MEMORY_CUDA
static const mp_case_t cases[] = {
    {.name = "plain", MP_SHAPE(32, 4, 256, 65), CUDA},
    {.name = "ragged", MP_SHAPE(24, 6, 200, 40), .ragged = 1, .mask = 50, .weights = 1, CUDA},
    {.name = "only rank 0", MP_SHAPE(9, 3, 72, 33), .ragged = 2, .weights = 1, CUDA},
    {.name = "odd",
     MP_SHAPE(61, 5, 333, 70),
     .nscales = 3,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_FP32,
     .idx_dtype = XEP_INT32,
     .biases = 1,
     .weights = 1,
     .strided = 1,
     CUDA},
    {.name = "scales",
     MP_SHAPE(16, 2, 1024, 50),
     .nscales = 8,
     .scales_dtype = XEP_INT32,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_FP16,
     .biases = 3,
     .copy_in = 1,
     CUDA},
    {.name = "payloads", MP_SHAPE(12, 3, 72, 33), .payloads = 3, .ragged = 1, .strided = 1, CUDA},
    {.name = "payloads behind scales",
     MP_SHAPE(16, 2, 128, 50),
     .nscales = 5,
     .payloads = 3,
     .dtype = XEP_E4M3,
     .weights = 1,
     CUDA},
    {.name = "capacity",
     MP_SHAPE(12, 3, 128, 31),
     .fixed_capacity = 1,
     .weights = 1,
     .copy_in = 1,
     .alignment = 8,
     CUDA},
    {.name = "to one rank", .routing = "one-rank", MP_SHAPE(8, 2, 64, 130), .slots = 4, CUDA},
    {.name = "nothing", MP_SHAPE(8, 2, 64, 20), .mask = 1000, .biases = 2, CUDA},
    {.name = "large rows", MP_SHAPE(16, 8, 9000, 12), MP_FP32, CUDA},
    {.name = "owners, many tokens", .owners = "random:11", MP_SHAPE(21, 5, 72, 700), .mask = 150, .weights = 1, CUDA},
    {.name = "owners, few experts",
     .owners = "random:5",
     MP_SHAPE(3, 2, 72, 40),
     .idx_dtype = XEP_INT32,
     .ragged = 1,
     .strided = 1,
     CUDA},
    {.name = "e4m3", MP_SHAPE(12, 3, 264, 37), .quant = XEP_QUANT_E4M3, .weights = 1, CUDA},
    {.name = "e4m3, powers of two, odd",
     MP_SHAPE(61, 5, 333, 30),
     MP_FP32,
     .idx_dtype = XEP_INT32,
     .quant = XEP_QUANT_E4M3_POW2,
     .biases = 1,
     .strided = 1,
     .copy_in = 1,
     CUDA},
    {.name = "packed exponents",
     MP_SHAPE(12, 3, 1024, 31),
     .dtype = XEP_FP16,
     .combine_dtype = XEP_FP16,
     .quant = XEP_QUANT_UE8M0,
     .alignment = 8,
     CUDA},
    {.name = "mxfp8, many tokens", MP_SHAPE(16, 8, 256, 700), .quant = XEP_QUANT_MXFP8, .weights = 1, CUDA},
    {.name = "mxfp8_e5m2, only rank 0",
     MP_SHAPE(9, 3, 77, 33),
     MP_FP32,
     .quant = XEP_QUANT_MXFP8_E5M2,
     .ragged = 2,
     CUDA},
    {.name = "mxfp4, odd", MP_SHAPE(12, 3, 333, 31), .quant = XEP_QUANT_MXFP4, .strided = 1, CUDA},
    {.name = "nvfp4", MP_SHAPE(12, 3, 1001, 37), .quant = XEP_QUANT_NVFP4, .ragged = 1, CUDA},
    {.name = "nvfp4, a scale of all", MP_SHAPE(12, 3, 520, 31), .quant = XEP_QUANT_NVFP4, .quant_scale = 0.02f, CUDA},
    {.name = "int8", MP_SHAPE(12, 3, 333, 31), .quant = XEP_QUANT_INT8, .fixed_capacity = 1, CUDA},
    {.name = "int8_row, owners",
     .owners = "random:11",
     MP_SHAPE(21, 5, 1024, 40),
     MP_FP32,
     .quant = XEP_QUANT_INT8_ROW,
     .mask = 150,
     CUDA},
    {.name = "e4m3_static", MP_SHAPE(12, 3, 333, 31), .quant = XEP_QUANT_E4M3_STATIC, .quant_scale = 0.03f, CUDA},
};

/* ---- shapes: a dispatch, one with its routing, and combines of both, on two streams in turn ---- */

static void run_case(xep_group_t *group, const mp_case_t *c)
{
    cuda_job_t job;
    xep_handle_t *first, *again;
    cuda_job_open(&job, c, 17, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        cuda_job_payload(&job, 100 + (uint64_t)i);
        cuda_rig_wait(job.stream);
        job.stream = streams[i % STREAMS];
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, NULL));
        cuda_job_check_recv(&job, first);
        cuda_job_combine(&job, first);
        cuda_job_payload(&job, 200 + (uint64_t)i);
        a = cuda_job_dispatch(&job, first);
        MP_OK(xep_dispatch(job.host.buffer, &a, &again, NULL));
        cuda_job_check_recv(&job, again);
        xep_handle_release(first);
        cuda_job_combine(&job, again);
        cuda_job_combine(&job, again);
        xep_handle_release(again);
    }
    cuda_job_close(&job);
}

/* ---- requests: done when the rows are counted; an operation of the same buffer comes after it anyway ---- */

static void requests(xep_group_t *group)
{
    const mp_case_t c = {.name = "requests", MP_SHAPE(12, 3, 80, 37), .quant = XEP_QUANT_E4M3, .weights = 1, CUDA};
    cuda_job_t job;
    xep_handle_t *first, *second;
    xep_request_t *reqs[2];
    xep_status_t status;
    cuda_job_open(&job, &c, 29, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, &reqs[0]));
        a.after = reqs[0];
        MP_OK(xep_dispatch(job.host.buffer, &a, &second, &reqs[1]));
        MP_OK(xep_request_wait_counts(reqs[1]));
        while ((status = xep_request_test(reqs[0])) == XEP_INPROGRESS) continue;
        MP_OK(status);
        for (int r = 0; r < 2; r++) mp_finish(reqs[r]);
        cuda_job_check_recv(&job, second);
        cuda_job_check_recv(&job, first);
        cuda_job_combine(&job, second);
        cuda_job_combine(&job, first);
        xep_handle_release(second);
        xep_handle_release(first);
    }
    cuda_job_close(&job);
}

/*
 * Outputs are read on a stream that knows nothing of the operations but what it is told: by a copy that is enqueued at
 * once, while the stand-in's other streams are late.
 */
static void other_streams(xep_group_t *group)
{
    const mp_case_t c = {.name = "other streams", MP_SHAPE(12, 3, 80, 37), CUDA};
    cuda_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    cuda_job_open(&job, &c, 37, group, streams[0]);
    for (int i = 0; i < 10 * ROUNDS; i++) {
        xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
        MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
        MP_OK(xep_request_stream_wait(req, streams[1]));
        xep_request_free(req);
        job.stream = streams[1];
        cuda_job_check_recv(&job, handle);
        job.stream = streams[0];
        xep_handle_release(handle);
        cuda_rig_put(job.x, job.host.x, job.host.tokens * job.host.x_stride, job.stream);
    }
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, &req));
    cuda_rig_capture(streams[1]);
    MP_FAILS(XEP_ERR_INVALID, xep_request_stream_wait(req, streams[1]));
    MP_REASON("is being captured");
    cuda_rig_free_graph(cuda_rig_graph(streams[1]));
    mp_finish(req);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

/* ---- errors that all ranks have, and that change nothing ---- */

static void casts_as_on_hosts(void)
{
    xep_mode_info_t host = XEP_MODE_INFO_INIT, device = XEP_MODE_INFO_INIT;
    MP_OK(xep_mode_query("normal", XEP_MEMORY_HOST, &host));
    MP_OK(xep_mode_query("normal", XEP_MEMORY_CUDA, &device));
    MP_CHECK(device.casts == host.casts && device.combine_casts == host.combine_casts);
}

static void refusals(xep_group_t *group)
{
    const mp_case_t c = {.name = "refused", MP_SHAPE(8, 2, 64, 16), .nscales = 1, CUDA};
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    cuda_job_open(&job, &c, 5, group, streams[0]);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.x = job.host.x;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    MP_REASON("invalid x: ");
    MP_REASON("host memory");
    a = cuda_job_dispatch(&job, NULL);
    a.quant = XEP_QUANT_NVFP4;
    a.scales = NULL;
    a.nscales = 0;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    MP_REASON("too few scales in a row for quant 7: 1 (params.scales: at least 2 for a hidden of 64)");
    a = cuda_job_dispatch(&job, NULL);
    a.hidden = 32 + mp_rank() % 2; /* ranks disagree */
    MP_FAILS(mp_nranks() == 1 ? XEP_OK : XEP_ERR_MISMATCH, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    if (mp_nranks() == 1) xep_handle_release(handle);
    else MP_REASON("rank 0 and rank 1 disagree on hidden: 32, 33");
    a = cuda_job_dispatch(&job, NULL);
    a.capacity = 1;
    MP_FAILS(XEP_ERR_OVERFLOW, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    MP_REASON("has room for 1");
    if (!job.staged) cuda_refuse_index(&job);
    cuda_refuse_memory(&job);
    cuda_refuse_streams(&job);
    a = cuda_job_dispatch(&job, NULL); /* and the buffer goes on */
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    cuda_job_nothing_missing(&job, handle);
    cuda_job_refuse_lacks(&job, handle);
    cuda_job_refuse_formats(&job, handle);
    cuda_job_check_recv(&job, handle);
    cuda_job_combine(&job, handle);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group();
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "driver") == 0) return cuda_refuse(group, argv[2]);
    if (!cuda_rig_open(mp_rank())) return mp_skip("there is no CUDA device");
    if (argc > 2) return cuda_lost(group, what, cuda_rig_stream());
    if (*what != 0) return cuda_death(group, what, cuda_rig_stream());
    for (int i = 0; i < STREAMS; i++) streams[i] = cuda_rig_stream();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(group, &cases[i]);
    cuda_rounds_in_a_row(group, "normal", streams);
    requests(group);
    cuda_after(group, streams);
    other_streams(group);
    refusals(group);
    casts_as_on_hosts();
    cuda_staged(group, "normal", streams);
    if (!cuda_job_stages(group)) {
        cuda_there(group, streams);
        cuda_experts(group, streams[0]);
        cuda_standing(group, "normal", streams[0]);
        cuda_graphs(group, "normal", streams[0]);
        cuda_graphs_exact(group, streams[0]);
    }
    cuda_layouts(group, "normal", streams[0]);
    cuda_break(group, streams[0]);
    cuda_refuse_stream(group, streams[0]);
    cuda_refuse_no_device(group);
    cuda_refuse_machine(group);
    cuda_faults(group, "normal", streams[0]);
    cuda_give_up(group, streams[0]);
    xep_group_destroy(group);
    return 0;
}
