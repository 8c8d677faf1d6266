/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 3 4 5 8, brief: 1 5, limit: 180 */

/* Normal mode over many shapes: every byte of dispatch and combine against the oracle, several rounds each. */

#include <stdio.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t cases[] = {
    {.name = "plain", .experts = 16, .topk = 8, .hidden = 128, .tokens = 37, .weights = 1},
    {.name = "one element", .experts = 7, .topk = 1, .hidden = 1, .tokens = 5},
    {.name = "odd hidden, strided",
     .experts = 16,
     .topk = 8,
     .hidden = 127,
     .tokens = 33,
     .strided = 1,
     .weights = 1,
     .biases = 3,
     .copy_in = 1},
    {.name = "small row",
     .experts = 9,
     .topk = 4,
     .hidden = 8,
     .tokens = 64,
     .ragged = 1,
     .mask = 300,
     .idx_dtype = XEP_INT32,
     .weights = 1},
    {.name = "2880", .experts = 32, .topk = 4, .hidden = 2880, .tokens = 24, .biases = 1, .copy_in = 1},
    {.name = "7168", .experts = 256, .topk = 8, .hidden = 7168, .tokens = 48, .weights = 1, .alignment = 16},
    {.name = "top-32 of 40",
     .experts = 40,
     .topk = 32,
     .hidden = 64,
     .tokens = 19,
     .ragged = 1,
     .weights = 1,
     .fixed_capacity = 1},
    {.name = "top-k is all experts", .experts = 5, .topk = 5, .hidden = 32, .tokens = 11, .weights = 1},
    {.name = "all -1", .experts = 16, .topk = 8, .hidden = 64, .tokens = 17, .mask = 1000, .weights = 1, .biases = 2},
    {.name = "no tokens but on rank 0",
     .experts = 16,
     .topk = 2,
     .hidden = 64,
     .tokens = 40,
     .ragged = 2,
     .weights = 1,
     .nscales = 3},
    {.name = "all to one rank",
     .routing = "one-rank",
     .experts = 64,
     .topk = 2,
     .hidden = 96,
     .tokens = 50,
     .weights = 1},
    {.name = "all to self",
     .routing = "self",
     .experts = 64,
     .topk = 2,
     .hidden = 96,
     .tokens = 50,
     .weights = 1,
     .copy_in = 1},
    {.name = "zipf",
     .routing = "zipf:1.2",
     .experts = 33,
     .topk = 6,
     .hidden = 160,
     .tokens = 61,
     .ragged = 1,
     .weights = 1},
    {.name = "groups",
     .routing = "group:4,2",
     .experts = 32,
     .topk = 6,
     .hidden = 160,
     .tokens = 61,
     .fixed_capacity = 1,
     .weights = 1},
    {.name = "one expert", .experts = 1, .topk = 1, .hidden = 40, .tokens = 21, .weights = 1},
    {.name = "fewer experts than ranks",
     .experts = 3,
     .topk = 2,
     .hidden = 40,
     .tokens = 21,
     .weights = 1,
     .ragged = 1},
    {.name = "fp8 with scales",
     .experts = 16,
     .topk = 4,
     .hidden = 256,
     .tokens = 30,
     .dtype = XEP_E4M3,
     .nscales = 2,
     .weights = 1,
     .copy_in = 1},
    {.name = "int32 scales, odd",
     .experts = 16,
     .topk = 4,
     .hidden = 131,
     .tokens = 30,
     .dtype = XEP_U8,
     .nscales = 5,
     .scales_dtype = XEP_INT32},
    {.name = "fp32",
     .experts = 16,
     .topk = 4,
     .hidden = 100,
     .tokens = 30,
     .dtype = XEP_FP32,
     .combine_dtype = XEP_FP32,
     .biases = 3,
     .weights = 1},
    {.name = "fp16",
     .experts = 16,
     .topk = 4,
     .hidden = 100,
     .tokens = 30,
     .dtype = XEP_FP16,
     .combine_dtype = XEP_FP16,
     .biases = 3},
    {.name = "fp64 rows",
     .experts = 16,
     .topk = 4,
     .hidden = 33,
     .tokens = 30,
     .dtype = XEP_FP64,
     .combine_dtype = XEP_FP32,
     .copy_in = 1},
    {.name = "streaming", .experts = 32, .topk = 8, .hidden = 2048, .tokens = 300, .weights = 1},
    {.name = "three threads",
     .experts = 32,
     .topk = 8,
     .hidden = 512,
     .tokens = 200,
     .weights = 1,
     .threads = 3,
     .biases = 1},
};

static void run(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_open(&job, c, 1);
    mp_job_buffer(&job, group);
    for (uint64_t round = 0; round < 3; round++) {
        mp_job_payload(&job, round + 100);
        mp_job_round(&job);
    }
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run(group, &cases[i]);
    xep_group_destroy(group);
    return 0;
}
