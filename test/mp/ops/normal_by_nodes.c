/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4 5 8, brief: 5, limit: 300 */

/*
 * Rows that go once to each node: right in all shapes, with as little room for rows in passing as there can be, in
 * flight and cached; nodes of one to three ranks, drawn by force. And what is wrong with params.
 */
#define _GNU_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mode_ops.h"
#include "mp_job.h"
#include "mp_nodes.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", MP_SHAPE(32, 4, 256, 96), .weights = 1},
    {.name = "odd",
     MP_SHAPE(29, 7, 77, 61),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .scales_dtype = XEP_U8,
     .payloads = 3,
     .weights = 1,
     .strided = 1,
     .biases = 3,
     .copy_in = 1},
    {.name = "owners", .owners = "split:1", MP_SHAPE(19, 5, 72, 40), .weights = 1, .mask = 100},
    {.name = "one rank sends", MP_SHAPE(9, 9, 1, 83), .ragged = 2},
    {.name = "e4m3", MP_SHAPE(16, 4, 300, 70), .ragged = 1, .weights = 1, .quant = XEP_QUANT_E4M3},
    {.name = "nvfp4", MP_SHAPE(29, 7, 77, 61), .strided = 1, .threads = 2, .payloads = 8, .quant = XEP_QUANT_NVFP4},
    {.name = "nobody receives", MP_SHAPE(8, 2, 64, 10), .mask = 1000},
    {.name = "fp32, threads",
     MP_SHAPE(16, 3, 520, 130),
     MP_FP32,
     .idx_dtype = XEP_INT32,
     .weights = 1,
     .threads = 3,
     .fixed_capacity = 1},
    {.name = "sums in fp32",
     MP_SHAPE(40, 9, 331, 64),
     .ragged = 1,
     .weights = 1,
     .biases = 3,
     .threads = 2,
     .node_sums = XEP_NODE_SUMS_FP32},
    {.name = "sums of fp16 in fp32",
     MP_SHAPE(16, 8, 512, 50),
     .combine_dtype = XEP_FP16,
     .copy_in = 1,
     .node_sums = XEP_NODE_SUMS_FP32},
    {.name = "fp8", MP_SHAPE(24, 6, 1000, 70), .dtype = XEP_E4M3, .nscales = 8, .slots = 3, .biases = 1, .copy_in = 1},
};

/* Ranks that pass rows to one rank of another node, most of them: as the error says it. */
static uint64_t least_rows(xep_group_t *group)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    unsigned given, least = 1;
    p.path = XEP_PATH_NODES;
    p.pass_rows = 1;
    if (xep_buffer_create(group, &p, &buffer) == XEP_OK) {
        xep_buffer_destroy(buffer);
        return 1;
    }
    MP_CHECK(sscanf(xep_last_error(), "invalid pass_rows: %u (0, or at least %u:", &given, &least) == 2 ||
             strstr(xep_last_error(), "cannot create its buffer") != NULL);
    MP_CHECK(least > 1);
    return least;
}

static void round_with(xep_group_t *group, mp_case_t c, uint64_t pass_rows, uint64_t seed)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    mp_job_t job;
    c.path = XEP_PATH_NODES;
    c.pass_rows = pass_rows;
    mp_job_begin(&job, &c, seed, group);
    MP_OK(xep_buffer_query(job.buffer, &info));
    MP_CHECK(info.path == XEP_PATH_NODES && info.pass_rows != 0);
    MP_CHECK(pass_rows == 0 || info.pass_rows <= pass_rows);
    MP_CHECK(info.node_sums == (c.node_sums != 0 ? c.node_sums : XEP_NODE_SUMS_DTYPE));
    mp_job_rounds(&job, 3, seed);
    mp_job_close(&job);
}

/* Rows of the same routing once more, while the first handle lives; both are combined. */
static void cached(xep_group_t *group)
{
    mp_case_t c = shapes[1];
    mp_job_t job;
    xep_handle_t *first, *again;
    c.path = XEP_PATH_NODES;
    c.pass_rows = 2 * mp_nranks();
    c.slots = 3;
    mp_job_begin(&job, &c, 5, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &a, &first, NULL));
    mp_job_check_recv(&job, first);
    for (uint64_t i = 0; i < 4; i++) {
        mp_job_payload(&job, 50 + i);
        a = mp_job_cached(&job, first);
        MP_OK(xep_dispatch(job.buffer, &a, &again, NULL));
        mp_job_check_recv(&job, again);
        xep_combine_args_t combine = mp_job_combine(&job, again);
        MP_OK(xep_combine(again, &combine, NULL));
        mp_job_check_out(&job);
        xep_handle_release(again);
    }
    xep_combine_args_t combine = mp_job_combine(&job, first);
    MP_OK(xep_combine(first, &combine, NULL));
    mp_job_check_out(&job);
    xep_handle_release(first);
    mp_job_close(&job);
}

/* A sum for another node is rounded once, to what it travels as, whatever node_sums says; flat, each row is. */
static void fewer_bits(xep_group_t *group)
{
    mp_case_t c = shapes[1];
    c.threads = 2;
    for (c.path = XEP_PATH_FLAT; c.path <= XEP_PATH_NODES; c.path++) {
        mode_ops_fewer_bits(group, &c, 0);
        c.node_sums = XEP_NODE_SUMS_FP32;
    }
}

static void wrong(xep_group_t *group)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.path = (xep_path_t)3;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, &buffer));
    MP_REASON("invalid path: 3 (one of XEP_PATH_*)");
    p.path = mp_rank() == 1 ? XEP_PATH_FLAT : XEP_PATH_NODES;
    MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
    MP_REASON("rank 1 and rank 0 disagree on path: flat, nodes");
    p.path = XEP_PATH_NODES;
    p.pass_rows = mp_rank() == 1 ? 100 : 101;
    MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
    MP_REASON("rank 1 and rank 0 disagree on pass_rows: 100, 101");
    p.pass_rows = 100;
    p.node_sums = (xep_node_sums_t)3;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, &buffer));
    MP_REASON("invalid node_sums: 3 (one of XEP_NODE_SUMS_*)");
    p.node_sums = mp_rank() == 1 ? XEP_NODE_SUMS_FP32 : XEP_NODE_SUMS_DEFAULT;
    MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
    MP_REASON("rank 1 and rank 0 disagree on node_sums: fp32, dtype");
}

/* Each rank finds out what takes less time, by what its own environment says of the network. */
static void wrong_rates(void)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    xep_group_t *group;
    p.tokens = 256;
    setenv("XEP_NET_RATE", mp_rank() == 1 ? "100k" : "1000g", 1);
    setenv("XEP_MEMORY_RATE", "100m", 1);
    MP_OK(xep_group_create(NULL, &group));
    MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
    MP_REASON("rank 1 and rank 0 disagree on the path that takes less time (XEP_NET_RATE, XEP_MEMORY_RATE): nodes, "
              "flat");
    xep_group_destroy(group);
    unsetenv("XEP_NET_RATE");
    unsetenv("XEP_MEMORY_RATE");
}

int main(void)
{
    xep_group_t *group = mp_nodes_group();
    if (group == NULL) return mp_skip("no two ranks map one another");
    uint64_t least = least_rows(group);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        round_with(group, shapes[i], 0, i);
        round_with(group, shapes[i], least, 100 + i);
        round_with(group, shapes[i], 3 * least + 1, 200 + i);
    }
    cached(group);
    fewer_bits(group);
    wrong(group);
    wrong_rates();
    mp_nodes_check_masks(group, "normal");
    xep_group_destroy(group);
    return 0;
}
