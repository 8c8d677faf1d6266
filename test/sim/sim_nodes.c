/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "../../plugins/ll/ll.h"
#include "../../plugins/normal/normal_nodes.h"
#include "sim_cases.h"
#include "sim_wire.h"

/* ---- messages ---- */

/* What a dispatch of no rows sends to other nodes: a record in pieces, its word, and done. */
static uint64_t count_messages(void **state, uint64_t feed_rows, uint32_t rank)
{
    static const uint32_t node[] = {0, 0, 0, 1, 1, 2, 2, 2};
    enum { RANKS = sizeof node / sizeof node[0] };
    sim_run_t *run = sim_run_begin(state, 1, RANKS);
    xep_shape_t shape = sim_small_shape;
    shape.nranks = RANKS;
    shape.experts = 16;
    run->options =
        (sim_options_t){.nranks = RANKS, .threads = 1, .inflight = 100, .deliver = 50, .feed_rows = feed_rows};
    memcpy(run->options.node, node, sizeof node);
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE)->route = ROUTE_NOWHERE;
    assert_true(sim_run_open(run));
    sim_run_play(run, SIM_TURNS, 0);
    uint64_t posted = run->world.ranks[rank].wire.posted;
    sim_run_end(run);
    return posted;
}

/* To each rank of other nodes, or to one of each other node. */
void sim_nodes_messages(void **state)
{
    enum { OF_RECORD = 4, OF_FED_RECORD = 5, DONE = 1 };
    assert_int_equal(count_messages(state, 0, 0), 5 * (OF_RECORD + DONE));
    assert_int_equal(count_messages(state, 0, 3), 6 * (OF_RECORD + DONE));
    assert_int_equal(count_messages(state, 2, 0), 2 * (OF_FED_RECORD + DONE));
    assert_int_equal(count_messages(state, 2, 3), 2 * (OF_FED_RECORD + DONE));
}

/* ---- latencies ---- */

/* How many times the wire has to be waited for until a dispatch, or that and its combine, has ended everywhere. */
static uint64_t count_latencies(void **state, uint64_t feed_rows, int combined)
{
    static const uint32_t node[] = {0, 0, 1, 1, 1};
    enum { RANKS = sizeof node / sizeof node[0] };
    sim_run_t *run = sim_run_begin(state, 1, RANKS);
    xep_shape_t shape = sim_small_shape;
    shape.nranks = RANKS;
    shape.experts = 10;
    run->options = (sim_options_t){.nranks = RANKS, .threads = 1, .inflight = 1000, .feed_rows = feed_rows};
    memcpy(run->options.node, node, sizeof node);
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ALL;
    for (uint32_t r = 0; r < RANKS; r++) call->tokens[r] = shape.tokens;
    if (combined) script_combine(&run->script, 0);
    return sim_run_latencies(run);
}

/*
 * A dispatch: records, then rows and what is behind them, as nobody waits for a forwarder to say over the wire that it
 * has passed rows on. A combine: rows, as nobody waits for the words that they were read. In a ring of two rows six go
 * in three turns, and before two of these the sender waits to hear of room.
 */
void sim_nodes_latencies(void **state)
{
    enum { FLAT = 0, ROOM = 100, TIGHT = 2 };
    assert_int_equal(count_latencies(state, FLAT, 0), 2);
    assert_int_equal(count_latencies(state, ROOM, 0), 2);
    assert_int_equal(count_latencies(state, FLAT, 1), 3);
    assert_int_equal(count_latencies(state, ROOM, 1), 3);
    assert_int_equal(count_latencies(state, TIGHT, 0), 6);
}

/* ---- room for sums ---- */

enum { ROOM = 8, PART = ROOM / 4, WORD = 1, ROWS = 3 * ROOM, ELEMENTS = 8 };

/* Rank 2 is alone on its node, and so has two upstream ranks: each rank has room for as many. Its rows go to rank 1. */
static sim_run_t *begin_returns(void **state)
{
    static const uint32_t node[] = {0, 0, 1};
    sim_run_t *run = sim_run_begin(state, 1, sim_small_shape.nranks);
    xep_shape_t shape = sim_small_shape;
    shape.tokens = ROWS;
    run->options =
        (sim_options_t){.nranks = sim_small_shape.nranks, .threads = 1, .inflight = 1000, .feed_rows = ROOM / 2};
    memcpy(run->options.node, node, sizeof node);
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ONE_EXPERT; /* 3, of rank 1 */
    for (uint32_t r = 0; r < shape.nranks; r++) call->tokens[r] = r == 2 ? ROWS : 0;
    script_combine(&run->script, 0);
    run->world.still = 1;
    assert_true(sim_run_open(run));
    return run;
}

static void step_all(sim_world_t *world)
{
    for (uint32_t i = 0; i < 400 * world->options.nranks; i++)
        script_player_step(&world->ranks[i % world->options.nranks]);
}

/*
 * Of the sums that rank 0 makes of 24 rows there is room for 8, in four parts. When the wire has taken two of them, and
 * the word behind them, two more are sent: it still has six then. A rank that waited until all eight are taken would
 * leave it with none.
 */
