/* SPDX-License-Identifier: BSD-3-Clause */

/* ranks: 8, brief: 5, limit: 300, again: 2 */

/*
 * Rows that go once to each node, in both modes, and receive rings with room for some of the rows that come at once:
 * right in all shapes, with as little room as there can be, in flight, waited for in any order and cached, with a
 * forwarder, or a receiver, that is away; in ll to the bit what the flat path gives with room for all. And what is
 * wrong with params. Nodes of one to three ranks, drawn by force.
 */
#define _GNU_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mode_ops.h"
#include "mp_rig.h"

static void open_on(mp_job_t *job, mp_case_t *c, xep_group_t *group, xep_path_t path, uint64_t pass_rows, uint64_t seed)
{
    c->path = path;
    c->pass_rows = pass_rows;
    mp_job_begin(job, c, seed, group);
    MP_CHECK(mp_buffer_info(job->buffer).path == path);
    MP_CHECK((mp_buffer_info(job->buffer).pass_rows != 0) == (path == XEP_PATH_NODES || pass_rows != 0));
    MP_CHECK(pass_rows == 0 || mp_buffer_info(job->buffer).pass_rows <= pass_rows);
}

/* ---- normal: sums of a node are rounded as they travel ---- */

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

static void sums_of_nodes(xep_group_t *group, mp_case_t c, uint64_t pass_rows, uint64_t seed)
{
    mp_job_t job;
    open_on(&job, &c, group, XEP_PATH_NODES, pass_rows, seed);
    mp_job_rounds(&job, 3, seed);
    mp_job_close(&job);
}

/* A sum for another node is rounded once, to what it travels as; flat, each row is. */
static void fewer_bits(xep_group_t *group)
{
    mp_case_t c = {.name = "fewer bits", .mode = "normal", MP_SHAPE(29, 7, 77, 61), .strided = 1, .threads = 2};
    for (c.path = XEP_PATH_FLAT; c.path <= XEP_PATH_NODES; c.path++) mode_ops_fewer_bits(group, &c, 0);
}

/* ---- ll: by nodes, and with room for some rows, the bits are those of the flat path ---- */

/* The oracle says what is right on each path, and with room for some rows; sums are the same in all their bits. */
static void compare(xep_group_t *group, const mp_case_t *shape, xep_path_t path, uint64_t pass_rows, uint64_t seed)
{
    mp_case_t c[2] = {*shape, *shape};
    mp_job_t whole, other;
    open_on(&whole, &c[0], group, pass_rows == 0 ? XEP_PATH_FLAT : path, 0, seed);
    open_on(&other, &c[1], group, path, pass_rows, seed);
    if (pass_rows != 0) {
        MP_CHECK(mp_buffer_info(other.buffer).recv_rows == mp_buffer_info(whole.buffer).recv_rows);
        MP_CHECK(mp_buffer_info(other.buffer).bytes < mp_buffer_info(whole.buffer).bytes);
    }
    mp_job_compare(&whole, &other, seed);
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
static void away(xep_group_t *group, mp_case_t c, uint64_t pass_rows, uint32_t waits, const char *missing)
{
    mp_job_t job;
    xep_handle_t *handle = NULL;
    xep_request_t *req = NULL;
    c.timeout_ms = mp_rank() == waits ? 2 * MP_VAIN_MS : MP_FAR_MS;
    open_on(&job, &c, group, pass_rows != 0 ? XEP_PATH_FLAT : XEP_PATH_NODES, pass_rows, 9);
    atomic_int *gone = mp_counter(group), *over = mp_counter(group);
    mp_job_round(&job);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() != 0) mp_await(gone, 1);
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == 0) ++*gone;
    if (mp_rank() == waits) {
        MP_SAYS(XEP_ERR_TIMEOUT, missing, xep_request_wait(req));
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
    const mp_case_t plain = {.name = "away", .mode = "ll", MP_SHAPE(32, 4, 256, 96), .weights = 1};
    const mp_case_t to_one = {.name = "takes none", .mode = "ll", .routing = "one-rank", MP_SHAPE(24, 2, 65, 83)};
    char missing[96];
    xep_group_t *group;
    setenv("XEP_PUT", "am", 1);
    MP_OK(xep_group_create(NULL, &group));
    snprintf(missing, sizeof missing, "waits for rows: rank %u at 0 of 3 (through rank 0)", find_upstream(group));
    away(group, plain, 0, 1, missing);
    away(group, to_one, 2 * mp_nranks(), mp_nranks() - 1, "waits for credits: rank 0 at row 0 of 81");
    xep_group_destroy(group);
}

