/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4 5, brief: 5, limit: 300, again: 2 */

/*
 * The rank that others' rows pass: with the progress thread it passes them on while its program is not in the library,
 * without it the deadline of the others names it, and the rows that it has taken; after a reset all is well again. At
 * the end it dies in the middle of a dispatch. Nodes of three ranks and one; of two, two and one.
 */
#define _GNU_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

/* that passes on what the first rank of every other node sends to its own */
enum { FORWARDER = 0 };

static mp_case_t base = {.name = "forwarding", MP_SHAPE(20, 6, 700, 90), .weights = 1, .path = XEP_PATH_NODES};

static void open_by_nodes(mp_job_t *job, xep_group_t *group, uint64_t seed)
{
    mp_job_begin(job, &base, seed, group);
    MP_CHECK(mp_buffer_info(job->buffer).path == XEP_PATH_NODES);
}

static void rounds(mp_job_t *job)
{
    mp_job_rounds(job, 3, 90);
}

/* ---- with the progress thread ---- */

/* The forwarder begins, and comes back when all others have all: nobody but the thread can have passed that on. */
static void finish_beside(atomic_int *finished, xep_request_t *req)
{
    if (mp_rank() == FORWARDER) mp_await(finished, (int)mp_nranks() - 1);
    MP_OK(xep_request_wait(req));
    if (mp_rank() != FORWARDER) ++*finished;
    xep_request_free(req);
}

static void computes(const char *mode)
{
    mp_job_t job;
    xep_handle_t *handle;
    xep_request_t *req;
    xep_group_t *group;
    base.mode = mode;
    setenv("XEP_PROGRESS", "thread", 1);
    MP_OK(xep_group_create(NULL, &group));
    open_by_nodes(&job, group, 3);
    atomic_int *dispatched = mp_counter(group), *combined = mp_counter(group);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &d, &handle, &req));
    finish_beside(dispatched, req);
    mp_job_check_recv(&job, handle);
    xep_combine_args_t c = mp_job_combine(&job, handle);
    MP_OK(xep_combine(handle, &c, &req));
    finish_beside(combined, req);
    mp_job_check_out(&job);
    xep_handle_release(handle);
    mp_job_close(&job);
    xep_group_destroy(group);
    unsetenv("XEP_PROGRESS");
}

/* ---- away ---- */

/* Tokens of a rank that some rank of a node gets. */
static unsigned count_passing(const mp_job_t *job, xep_group_t *group, uint32_t source, uint32_t node)
{
    unsigned passing = 0;
    for (uint64_t t = 0; t < job->tokens; t++) {
        int32_t idx[32];
        uint32_t ranks[32], found = 0;
        float weights[32];
        oracle_route(job->routing, source, t, idx, weights);
        for (uint32_t i = 0, n = oracle_destinations(job->routing, idx, ranks); i < n; i++) {
            xep_peer_info_t peer = XEP_PEER_INFO_INIT;
            MP_OK(xep_group_peer(group, ranks[i], &peer));
            found |= peer.node == node;
        }
        passing += found;
    }
    return passing;
}

/* Whether this rank is the first of another node than the forwarder's. */
static int is_upstream(xep_group_t *group)
{
    xep_peer_info_t own = XEP_PEER_INFO_INIT, before = XEP_PEER_INFO_INIT;
    if (mp_rank() == 0) return 0;
    MP_OK(xep_group_peer(group, mp_rank(), &own));
    MP_OK(xep_group_peer(group, mp_rank() - 1, &before));
    return own.node != 0 && before.node != own.node;
}

/*
 * All are told who is missing. The first ranks of other nodes, of which it is also an upstream rank, hear how many of
 * its own rows it has passed to them; or how many of theirs it has taken, and must have taken before the last ones have
 * room.
 */
static void check_reason(const mp_job_t *job, xep_group_t *group)
{
    unsigned row, rows;
    const char *said = strstr(xep_last_error(), "rank 0");
    MP_CHECK(said != NULL);
    if (!is_upstream(group)) return;
    const xep_group_info_t info = mp_group_info(group);
    const unsigned to = count_passing(job, group, mp_rank(), 0), from = count_passing(job, group, 0, info.node);
    if (sscanf(said, "rank 0 at row %u of %u", &row, &rows) != 2 || row >= rows ||
        !(rows == from || (rows < to && to - rows <= base.pass_rows)))
        mp_fail(__FILE__, __LINE__, "%u rows come, %u go: %s", from, to, xep_last_error());
}

/* It knows what will pass, has room for a few rows of it, and stays away. */
static void away(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle = NULL;
    xep_request_t *req;
    base.mode = "normal";
    base.pass_rows = 2 * mp_nranks();
    open_by_nodes(&job, group, 5);
    atomic_int *over = mp_counter(group);
    rounds(&job);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    if (mp_rank() != FORWARDER) a.timeout_ms = 4000;
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == FORWARDER) {
        MP_OK(xep_request_wait_counts(req));
        mp_await(over, (int)mp_nranks() - 1);
    } else {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(req));
        check_reason(&job, group);
        ++*over;
    }
    xep_request_free(req);
    xep_handle_release(handle);
    MP_OK(xep_buffer_reset(job.buffer));
    rounds(&job);
    mp_job_close(&job);
}

/* ---- dead ---- */

/* The others end with its name, and leave without it. */
static void dies(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle = NULL;
    xep_request_t *req;
    open_by_nodes(&job, group, 7);
    atomic_int *told = mp_counter(group);
    rounds(&job);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &a, &handle, &req));
    if (mp_rank() == FORWARDER) {
        MP_OK(xep_request_wait_counts(req));
        _exit(0);
    }
    MP_SAYS(XEP_ERR_PEER, "rank 0", xep_request_wait(req));
    xep_request_free(req);
    xep_handle_release(handle);
    ++*told;
    mp_await(told, (int)mp_nranks() - 1); /* who gives up ends the group for all */
    xep_group_abort(group);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_nodes_group();
    if (group == NULL) return mp_skip("no two ranks map one another");
    computes("normal");
    computes("ll");
    away(group);
    dies(group);
    return mp_end(group);
}
