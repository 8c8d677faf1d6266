/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "../../plugins/ll/ll.h"
#include "sim_cases.h"
#include "sim_wire.h"

/* ---- what it costs ---- */

enum { RANKS = 8, TOKENS = 6, MOST_TOKENS = 9, HEAD = TOKENS * RANKS * 4, LINE = 64 - 8, ITEM = 128, CAST_ITEM = 64 };
static const uint32_t hosts[RANKS] = {0, 0, 0, 1, 1, 2, 2, 2};

/* Each token goes to all ranks; nobody has as many as a rank may have, and so room for these is not room for all. */
static sim_run_t *begin_all_to_all(void **state, uint64_t room, int flat, xep_quant_t quant, uint64_t part_bytes)
{
    sim_run_t *run = sim_run_begin(state, 1, RANKS);
    xep_shape_t shape = sim_small_shape;
    shape.nranks = shape.experts = shape.topk = RANKS;
    shape.tokens = MOST_TOKENS;
    run->options = (sim_options_t){.nranks = RANKS,
                                   .threads = 1,
                                   .inflight = 1000,
                                   .deliver = 50,
                                   .feed_rows = room,
                                   .part_bytes = part_bytes,
                                   .flat = flat};
    memcpy(run->options.node, hosts, sizeof hosts);
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ALL;
    call->quant = quant;
    if (quant != XEP_QUANT_NONE) call->nscales = 0;
    for (uint32_t r = 0; r < RANKS; r++) call->tokens[r] = TOKENS;
    return run;
}

/*
 * To each rank of other nodes, or by nodes to one of each other node. With room for what comes it is a head, rows in
 * one piece and a notice; by nodes, where rows have more bytes than a part, rows in several pieces with a word behind
 * each. With less room rows come one by one or in halves of the receive ring, each with its word, and receivers say
 * what they have taken, at most once a part.
 */
