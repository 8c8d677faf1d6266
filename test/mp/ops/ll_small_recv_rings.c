/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 5 8, brief: 5, limit: 300, again: 2 */

/*
 * Mode ll on several nodes, with room for some of the rows that come at once: what arrives, and the bits of a combine,
 * are as with room for all, on both paths; in flight, waited for in any order, cached, in place, with ranks without
 * tokens and with one that gets everything.
 */

#include <stdlib.h>

#include "mp_job.h"
#include "mp_nodes.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", .mode = "ll", MP_SHAPE(32, 4, 256, 96), .weights = 1},
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
    {.name = "everything to rank 0", .mode = "ll", .routing = "one-rank", MP_SHAPE(24, 2, 65, 83)},
    {.name = "one rank sends", .mode = "ll", MP_SHAPE(9, 9, 1, 83), .ragged = 2},
    {.name = "nobody receives", .mode = "ll", MP_SHAPE(8, 2, 64, 10), .mask = 1000},
    {.name = "e4m3, weights sent",
     .mode = "ll",
     .routing = "one-rank",
     MP_SHAPE(24, 6, 1000, 70),
     .ragged = 1,
     .weights = 1,
     .sent = 1,
     .quant = XEP_QUANT_E4M3,
     .slots = 3},
    {.name = "ue8m0, threads",
     .mode = "ll",
     MP_SHAPE(16, 3, 520, 130),
     .mask = 100,
     MP_FP32,
     .quant = XEP_QUANT_UE8M0,
     .threads = 3,
     .fixed_capacity = 1},
    {.name = "owners", .mode = "ll", .owners = "random:3", MP_SHAPE(19, 5, 72, 80), .weights = 1, .mask = 100},
};

static xep_buffer_info_t query(const mp_job_t *job)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(job->buffer, &info));
    return info;
}

static void open_with(mp_job_t *job, mp_case_t *c, xep_group_t *group, xep_path_t path, uint64_t pass_rows,
                      uint64_t seed)
{
    c->path = path;
    c->pass_rows = pass_rows;
    mp_job_open(job, c, seed);
    mp_job_buffer(job, group);
}

/* The oracle says what is right on each; sums are the same in all their bits. */
static void compare(xep_group_t *group, const mp_case_t *shape, xep_path_t path, uint64_t room, uint64_t seed)
{
    mp_case_t c[2] = {*shape, *shape};
    mp_job_t all, some;
    open_with(&all, &c[0], group, path, 0, seed);
    open_with(&some, &c[1], group, path, room, seed);
    MP_CHECK(query(&some).pass_rows != 0 && query(&some).pass_rows <= room);
    MP_CHECK(query(&some).bytes < query(&all).bytes && query(&some).recv_rows == query(&all).recv_rows);
    mp_job_compare(&all, &some, seed);
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
    open_with(&job, &c, group, path, mp_nranks(), 7);
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

/*
 * All rows go to rank 0, which has sent, and is not in the library: whoever is on another node waits for it to take
 * some, and says so. After a reset all is well again.
 */
static void away(xep_group_t *group)
{
    mp_case_t c = shapes[2];
    mp_job_t job;
    xep_handle_t *handle = NULL;
    xep_request_t *req = NULL;
    const uint32_t last = mp_nranks() - 1;
    c.timeout_ms = mp_rank() == last ? 700 : 60000;
    open_with(&job, &c, group, XEP_PATH_FLAT, 2 * mp_nranks(), 9);
    atomic_int *over = mp_counter(group);
    mp_job_round(&job);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_group_barrier(group));
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == last) {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(req));
        MP_REASON("waits for credits: rank 0 at row 0 of 81");
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

/* Room for less than one row of each rank; ranks that disagree; and where ranks may be left out, room for all. */
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
    p.pass_rows = 1;
    p.path = XEP_PATH_AUTO;
    p.on_failure = XEP_ON_FAILURE_MASK;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    MP_OK(xep_buffer_query(buffer, &info));
    MP_CHECK(info.path == XEP_PATH_FLAT && info.pass_rows == 0);
    xep_buffer_destroy(buffer);
}

int main(void)
{
    xep_group_t *group = mp_nodes_group();
    if (group == NULL) return mp_skip("no two ranks map one another");
    for (xep_path_t path = XEP_PATH_FLAT; path <= XEP_PATH_NODES; path++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            compare(group, &shapes[i], path, (1 + i % 3) * mp_nranks(), i);
        in_flight(group, path);
    }
    away(group);
    params(group);
    xep_group_destroy(group);
    return 0;
}
