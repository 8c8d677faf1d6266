/* SPDX-License-Identifier: BSD-3-Clause */

/* ranks: 1 2 3 4 5, brief: 1 5, limit: 180 */

/*
 * Dispatches that come in pieces, in both modes, on one node and by nodes: all rows of all pieces, and the sums of
 * their outputs, against the oracle, which knows of no pieces; in ll with room for all that comes to a rank at once,
 * and for some of it; and the statistics, memory and sums that pieces must not change.
 */

#include <stdlib.h>
#include <string.h>

#include "mp_pieces.h"
#include "mp_rig.h"

/* Slots with room for a part of an even load, or, in every fourth shape, as much as there is by default. */
static void run(xep_group_t *group, uint32_t number, const char *mode)
{
    mp_case_t c = mp_shape(number, mode);
    c.pieces = 1;
    c.fixed_capacity = 0;
    c.recv_rows = number % 4 == 0 ? 0 : mp_pieces_room(&c);
    if (strcmp(mode, "ll") == 0) c.pass_rows = number % 2 * (1 + number % 3) * mp_nranks();
    mp_pieces_run(group, &c);
}

/* By nodes each shape in one mode, of which the other number of ranks has the other. */
static void shapes(xep_group_t *group)
{
    for (uint32_t i = 0; i < MP_SHAPES; i = mp_next_shape(i)) {
        if (mp_nranks() <= 3 || (i + mp_nranks()) % 2 == 0) run(group, i, "normal");
        if (mp_nranks() <= 3 || (i + mp_nranks()) % 2 == 1) run(group, i, "ll");
    }
}

static void small_and_large(xep_group_t *group)
{
    static const mp_case_t cases[] = {
        {.name = "a row at a time", MP_SHAPE(7, 3, 5, 5), .ragged = 1, .weights = 1, .recv_rows = 1},
        {.name = "the same", .mode = "ll", MP_SHAPE(7, 3, 5, 5), .ragged = 1, .weights = 1, .recv_rows = 1},
        {.name = "streaming", MP_SHAPE(32, 8, 2048, 300), .weights = 1, .recv_rows = 170},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mp_case_t c = cases[i];
        c.pieces = 1;
        mp_pieces_run(group, &c);
    }
}

/* As many as there are: rows in one go, with room for all but one row of the rank that gets most. */
static uint64_t count_most(mp_job_t *job)
{
    uint64_t most = 0;
    xep_handle_t *handle = mp_job_send(job);
    const xep_recv_t *recv = mp_recv(handle);
    for (uint32_t d = 0; d < mp_nranks(); d++) {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < mp_nranks(); r++) rows += recv->rank_rows[(size_t)r * mp_nranks() + d];
        if (rows > most) most = rows;
    }
    xep_handle_release(handle);
    return most;
}

/* With exactly the room there is one piece, and what pieces cannot do goes on: several combines. With a row less, 2. */
static void one_row_less(xep_group_t *group)
{
    mp_case_t c = {.name = "room", MP_SHAPE(8, 2, 64, 30), .weights = 1, .pieces = 2};
    mp_job_t job;
    c.recv_rows = (uint64_t)c.tokens * mp_nranks();
    mp_job_begin(&job, &c, 3, group);
    uint64_t most = count_most(&job);
    mp_job_close(&job);
    for (uint64_t less = 0; less < 2 && most > 1; less++) {
        c.recv_rows = most - less;
        c.pieces = 1;
        mp_job_begin(&job, &c, 3, group);
        xep_dispatch_args_t args = mp_job_dispatch(&job);
        xep_handle_t *handle = mp_pieces_receive(&job, &args, 1);
        MP_CHECK(mp_recv(handle)->pieces == 1 + less);
        for (uint64_t i = less; i < 2; i++) mp_job_sum(&job, handle);
        xep_handle_release(handle);
        mp_job_close(&job);
    }
}

/* ---- ll ---- */

/* Every bit as with room for all: the rows of a routing that is not even, and their sums. */
static void compare(xep_group_t *group, uint64_t pass_rows)
{
    const mp_case_t to_one = {.name = "to one rank", .mode = "ll", .routing = "one-rank", MP_SHAPE(24, 2, 65, 61)};
    mp_case_t c[2] = {to_one, to_one};
    mp_job_t whole, parts;
    c[1].recv_rows = 90;
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
        mp_job_sum(&parts, handle);
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
    mp_case_t c = mp_shape(0, "ll");
    mp_job_t job;
    mp_pieces_t all[FLIGHTS], more;
    xep_handle_t *handle[FLIGHTS], *third;
    xep_request_t *req[FLIGHTS];
    c.pieces = 1;
    c.recv_rows = 100;
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
    mp_case_t c = mp_shape(1, "ll");
    mp_job_t job;
    uint64_t counted = 0, shown = 0;
    c.pieces = 1;
    c.recv_rows = 61;
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
    (void)mp_nodes_group(); /* where ranks do not map one another, each is a node */
    xep_group_t *group = mp_group();
    shapes(group);
    small_and_large(group);
    one_row_less(group);
    memory();
    if (mp_nranks() > 3) {
        compare(group, 0);
        compare(group, mp_nranks());
        in_flight(group);
        count_rows(group);
    }
    return mp_end(group);
}
