/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 5 8, brief: 5, limit: 300 */

/*
 * Mode ll on several nodes, in pieces: with room for all that comes to a rank at once, and for some of it; and the
 * statistics, memory and sums that pieces must not change.
 */

#include <stdlib.h>
#include <string.h>

#include "mp_nodes.h"
#include "mp_pieces.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", MP_SHAPE(32, 4, 256, 48), .weights = 1, .recv_rows = 100},
    {.name = "everything to rank 0", .routing = "one-rank", MP_SHAPE(24, 2, 65, 61), .recv_rows = 90},
    {.name = "odd",
     MP_SHAPE(29, 7, 77, 31),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .weights = 1,
     .biases = 3,
     .alignment = 8,
     .copy_in = 1,
     .recv_rows = 61},
    {.name = "e4m3, weights sent",
     MP_SHAPE(24, 6, 1000, 40),
     .ragged = 1,
     .weights = 1,
     .sent = 1,
     .quant = XEP_QUANT_E4M3,
     .slots = 3},
    {.name = "one rank sends", MP_SHAPE(9, 9, 1, 40), .ragged = 2, .recv_rows = 17},
};

/* Every bit as with room for all: the rows of a routing that is not even, and their sums. */
static void compare(xep_group_t *group, uint64_t pass_rows)
{
    mp_case_t c[2] = {shapes[1], shapes[1]};
    mp_job_t whole, parts;
    c[0].mode = c[1].mode = "ll";
    c[0].recv_rows = 0;
    c[1].pieces = 1;
    c[1].pass_rows = pass_rows;
    mp_job_begin(&whole, &c[0], 5, group);
    mp_job_begin(&parts, &c[1], 5, group);
    for (uint64_t i = 0; i < 3; i++) {
        mp_job_payload(&whole, i);
        mp_job_payload(&parts, i);
        mp_job_round(&whole);
        xep_dispatch_args_t args = mp_job_dispatch(&parts);
        xep_handle_t *handle = mp_pieces_receive(&parts, &args, 1);
        MP_CHECK(mp_recv(handle)->pieces > 2);
        mp_pieces_combine(&parts, handle);
        xep_handle_release(handle);
        MP_CHECK(memcmp(whole.out, parts.out, whole.tokens * whole.out_stride) == 0);
    }
    mp_job_close(&whole);
    mp_job_close(&parts);
}

/*
 * Two handles, each with a next piece in flight, which every other rank waits for in the other order; a dispatch is
 * called behind them.
 */
static void in_flight(xep_group_t *group)
{
    enum { FLIGHTS = 2 };
    mp_case_t c = shapes[0];
    mp_job_t job;
    mp_pieces_t all[FLIGHTS], more;
    xep_handle_t *handle[FLIGHTS], *third;
    xep_request_t *req[FLIGHTS];
    c.mode = "ll";
    c.pieces = 1;
    c.slots = FLIGHTS + 1;
    c.pass_rows = 2 * mp_nranks();
    mp_job_begin(&job, &c, 7, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    for (int i = 0; i < FLIGHTS; i++) handle[i] = mp_pieces_begin(&all[i], &job, &args);
    for (uint64_t piece = 1; piece < all[0].pieces; piece++) {
        for (int i = 0; i < FLIGHTS; i++) MP_OK(xep_handle_next(handle[i], NULL, &req[i]));
        third = mp_pieces_begin(&more, &job, &args);
        for (int i = 0; i < FLIGHTS; i++) mp_finish(req[mp_rank() % 2 == 0 ? i : FLIGHTS - 1 - i]);
        xep_handle_release(third);
        oracle_pieces_free(&more.all);
    }
    for (int i = 0; i < FLIGHTS; i++) {
        const xep_recv_t *recv = mp_recv(handle[i]);
        MP_CHECK(recv->piece + 1 == recv->pieces);
        xep_handle_release(handle[i]);
        oracle_pieces_free(&all[i].all);
    }
    mp_job_close(&job);
}

/* The rows of all pieces are counted when the first one comes, and once. */
static void count_rows(xep_group_t *group)
{
    mp_case_t c = shapes[2];
    mp_job_t job;
    uint64_t counted = 0, shown = 0;
    c.mode = "ll";
    c.pieces = 1;
    mp_job_begin(&job, &c, 3, group);
    int32_t *stats = calloc(c.experts, sizeof *stats);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle;
    args.expert_stats = stats;
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    const xep_recv_t *recv = mp_recv(handle);
    for (uint32_t e = 0; e < recv->local_experts; e++) counted += (uint64_t)stats[e];
    for (;;) {
        for (uint32_t e = 0; e < recv->local_experts; e++) shown += recv->expert_count[e];
        if (recv->piece + 1 == recv->pieces) break;
        MP_OK(xep_handle_next(handle, NULL, NULL));
    }
    MP_CHECK(counted == shown && recv->pieces > 1);
    for (uint32_t e = 0; e < recv->local_experts; e++) counted -= (uint64_t)stats[e];
    MP_CHECK(counted == 0);
    xep_handle_release(handle);
    free(stats);
    mp_job_close(&job);
}

/* A decoding step of 1,024 ranks: what the size hint says by default, and what is too large for padding. */
static void memory(void)
{
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT, worst = XEP_BUFFER_SIZE_INIT;
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = "ll", p.experts = 288, p.topk = 8, p.hidden = 7168, p.tokens = 128;
    MP_OK(xep_buffer_size(&p, 1024, &worst));
    p.flags = XEP_BUFFER_PIECES;
    MP_OK(xep_buffer_size(&p, 1024, &size));
    MP_CHECK(worst.recv_rows == 1024 * 128 && size.recv_rows > 1.25 * 1024 * 128 * 8 / 288);
    MP_CHECK(size.bytes <= UINT64_C(3) << 29 && size.bytes < worst.bytes / 5);
}

int main(void)
{
    xep_group_t *group = mp_nodes_group();
    memory();
    if (group == NULL) return mp_skip("no two ranks map one another");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        mp_case_t c = shapes[i];
        c.mode = "ll";
        c.pieces = 1;
        c.pass_rows = i % 2 * (1 + i % 3) * mp_nranks();
        mp_pieces_run(group, &c);
    }
    compare(group, 0);
    compare(group, mp_nranks());
    in_flight(group);
    count_rows(group);
    xep_group_destroy(group);
    return 0;
}