void sim_nodes_sums_go_on(void **state)
{
    sim_run_t *run = begin_returns(state);
    sim_world_t *world = &run->world;
    const sim_wire_t *wire = &world->ranks[0].wire;
    for (uint32_t i = 0; i < 20 && wire->held_up == 0; i++) {
        sim_arrive(world);
        step_all(world);
    }
    assert_int_not_equal(wire->held_up, 0);
    for (uint32_t sums = ROOM; sums < ROWS; sums += PART) {
        uint64_t left = 0, posted = wire->posted;
        for (uint32_t taken = 0; taken < 4 * (PART + WORD) && wire->posted == posted; taken++) {
            left = sim_wire_take(&world->ranks[0].wire);
            step_all(world);
        }
        assert_int_not_equal(wire->posted, posted);
        assert_int_equal(left, 3 * (PART + WORD));
    }
    world->still = 0;
    sim_run_play(run, SIM_TURNS, 0);
    sim_run_end(run);
}

/* ---- sums that are here ---- */

/* In which rank 0 tells rank 2 of sums that are in its slot. */
static _Atomic uint64_t *summed_word(const sim_world_t *world)
{
    const normal_t *mode = world->ranks[2].mode;
    const uint32_t slot = script_player(&world->ranks[2])->handles[0].slot;
    char *heap = world->ranks[2].env.heap;
    return (void *)(heap + mode->layout.summed + slot * mode->kit.shape->nodes * sizeof(uint64_t));
}

/* Until rank 2 has told its first token's sum to its user, which the margin before it looks like until then. */
static uint64_t count_sums_at_first_token(sim_world_t *world)
{
    const script_handle_t *handle = &script_player(&world->ranks[2])->handles[0];
    for (;;) {
        const script_flight_t *flight = handle->flight;
        if (flight != NULL && flight->op.kind == XEP_OP_COMBINE &&
            memcmp(flight->out.data, flight->out.data - ELEMENTS, ELEMENTS) != 0)
            return xep_rows_of(*summed_word(world), flight->op.epoch);
        assert_true(!sim_has_finished(world) && world->net.messages != NULL);
        sim_wire_step(&world->net, &world->dice);
        step_all(world);
    }
}

/* Of 24 tokens. One that waited for all sums would have told none when all but one are here. */
void sim_nodes_sums_begin_early(void **state)
{
    sim_run_t *run = begin_returns(state);
    sim_world_t *world = &run->world;
    step_all(world);
    assert_in_range(count_sums_at_first_token(world), 1, ROWS - 1);
    world->still = 0;
    sim_run_play(run, SIM_TURNS, 0);
    sim_run_end(run);
}

/* Of rows that it does not have rank 0 can have made no sums. */
void sim_nodes_summed_lie(void **state)
{
    static const char reason[] = "rank 0 has summed too many rows: 25 (at most 24)";
    sim_run_t *run = begin_returns(state);
    sim_world_t *world = &run->world;
    run->script.unchecked = 1;
    step_all(world);
    count_sums_at_first_token(world);
    *summed_word(world) = xep_rows_word(2, ROWS + 1);
    step_all(world);
    if (strcmp(script_player(&world->ranks[2])->reason, reason) != 0)
        sim_fail(world, "said \"%s\", not \"%s\"", script_player(&world->ranks[2])->reason, reason);
    sim_run_end(run);
}

/* ---- rows in parts ---- */

/* Rank 1 hears rank 2 through rank 0: tokens whose rows are in the memory of that one. */
static uint64_t tokens_passed(const sim_world_t *world)
{
    const ll_t *mode = world->ranks[1].mode;
    const ll_notice_t *notices = (const void *)(mode->kit.hears_in[2] + mode->layout.common.notices);
    return xep_rows_of(notices[2].word, 1);
}

/* Rows of rank 2 that are at their places at rank 1, in any slot. */
static uint64_t rows_copied(const sim_world_t *world)
{
    const ll_t *mode = world->ranks[1].mode;
    uint64_t rows = 0;
    for (uint32_t s = 0; s < mode->kit.shape->slots; s++)
        rows += ll_slot(mode, s)->list.copied[2] - ll_slot(mode, s)->list.begin[2];
    return rows;
}

/* Whether some rows were copied while others of the same source were not there. */
static int is_early(void **state, uint64_t seed)
{
    static const uint32_t node[] = {0, 0, 1, 1};
    enum { RANKS = sizeof node / sizeof node[0] };
    sim_run_t *run = sim_run_begin(state, seed, RANKS);
    sim_world_t *world = &run->world;
    xep_shape_t shape = sim_small_shape;
    int early = 0;
    shape.nranks = shape.experts = shape.topk = RANKS;
    run->options = (sim_options_t){.nranks = RANKS, .threads = 1, .inflight = 1000, .feed_rows = 9, .part_bytes = 256};
    memcpy(run->options.node, node, sizeof node);
    script_begin(world, run->mode, &run->script, &shape);
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ALL;
    for (uint32_t r = 0; r < RANKS; r++) call->tokens[r] = shape.tokens;
    world->still = 1;
    assert_true(sim_run_open(run));
    do {
        for (uint32_t i = 0; i < 40 * RANKS; i++) script_player_step(&world->ranks[i % RANKS]);
        assert_true(rows_copied(world) <= tokens_passed(world));
        early |= rows_copied(world) != 0 && tokens_passed(world) < shape.tokens;
        sim_wire_step(&world->net, &world->dice);
    } while (!sim_has_finished(world));
    assert_int_equal(rows_copied(world), shape.tokens);
    sim_run_end(run);
    return early;
}

/* In what order messages arrive is chance. */
void sim_nodes_copies_begin_early(void **state)
{
    uint64_t seed = 1;
    while (seed < 20 && !is_early(state, seed)) seed++;
    assert_true(seed < 20);
}
