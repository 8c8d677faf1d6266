/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 5 8, brief: 5, limit: 300, again: 2 */

/*
 * Mode ll on several nodes of two and three ranks, drawn by force: dispatches that go once to each node, and receive
 * rings with room for some of the rows that come at once. Right in all shapes and casts, and to the bit what the flat
 * path gives with room for all; in flight, waited for in any order, cached, in place, and with a forwarder, or a
 * receiver, that is away. Every other rank sends its rows in many small parts.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_nodes.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", .mode = "ll", MP_SHAPE(32, 4, 256, 96), .weights = 1},
    {.name = "odd, strided",
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
    {.name = "everything to rank 0", .mode = "ll", .routing = "one-rank", MP_SHAPE(24, 2, 65, 83)},
    {.name = "odd, in place",
     .mode = "ll",
     MP_SHAPE(29, 7, 77, 61),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .weights = 1,
     .biases = 3,
     .alignment = 8,
     .in_place = 1,
     .copy_in = 1},
    {.name = "owners", .mode = "ll", .owners = "split:1", MP_SHAPE(19, 5, 72, 80), .weights = 1, .mask = 100},
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
    {.name = "the same to rank 0",
     .mode = "ll",
     .routing = "one-rank",
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

static xep_buffer_info_t query(const mp_job_t *job)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(job->buffer, &info));
    return info;
}

static void open_on(mp_job_t *job, mp_case_t *c, xep_group_t *group, xep_path_t path, uint64_t pass_rows, uint64_t seed)
{
    c->path = path;
    c->pass_rows = pass_rows;
    mp_job_begin(job, c, seed, group);
    MP_CHECK(query(job).path == path);
    MP_CHECK((query(job).pass_rows != 0) == (path == XEP_PATH_NODES || pass_rows != 0));
}

/* The oracle says what is right on each path, and with room for some rows; sums are the same in all their bits. */
static void compare(xep_group_t *group, const mp_case_t *shape, xep_path_t path, uint64_t pass_rows, uint64_t seed)
{
    mp_case_t c[2] = {*shape, *shape};
    mp_job_t whole, other;
    open_on(&whole, &c[0], group, pass_rows == 0 ? XEP_PATH_FLAT : path, 0, seed);
    open_on(&other, &c[1], group, path, pass_rows, seed);
    if (pass_rows != 0) {
        MP_CHECK(query(&other).pass_rows <= pass_rows && query(&other).recv_rows == query(&whole).recv_rows);
        MP_CHECK(query(&other).bytes < query(&whole).bytes);
    }
    mp_job_compare(&whole, &other, seed);
}

/* Two in flight; every other rank waits for the second one first. Then the routing of the first once more. */
static void in_flight(xep_group_t *group, xep_path_t path)
{
    enum { FLIGHTS = 2 };
    mp_case_t c = shapes[0];
    mp_job_t job;
    xep_handle_t *handle[FLIGHTS], *again;
    xep_request_t *req[FLIGHTS];
    c.slots = 3;
    open_on(&job, &c, group, path, mp_nranks(), 7);
    for (int round = 0; round < 4; round++) {
        xep_dispatch_args_t a = mp_job_dispatch(&job);
        for (int i = 0; i < FLIGHTS; i++) MP_OK(xep_dispatch(job.buffer, &a, &handle[i], &req[i]));
        for (int i = 0; i < FLIGHTS; i++) MP_OK(xep_request_wait(req[mp_rank() % 2 == 0 ? i : FLIGHTS - 1 - i]));
        for (int i = 0; i < FLIGHTS; i++) {
            mp_job_check_recv(&job, handle[i]);
            xep_request_free(req[i]);
        }
        xep_handle_release(handle[1]);
        mp_job_payload(&job, 70 + (uint64_t)round);
        a = mp_job_cached(&job, handle[0]);
        MP_OK(xep_dispatch(job.buffer, &a, &again, NULL));
        mp_job_check_recv(&job, again);
        xep_combine_args_t combine = mp_job_combine(&job, again);
        MP_OK(xep_combine(again, &combine, NULL));
        mp_job_check_out(&job);
        xep_handle_release(again);
        xep_handle_release(handle[0]);
    }
    mp_job_close(&job);
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

/* ---- a rank that is away ---- */

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
 * Rank 0 has sent, and is not in the library while another one waits, until its deadline, whose sentence says for whom.
 * After a reset all is well again.
 */
static void away(xep_group_t *group, const mp_case_t *shape, uint64_t pass_rows, uint32_t waits, const char *missing)
{
    mp_case_t c = *shape;
    mp_job_t job;
    xep_handle_t *handle = NULL;
    xep_request_t *req = NULL;
    c.timeout_ms = mp_rank() == waits ? 700 : 60000;
    open_on(&job, &c, group, pass_rows != 0 ? XEP_PATH_FLAT : XEP_PATH_NODES, pass_rows, 9);
    atomic_int *gone = mp_counter(group), *over = mp_counter(group);
    mp_job_round(&job);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() != 0) mp_await(gone, 1);
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == 0) ++*gone;
    if (mp_rank() == waits) {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(req));
        MP_REASON(missing);
        ++*over;
    }
    mp_await(over, 1);
    xep_request_free(req);
    xep_handle_release(handle);
    MP_OK(xep_buffer_reset(job.buffer));
    mp_job_rounds(&job, 3, 90);
    mp_job_close(&job);
}

