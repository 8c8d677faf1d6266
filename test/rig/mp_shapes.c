/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_job.h"

#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

static const mp_case_t shapes[MP_SHAPES] = {
    {.name = "plain", MP_SHAPE(32, 4, 256, 65), .weights = 1},
    {.name = "odd",
     MP_SHAPE(29, 7, 77, 61),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .scales_dtype = XEP_U8,
     .payloads = 3,
     .weights = 1,
     .sent = 1,
     .strided = 1,
     .biases = 3,
     .alignment = 8,
     .copy_in = 1},
    {.name = "owners", .owners = "random:11", MP_SHAPE(21, 5, 72, 80), .weights = 1, .mask = 150, .alignment = 3},
    {.name = "one rank sends", MP_SHAPE(9, 9, 1, 83), .ragged = 2},
    {.name = "all to one rank", .routing = "one-rank", MP_SHAPE(24, 2, 65, 83), .alignment = 4, .copy_in = 1},
    {.name = "nobody receives", MP_SHAPE(8, 2, 64, 20), .mask = 1000, .weights = 1, .biases = 2},
    {.name = "few experts", MP_SHAPE(2, 1, 130, 50), MP_FP32, .idx_dtype = XEP_INT32, .ragged = 1, .biases = 1},
    {.name = "e4m3", MP_SHAPE(24, 6, 1000, 70), .ragged = 1, .weights = 1, .sent = 1, .quant = XEP_QUANT_E4M3},
    {.name = "powers of two", MP_SHAPE(16, 3, 300, 33), .quant = XEP_QUANT_E4M3_POW2, .idx_dtype = XEP_INT32},
    {.name = "ue8m0, fp32",
     MP_SHAPE(16, 3, 520, 130),
     MP_FP32,
     .mask = 100,
     .payloads = 8,
     .quant = XEP_QUANT_UE8M0,
     .threads = 3,
     .fixed_capacity = 1},
    {.name = "nvfp4", MP_SHAPE(13, 5, 77, 61), .weights = 1, .strided = 1, .threads = 2, .quant = XEP_QUANT_NVFP4},
    {.name = "fp8", MP_SHAPE(16, 4, 1000, 70), .dtype = XEP_E4M3, .nscales = 8, .slots = 3, .biases = 1, .copy_in = 1},
    {.name = "fp16, threads",
     MP_SHAPE(16, 8, 512, 50),
     .dtype = XEP_FP16,
     .combine_dtype = XEP_FP16,
     .threads = 3,
     .fixed_capacity = 1},
    {.name = "int32 scales", MP_SHAPE(40, 9, 331, 30), .nscales = 5, .scales_dtype = XEP_INT32, .biases = 3},
};

mp_case_t mp_shape(uint32_t number, const char *mode)
{
    mp_case_t c = shapes[number];
    MP_CHECK(number < MP_SHAPES);
    c.mode = mode;
    return c;
}

uint32_t mp_next_shape(uint32_t number)
{
    const char *brief = getenv("XEP_TEST_BRIEF");
    return number + (brief != NULL && strcmp(brief, "quick") == 0 ? 3 : 1);
}
