/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Operations of ll on rows in device memory: every byte compared with the oracle, phases, streams, errors. Started by
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

#define LL .mode = "ll", .memory = XEP_MEMORY_CUDA
static const mp_case_t cases[] = {
    {.name = "plain", MP_SHAPE(32, 4, 256, 65), .weights = 1, LL},
    {.name = "ragged", MP_SHAPE(24, 6, 200, 40), .ragged = 1, .mask = 50, .weights = 1, .sent = 1, .copy_in = 1, LL},
    {.name = "only rank 0", MP_SHAPE(9, 3, 72, 33), .ragged = 2, .quant = XEP_QUANT_E4M3, LL},
    {.name = "cast", MP_SHAPE(16, 8, 1024, 50), .weights = 1, .quant = XEP_QUANT_E4M3, .biases = 3, LL},
    {.name = "powers of two, odd",
     MP_SHAPE(61, 5, 333, 30),
     MP_FP32,
     .idx_dtype = XEP_INT32,
     .weights = 1,
     .quant = XEP_QUANT_E4M3_POW2,
     .biases = 1,
     .strided = 1,
     .copy_in = 1,
     LL},
    {.name = "packed exponents",
     MP_SHAPE(12, 3, 700, 31),
     .dtype = XEP_FP16,
     .combine_dtype = XEP_FP16,
     .quant = XEP_QUANT_UE8M0,
     .alignment = 8,
     LL},
    {.name = "blocks of 32", MP_SHAPE(16, 8, 1000, 50), .weights = 1, .quant = XEP_QUANT_MXFP8, LL},
    {.name = "e5m2, odd", MP_SHAPE(12, 3, 77, 31), MP_FP32, .strided = 1, .quant = XEP_QUANT_MXFP8_E5M2, LL},
    {.name = "four bits, odd", MP_SHAPE(12, 3, 333, 31), .strided = 1, .quant = XEP_QUANT_MXFP4, LL},
    {.name = "a scale of each row", MP_SHAPE(12, 3, 1001, 31), .alignment = 8, .quant = XEP_QUANT_NVFP4, LL},
    {.name = "a scale of all",
     MP_SHAPE(12, 3, 520, 31),
     .dtype = XEP_FP16,
     .combine_dtype = XEP_FP16,
     .quant = XEP_QUANT_NVFP4,
     .quant_scale = 0.02f,
     LL},
    {.name = "int8", MP_SHAPE(12, 3, 333, 31), .quant = XEP_QUANT_INT8, LL},
    {.name = "int8, a scale of each row", MP_SHAPE(12, 3, 333, 31), MP_FP32, .quant = XEP_QUANT_INT8_ROW, LL},
    {.name = "no scales", MP_SHAPE(12, 3, 333, 31), .quant = XEP_QUANT_E4M3_STATIC, .quant_scale = 0.03f, LL},
    {.name = "payloads", MP_SHAPE(12, 3, 72, 33), .nscales = 1, .payloads = 3, .alignment = 8, .strided = 1, LL},
    {.name = "scales of the user",
     MP_SHAPE(16, 2, 1024, 50),
     .nscales = 9,
     .scales_dtype = XEP_INT32,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_BF16,
     .biases = 2,
     .copy_in = 1,
     LL},
    {.name = "odd bytes",
     MP_SHAPE(7, 2, 77, 20),
     .nscales = 3,
     .dtype = XEP_E4M3,
     .combine_dtype = XEP_FP32,
     .strided = 1,
     .weights = 1,
     LL},
    {.name = "capacity", MP_SHAPE(12, 3, 128, 31), .fixed_capacity = 1, .alignment = 16, .recv_rows = 2000, LL},
    {.name = "to one rank", .routing = "one-rank", MP_SHAPE(8, 2, 64, 130), .slots = 4, LL},
    {.name = "nothing", MP_SHAPE(8, 2, 64, 20), .mask = 1000, .biases = 2, LL},
    {.name = "many selections", MP_SHAPE(80, 40, 96, 9), .weights = 1, LL},
    {.name = "large rows", MP_SHAPE(16, 8, 9000, 6), MP_FP32, LL},
    {.name = "owners", .owners = "random:11", MP_SHAPE(21, 5, 256, 40), .mask = 150, .weights = 1, .alignment = 4, LL},
    {.name = "owners, few experts",
     .owners = "random:5",
     MP_SHAPE(3, 2, 264, 33),
     .idx_dtype = XEP_INT32,
     .ragged = 1,
     .strided = 1,
     .quant = XEP_QUANT_E4M3,
     LL},
};

/* ---- shapes: a dispatch, one with its routing, and combines of both, on two streams in turn ---- */