/*
 * By nodes rank 1, on the node of rank 0, has heard of that one itself, and of nobody behind it: the ranks before the
 * first one of the second node are all there. Flat, all rows go to rank 0, and the last rank waits for it to take some.
 * What is put as messages is in no rank's memory before it comes back to the library.
 */
static void ranks_away(void)
{
    char missing[96];
    xep_group_t *group;
    setenv("XEP_PUT", "am", 1);
    MP_OK(xep_group_create(NULL, &group));
    snprintf(missing, sizeof missing, "waits for rows: rank %u at 0 of 3 (through rank 0)", find_upstream(group));
    away(group, &shapes[0], 0, 1, missing);
    away(group, &shapes[2], 2 * mp_nranks(), mp_nranks() - 1, "waits for credits: rank 0 at row 0 of 81");
    xep_group_destroy(group);
}

/* Room for less than one row of each rank; ranks that disagree; what is said before there is a buffer. */
static void params(xep_group_t *group)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_size_t hint[2] = {XEP_BUFFER_SIZE_INIT, XEP_BUFFER_SIZE_INIT};
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.mode = "ll";
    p.path = XEP_PATH_FLAT;
    p.pass_rows = mp_nranks() - 1;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, &buffer));
    MP_REASON(mp_nranks() == 5 ? "invalid pass_rows: 4 (0, or at least 5: one of each rank that rows come from)"
                               : "invalid pass_rows: 7 (0, or at least 8: one of each rank that rows come from)");
    p.pass_rows = 100 + mp_rank();
    MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
    MP_REASON("rank 1 and rank 0 disagree on pass_rows: 101, 100");
    for (p.path = XEP_PATH_FLAT; p.path <= XEP_PATH_NODES; p.path++) {
        p.pass_rows = 0;
        MP_OK(xep_buffer_size(&p, mp_nranks(), &hint[0]));
        p.pass_rows = 2 * mp_nranks() + 1;
        MP_OK(xep_buffer_size(&p, mp_nranks(), &hint[1]));
        MP_OK(xep_buffer_create(group, &p, &buffer));
        MP_OK(xep_buffer_query(buffer, &info));
        MP_CHECK(info.bytes <= hint[1].bytes && hint[1].bytes < hint[0].bytes);
        xep_buffer_destroy(buffer);
    }
}

int main(void)
{
    setenv("XEP_PART", mp_rank() % 2 == 0 ? "2k" : "256k", 1);
    xep_group_t *group = mp_nodes_group();
    if (group == NULL) return mp_skip("no two ranks map one another");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const uint64_t pass_rows = (1 + i % 3) * mp_nranks();
        compare(group, &shapes[i], XEP_PATH_NODES, 0, i);
        compare(group, &shapes[i], XEP_PATH_FLAT, pass_rows, i);
        compare(group, &shapes[i], XEP_PATH_NODES, pass_rows, i);
    }
    in_flight(group, XEP_PATH_FLAT);
    in_flight(group, XEP_PATH_NODES);
    size(group);
    params(group);
    mp_nodes_check_masks(group, "ll");
    ranks_away();
    xep_group_destroy(group);
    return 0;
}