/* ---- both modes ---- */

/* Two in flight; every other rank waits for the second one first. Then the routing of the first once more. */
static void in_flight(xep_group_t *group, const char *mode, xep_path_t path)
{
    enum { FLIGHTS = 2 };
    mp_case_t c = mp_shape(0, mode);
    mp_job_t job;
    xep_handle_t *handle[FLIGHTS];
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
        xep_handle_t *again = mp_job_receive(&job, &a);
        mp_job_sum(&job, again);
        xep_handle_release(again);
        mp_job_sum(&job, handle[0]);
        xep_handle_release(handle[0]);
    }
    mp_job_close(&job);
}

/* Of ll, flat: room for less than one row of each rank; what is said before there is a buffer. */
static void params(xep_group_t *group)
{
    char text[96];
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_size_t hint[2] = {XEP_BUFFER_SIZE_INIT, XEP_BUFFER_SIZE_INIT};
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.mode = "ll";
    p.path = XEP_PATH_FLAT;
    p.pass_rows = mp_nranks() - 1;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, &buffer));
    snprintf(text, sizeof text, "invalid pass_rows: %u (0, or at least %u: one of each rank that rows come from)",
             mp_nranks() - 1, mp_nranks());
    MP_REASON(text);
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
    MP_SAYS(XEP_ERR_MISMATCH,
            "rank 1 and rank 0 disagree on the path that takes less time (XEP_NET_RATE, XEP_MEMORY_RATE): nodes, "
            "flat",
            xep_buffer_create(group, &p, &buffer));
    xep_group_destroy(group);
    unsetenv("XEP_NET_RATE");
    unsetenv("XEP_MEMORY_RATE");
}

/* A buffer with masks is flat, whatever was asked for. */
static void check_masks(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer;
    p.mode = mode;
    p.path = XEP_PATH_NODES;
    p.pass_rows = 1;
    p.on_failure = XEP_ON_FAILURE_MASK;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    const xep_buffer_info_t info = mp_buffer_info(buffer);
    MP_CHECK(info.path == XEP_PATH_FLAT && info.pass_rows == 0);
    xep_buffer_destroy(buffer);
}

int main(void)
{
    xep_group_t *group = mp_nodes_group();
    if (group == NULL) return mp_skip("no two ranks map one another");
    const uint64_t least = least_rows(group);
    for (uint32_t i = 0; i < MP_SHAPES; i = mp_next_shape(i)) {
        const mp_case_t normal = mp_shape(i, "normal"), ll = mp_shape(i, "ll");
        const uint64_t pass_rows = (1 + i % 3) * mp_nranks();
        sums_of_nodes(group, normal, least, 100 + i);
        sums_of_nodes(group, normal, i % 2 == 0 ? 0 : 3 * least + 1, i);
        compare(group, &ll, XEP_PATH_NODES, pass_rows, i);
        if (i % 2 == 0) compare(group, &ll, XEP_PATH_NODES, 0, i);
        else compare(group, &ll, XEP_PATH_FLAT, pass_rows, i);
    }
    in_flight(group, "normal", XEP_PATH_NODES);
    in_flight(group, "ll", XEP_PATH_FLAT);
    in_flight(group, "ll", XEP_PATH_NODES);
    fewer_bits(group);
    size(group);
    params(group);
    wrong_rates();
    check_masks(group, "normal");
    check_masks(group, "ll");
    ranks_away();
    return mp_end(group);
}
