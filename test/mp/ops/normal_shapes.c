/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 3 4 5 8, brief: 1 5, limit: 180 */

/* Normal mode over many shapes: every byte of dispatch and combine against the oracle, several rounds each. */

#include <stdio.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "plain", MP_SHAPE(16, 8, 128, 37), .weights = 1},
    {.name = "one element", MP_SHAPE(7, 1, 1, 5)},
    {.name = "odd hidden, strided", MP_SHAPE(16, 8, 127, 33), .strided = 1, .weights = 1, .biases = 3, .copy_in = 1},
    {.name = "payloads", MP_SHAPE(16, 8, 127, 33), .strided = 1, .nscales = 3, .scales_dtype = XEP_U8, .payloads = 8},
    {.name = "small row", MP_SHAPE(9, 4, 8, 64), .ragged = 1, .mask = 300, .idx_dtype = XEP_INT32, .weights = 1},
    {.name = "2880", MP_SHAPE(32, 4, 2880, 24), .biases = 1, .copy_in = 1},
    {.name = "7168", MP_SHAPE(256, 8, 7168, 48), .weights = 1, .alignment = 16},
    {.name = "top-32 of 40", MP_SHAPE(40, 32, 64, 19), .ragged = 1, .weights = 1, .fixed_capacity = 1},
    {.name = "top-k is all experts", MP_SHAPE(5, 5, 32, 11), .weights = 1},
    {.name = "all -1", MP_SHAPE(16, 8, 64, 17), .mask = 1000, .weights = 1, .biases = 2},
    {.name = "no tokens but on rank 0", MP_SHAPE(16, 2, 64, 40), .ragged = 2, .weights = 1, .nscales = 3},
    {.name = "all to one rank", .routing = "one-rank", MP_SHAPE(64, 2, 96, 50), .weights = 1},
    {.name = "all to self", .routing = "self", MP_SHAPE(64, 2, 96, 50), .weights = 1, .copy_in = 1},
    {.name = "zipf", .routing = "zipf:1.2", MP_SHAPE(33, 6, 160, 61), .ragged = 1, .weights = 1},
    {.name = "groups", .routing = "group:4,2", MP_SHAPE(32, 6, 160, 61), .fixed_capacity = 1, .weights = 1},
    {.name = "one expert", MP_SHAPE(1, 1, 40, 21), .weights = 1},
    {.name = "fewer experts than ranks", MP_SHAPE(3, 2, 40, 21), .weights = 1, .ragged = 1},
    {.name = "fp8 with scales", MP_SHAPE(16, 4, 256, 30), .dtype = XEP_E4M3, .nscales = 2, .weights = 1, .copy_in = 1},
    {.name = "int32 scales, odd", MP_SHAPE(16, 4, 131, 30), .dtype = XEP_U8, .nscales = 5, .scales_dtype = XEP_INT32},
    {.name = "fp32", MP_SHAPE(16, 4, 100, 30), MP_FP32, .biases = 3, .weights = 1},
    {.name = "fp16", MP_SHAPE(16, 4, 100, 30), .dtype = XEP_FP16, .combine_dtype = XEP_FP16, .biases = 3},
    {.name = "fp64 rows", MP_SHAPE(16, 4, 33, 30), .dtype = XEP_FP64, .combine_dtype = XEP_FP32, .copy_in = 1},
    {.name = "streaming", MP_SHAPE(32, 8, 2048, 300), .weights = 1},
    {.name = "three threads", MP_SHAPE(32, 8, 512, 200), .weights = 1, .threads = 3, .biases = 1},
    {.name = "e4m3", MP_SHAPE(16, 8, 128, 37), .weights = 1, .quant = XEP_QUANT_E4M3},
    {.name = "ue8m0, odd", MP_SHAPE(9, 4, 131, 33), .ragged = 1, .strided = 1, .weights = 1, .quant = XEP_QUANT_UE8M0},
    {.name = "mxfp8, 2880", MP_SHAPE(32, 4, 2880, 24), MP_FP32, .mask = 300, .quant = XEP_QUANT_MXFP8},
    {.name = "e5m2", MP_SHAPE(16, 4, 100, 30), .dtype = XEP_FP16, .copy_in = 1, .quant = XEP_QUANT_MXFP8_E5M2},
    {.name = "mxfp4, odd",
     MP_SHAPE(7, 2, 33, 20),
     .ragged = 2,
     .idx_dtype = XEP_INT32,
     .payloads = 4,
     .quant = XEP_QUANT_MXFP4},
    {.name = "nvfp4, threads", MP_SHAPE(32, 8, 1000, 200), .threads = 3, .weights = 1, .quant = XEP_QUANT_NVFP4},
    {.name = "nvfp4, one element", MP_SHAPE(7, 1, 1, 5), .fixed_capacity = 1, .quant = XEP_QUANT_NVFP4},
    {.name = "int8, streaming", MP_SHAPE(32, 8, 2048, 300), .weights = 1, .quant = XEP_QUANT_INT8},
    {.name = "int8 by row", MP_SHAPE(16, 4, 77, 30), .mask = 1000, .quant = XEP_QUANT_INT8_ROW},
    {.name = "static", MP_SHAPE(16, 4, 264, 30), .ragged = 1, .quant = XEP_QUANT_E4M3_STATIC, .quant_scale = 0.01f},
};

static void run(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_begin(&job, c, 1, group);
    mp_job_rounds(&job, 3, 100);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run(group, &cases[i]);
    return mp_end(group);
}
