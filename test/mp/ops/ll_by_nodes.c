/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 5 8, brief: 5, limit: 300, again: 2 */

/*
 * Dispatches of ll that go once to each node: right in all shapes and casts, to the bit what the flat path gives, in
 * flight, and with a forwarder that is away; nodes of two and three ranks, drawn by force. Every other rank sends its
 * rows in many small parts.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_nodes.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", .mode = "ll", MP_SHAPE(32, 4, 256, 96), .weights = 1},
    {.name = "odd",
     .mode = "ll",
     MP_SHAPE(29, 7, 77, 61),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .scales_dtype = XEP_U8,
     .payloads = 3,
     .weights = 1,
     .strided = 1,
     .biases = 3,
     .alignment = 8,
     .copy_in = 1},
    {.name = "owners", .mode = "ll", .owners = "split:1", MP_SHAPE(19, 5, 72, 40), .weights = 1, .mask = 100},
    {.name = "one rank sends", .mode = "ll", MP_SHAPE(9, 9, 1, 83), .ragged = 2},
    {.name = "nobody receives", .mode = "ll", MP_SHAPE(8, 2, 64, 10), .mask = 1000},
    {.name = "e4m3, weights sent",
     .mode = "ll",
     MP_SHAPE(24, 6, 1000, 70),
     .ragged = 1,
     .weights = 1,
     .sent = 1,
     .quant = XEP_QUANT_E4M3,
     .slots = 3},
    {.name = "powers of two",
     .mode = "ll",
     MP_SHAPE(16, 3, 300, 33),
     .quant = XEP_QUANT_E4M3_POW2,
     .idx_dtype = XEP_INT32},
    {.name = "ue8m0, threads",
     .mode = "ll",
     MP_SHAPE(16, 3, 520, 130),
     .mask = 100,
     MP_FP32,
     .payloads = 8,
     .quant = XEP_QUANT_UE8M0,
     .threads = 3,
     .fixed_capacity = 1},
};

/* ---- both paths ---- */

static void open_on(mp_job_t *job, mp_case_t *c, xep_group_t *group, xep_path_t path, uint64_t seed)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    c->path = path;
    mp_job_open(job, c, seed);
    mp_job_buffer(job, group);
    MP_OK(xep_buffer_query(job->buffer, &info));
    MP_CHECK(info.path == path && (info.pass_rows != 0) == (path == XEP_PATH_NODES));
}

/* The oracle says what is right on each; sums are the same in all their bits. */
static void compare(xep_group_t *group, const mp_case_t *shape, uint64_t seed)
{
    mp_case_t c[2] = {*shape, *shape};
    mp_job_t flat, nodes;
    open_on(&flat, &c[0], group, XEP_PATH_FLAT, seed);
    open_on(&nodes, &c[1], group, XEP_PATH_NODES, seed);
    mp_job_compare(&flat, &nodes, seed);
}

/* What a buffer needs is said before there is one; by nodes it is no more than where rows go to each rank. */
static void size(xep_group_t *group)
{
    xep_buffer_info_t info[2] = {XEP_BUFFER_INFO_INIT, XEP_BUFFER_INFO_INIT};
    xep_buffer_size_t hint = XEP_BUFFER_SIZE_INIT;
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer;
    p.mode = "ll";
    MP_OK(xep_buffer_size(&p, mp_nranks(), &hint));
    for (int i = 0; i < 2; i++) {
        p.path = i == 0 ? XEP_PATH_FLAT : XEP_PATH_NODES;
        MP_OK(xep_buffer_create(group, &p, &buffer));
        MP_OK(xep_buffer_query(buffer, &info[i]));
        xep_buffer_destroy(buffer);
    }
    MP_CHECK(info[1].path == XEP_PATH_NODES && info[1].bytes < info[0].bytes && info[0].bytes <= hint.bytes);
}

/* ---- a forwarder that is away ---- */

/* The rank through which rank 1 hears the first rank of the second node, and that one. */
static uint32_t find_upstream(xep_group_t *group)
{
    uint32_t rank = 0;
    xep_peer_info_t own = XEP_PEER_INFO_INIT, peer = XEP_PEER_INFO_INIT;
    MP_OK(xep_group_peer(group, 0, &own));
    do MP_OK(xep_group_peer(group, ++rank, &peer));
    while (peer.node == own.node);
    return rank;
}

/*
 * Rank 0 has sent, and is not in the library while rank 1, on its node, waits: rank 1 has heard of rank 0 itself, and
 * of nobody behind it. Its deadline says so; after a reset all is well again.
 */
static void away(xep_group_t *group)
{
    mp_case_t c = shapes[0];
    mp_job_t job;
    xep_handle_t *handle = NULL;
    xep_request_t *req = NULL;
    char missing[64];
    c.timeout_ms = mp_rank() == 1 ? 700 : 60000;
    open_on(&job, &c, group, XEP_PATH_NODES, 9);
    atomic_int *over = mp_counter(group);
    mp_job_round(&job);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_group_barrier(group));
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == 1) {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(req));
        snprintf(missing, sizeof missing, "rank %u at 0 of 3 (through rank 0)", find_upstream(group));
        MP_REASON(missing);
        MP_CHECK(strstr(xep_last_error(), "rank 0 at") == NULL);
        ++*over;
    }
    mp_await(over, 1);
    xep_request_free(req);
    xep_handle_release(handle);
    MP_OK(xep_buffer_reset(job.buffer));
    for (uint64_t i = 0; i < 3; i++) {
        mp_job_payload(&job, 90 + i);
        mp_job_round(&job);
    }
    mp_job_close(&job);
}

int main(void)
{
    setenv("XEP_PART", mp_rank() % 2 == 0 ? "2k" : "256k", 1);
    xep_group_t *group = mp_nodes_group();
    if (group == NULL) return mp_skip("no two ranks map one another");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) compare(group, &shapes[i], i);
    size(group);
    mp_nodes_check_masks(group, "ll");
    away(group);
    xep_group_destroy(group);
    return 0;
}