void sim_ll_messages(void **state)
{
    enum { WHOLE = 3, PARTED = 2 + 2 * 3 };
    static const struct {
        uint64_t room; /* 0: flat, for all */
        int flat;
        xep_quant_t quant;
        uint32_t receivers, messages;
        uint64_t part_bytes;
        uint32_t rank;
    } all[] = {
        {0, 0, XEP_QUANT_NONE, 5, WHOLE, 0, 0},
        {0, 0, XEP_QUANT_NONE, 6, WHOLE, 0, 3},
        {0, 0, XEP_QUANT_NONE, 5, WHOLE, 1, 0},
        {MOST_TOKENS, 0, XEP_QUANT_NONE, 2, WHOLE, 0, 0},
        {MOST_TOKENS, 0, XEP_QUANT_NONE, 2, WHOLE, 0, 3},
        {MOST_TOKENS, 0, XEP_QUANT_NONE, 2, WHOLE, TOKENS * ITEM + 1, 0},
        {MOST_TOKENS, 0, XEP_QUANT_NONE, 2, PARTED, 2 * ITEM, 0},
        {TOKENS, 1, XEP_QUANT_NONE, 5, WHOLE, 0, 0},
        {TOKENS, 0, XEP_QUANT_NONE, 2, WHOLE, 0, 0},
        {3, 1, XEP_QUANT_E4M3, 5, WHOLE, 0, 0},
        {3, 0, XEP_QUANT_E4M3, 2, WHOLE, 0, 0},
        {2, 1, XEP_QUANT_NONE, 5, 2 + 2 * 6, 0, 0},
        {2, 0, XEP_QUANT_NONE, 2, 2 + 2 * 6, 0, 0},
        {5, 1, XEP_QUANT_NONE, 5, 2 + 2 * 2, 0, 0},
        {2, 1, XEP_QUANT_E4M3, 5, 2 + 2 * 3, 0, 0},
        {1, 1, XEP_QUANT_NONE, 5, 2 + 2 * TOKENS, 0, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        sim_run_t *run = begin_all_to_all(state, all[i].room, all[i].flat, all[i].quant, all[i].part_bytes);
        const uint64_t item = all[i].quant == XEP_QUANT_NONE ? ITEM : CAST_ITEM;
        const uint64_t own = (uint64_t)all[i].receivers * all[i].messages,
                       told = all[i].messages == WHOLE || all[i].part_bytes != 0 ? 0 : (all[i].messages - 2) / 2 * 5;
        assert_true(sim_run_open(run));
        sim_run_play(run, SIM_TURNS, 0);
        const sim_wire_t *wire = &run->world.ranks[all[i].rank].wire;
        assert_in_range(wire->posted, own, own + told);
        assert_int_equal(wire->posted_bytes, all[i].receivers * (HEAD + TOKENS * item + LINE));
        sim_run_end(run);
    }
}

/* How many times the wire has to be waited for until a dispatch has ended everywhere. */
static uint64_t count_latencies(void **state, uint64_t room, int flat)
{
    sim_run_t *run = begin_all_to_all(state, room, flat, XEP_QUANT_NONE, 0);
    return sim_run_latencies(run);
}

/* Two rows at once, then twice until there is room for two more, and these. */
void sim_recv_ring_latencies(void **state)
{
    for (int flat = 0; flat < 2; flat++) {
        assert_int_equal(count_latencies(state, MOST_TOKENS, flat), 1);
        assert_int_equal(count_latencies(state, TOKENS, flat), 1);
        assert_int_equal(count_latencies(state, 2, flat), 5);
        assert_int_equal(count_latencies(state, 1, flat), 11);
        assert_int_equal(count_latencies(state, 4, flat), 3);
    }
}

/* ---- two ranks that do not map one another ---- */

typedef struct two {
    sim_run_t *run;
    script_flight_t *flight[2];
    xep_recv_t recv[2];
} two_t;

/* Four rows of rank 1 for rank 0, which has room for two and sends none; all that was sent is here. */
static void begin_two(void **state, two_t *two)
{
    static const int32_t idx[4] = {0, 1, 2, 3};
    const xep_shape_t shape = {.nranks = 2, .slots = 1, SIM_SHAPE(8, 1, 16, 4)};
    sim_run_t *run = two->run = sim_run_begin(state, 1, 2);
    run->options = (sim_options_t){.nranks = 2, .node = {0, 1}, .threads = 1, .inflight = 100, .feed_rows = 2};
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->idx_dtype = XEP_INT32;
    call->tokens[0] = 0;
    run->world.still = 1;
    assert_true(sim_run_open(run));
    for (uint32_t r = 0; r < 2; r++) {
        sim_rank_t *rank = &run->world.ranks[r];
        two->flight[r] = script_flight_dispatch(rank, &run->script, call, 0, XEP_NO_SLOT, &two->recv[r]);
        if (r == 1) two->flight[r]->dispatch_args.topk_idx = idx;
        if (r == 1) two->flight[r]->dispatch_args.topk_idx_stride = sizeof *idx;
        assert_int_equal(run->world.plugin->dispatch(rank->mode, &two->flight[r]->op), XEP_OK);
    }
    sim_arrive(&run->world);
}

static xep_status_t progress(two_t *two, uint32_t rank)
{
    return two->run->world.plugin->progress(two->run->world.ranks[rank].mode, &two->flight[rank]->op);
}

static void end_two(two_t *two)
{
    for (uint32_t r = 0; r < 2; r++) script_flight_free(&two->run->world.ranks[r], two->flight[r]);
    sim_run_end(two->run);
}

/* A sender names who has not taken its rows, and how far it has; a receiver, whose rows are not here. */
void sim_recv_ring_explains(void **state)
{
    two_t two;
    char text[200];
    begin_two(state, &two);
    const sim_world_t *world = &two.run->world;
    assert_int_equal(progress(&two, 1), XEP_INPROGRESS);
    world->plugin->explain(world->ranks[1].mode, &two.flight[1]->op, text, sizeof text);
    assert_string_equal(text, "epoch 1 waits for credits: rank 0 at row 0 of 2");
    assert_int_equal(progress(&two, 0), XEP_INPROGRESS);
    world->plugin->explain(world->ranks[0].mode, &two.flight[0]->op, text, sizeof text);
    assert_string_equal(text, "epoch 1 waits for rows: rank 1 at row 2 of 4");
    sim_arrive(&two.run->world);
    assert_int_equal(progress(&two, 1), XEP_INPROGRESS); /* the rest is on its way */
    sim_arrive(&two.run->world);
    for (uint32_t r = 0; r < 2; r++) assert_int_equal(progress(&two, r), XEP_OK);
    assert_int_equal(two.recv[0].rows, 4);
    end_two(&two);
}

/* More rows than there is room for, all at once. */
void sim_recv_ring_lies(void **state)
{
    two_t two;
    begin_two(state, &two);
    sim_rank_t *rank = &two.run->world.ranks[0];
    const ll_t *mode = rank->mode;
    ll_notice_t *said = (ll_notice_t *)(void *)(mode->kit.own + mode->layout.common.notices) + 1;
    assert_int_equal(said->word, xep_rows_word(1, 2));
    said->word = xep_rows_word(1, 4);
    assert_int_equal(progress(&two, 0), XEP_ERR_PROTOCOL);
    assert_non_null(strstr(sim_reason(rank, &two.flight[0]->op), "rank 1 sends 4 rows at once (there is room for 2)"));
    end_two(&two);
}