static xep_dispatch_args_t args_of(cuda_job_t *job, xep_handle_t *cached, int padded, int by_column)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, cached);
    job->host.shape.padded = padded;
    job->host.shape.by_column = by_column;
    job->host.shape.room = job->host.c->tokens;
    if (padded) a.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    if (by_column) a.flags |= XEP_DISPATCH_SCALES_BY_COLUMN;
    return a;
}

static void run_case(xep_group_t *group, const mp_case_t *c)
{
    cuda_job_t job;
    xep_handle_t *first, *again;
    const int may_pad = c->recv_rows == 0 && !c->fixed_capacity;
    cuda_job_open(&job, c, 17, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        cuda_job_payload(&job, 100 + (uint64_t)i);
        cuda_rig_wait(job.stream);
        job.stream = streams[i % STREAMS];
        xep_dispatch_args_t a = args_of(&job, NULL, i == 1 && may_pad, i != 0 && c->payloads == 0);
        MP_OK(xep_dispatch(job.host.buffer, &a, &first, NULL));
        cuda_job_check_recv(&job, first);
        cuda_job_combine(&job, first);
        cuda_job_payload(&job, 200 + (uint64_t)i);
        a = args_of(&job, first, i == 2 && may_pad, i == 1 && c->payloads == 0);
        job.host.shape.weights = c->sent;
        MP_OK(xep_dispatch(job.host.buffer, &a, &again, NULL));
        cuda_job_check_recv(&job, again);
        xep_handle_release(first);
        cuda_job_combine(&job, again);
        cuda_job_combine(&job, again);
        xep_handle_release(again);
    }
    cuda_job_close(&job);
}

/* ---- phases: two dispatches are sent before either is received, and the one sent last is asked for first ---- */

static void phases(xep_group_t *group)
{
    const mp_case_t c = {.name = "phases", MP_SHAPE(12, 3, 80, 37), .weights = 1, .quant = XEP_QUANT_E4M3, LL};
    cuda_job_t job;
    xep_handle_t *handle[2];
    xep_request_t *req[2];
    cuda_job_open(&job, &c, 29, group, streams[0]);
    for (int i = 0; i < ROUNDS; i++) {
        for (int h = 0; h < 2; h++) {
            xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
            a.stream = streams[h];
            MP_OK(xep_dispatch(job.host.buffer, &a, &handle[h], &req[h]));
            MP_CHECK(mp_recv(handle[h]) == NULL);
        }
        for (int h = 1; h >= 0; h--) {
            if (i % 2 != 0) MP_OK(xep_request_stream_wait(req[h], streams[1 - h])); /* that finishes it, too */
            mp_finish(req[h]);
        }
        for (int h = 0; h < 2; h++) {
            job.stream = streams[i % 2 != 0 ? 1 - h : h];
            cuda_job_check_recv(&job, handle[h]);
            cuda_job_combine(&job, handle[h]);
            xep_handle_release(handle[h]);
        }
    }
    job.stream = streams[0];
    cuda_job_close(&job);
}

/* ---- what is refused at once ---- */

static void refusals(xep_group_t *group)
{
    const mp_case_t c = {.name = "refused", MP_SHAPE(8, 2, 64, 16), .nscales = 2, LL};
    cuda_job_t job;
    xep_handle_t *handle = NULL;
    cuda_job_open(&job, &c, 5, group, streams[0]);
    cuda_refuse_memory(&job);
    cuda_refuse_streams(&job);
    xep_dispatch_args_t a = cuda_job_dispatch(&job, NULL);
    a.arrangement = XEP_ROWS_BY_RANK;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(job.host.buffer, &a, &handle, NULL));
    a = cuda_job_dispatch(&job, NULL);
    MP_OK(xep_dispatch(job.host.buffer, &a, &handle, NULL));
    cuda_job_nothing_missing(&job, handle);
    cuda_job_refuse_lacks(&job, handle);
    cuda_job_refuse_formats(&job, handle);
    xep_handle_release(handle);
    cuda_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    if (!cuda_rig_open(mp_rank())) return mp_skip("there is no CUDA device");
    for (int i = 0; i < STREAMS; i++) streams[i] = cuda_rig_stream();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(group, &cases[i]);
    cuda_ll_patterns(group, streams[0]);
    phases(group);
    cuda_rounds_in_a_row(group, "ll", streams);
    refusals(group);
    cuda_staged(group, "ll", streams);
    if (!cuda_job_stages(group)) {
        cuda_standing(group, "ll", streams[0]);
        cuda_graphs(group, "ll", streams[0]);
        cuda_ll_told_later(group, streams[0]);
    }
    cuda_layouts(group, "ll", streams[0]);
    cuda_faults(group, "ll", streams[0]);
    xep_group_destroy(group);
    return 0;
}
