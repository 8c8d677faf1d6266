/* SPDX-License-Identifier: BSD-3-Clause */

/* The mode "ll": a row per selection, by expert, in every arrangement and quantisation; combine weighs and sums.
 * limit: 240 */
#define _GNU_SOURCE /* memmem */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../plugins/ll/ll.h"
#include "oracle_cast.h"
#include "sim_cases.h"
#include "sim_suites.h"

/* ---- what it can do ---- */

static void make_dispatch(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    const xep_shape_t *shape = &script->shape;
    uint64_t most_experts = (shape->experts + shape->nranks - 1) / shape->nranks;
    if (shape->elem_bytes > 1 && sim_chance(dice, 60)) {
        call->dtype = script_dtype(dice, shape->elem_bytes, XEP_BF16, XEP_FP32);
        call->quant = oracle_cast_at(sim_below(dice, oracle_casts()));
        call->nscales = 0;
    }
    call->sent = call->weights && sim_chance(dice, 40);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        call->by_column[r] = sim_chance(dice, 40);
        call->arrangement[r] = sim_chance(dice, 50) ? XEP_ROWS_DEFAULT : XEP_ROWS_BY_EXPERT_COMPACT;
        if (script->slot_rows < most_experts * shape->nranks * shape->tokens || !sim_chance(dice, 40)) continue;
        call->arrangement[r] = XEP_ROWS_BY_EXPERT_PADDED;
        call->capacity[r] = 0;
    }
}

static void make_combine(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    const script_call_t *dispatch = script_maker(script, call->handle);
    const int weighs = call->weights || (script->calls[dispatch->origin].weights && !dispatch->sent);
    if (call->dtype == XEP_BF16 && sim_chance(dice, 40))
        call->quant = sim_chance(dice, 10) ? XEP_QUANT_LOGFMT : oracle_cast_at(sim_below(dice, oracle_casts()));
    call->at_owner = !weighs && sim_chance(dice, 50);
}

static int notices(const script_t *script, const script_call_t *call)
{
    (void)script;
    switch (call->odd) {
    case ODD_QUANT: return call->quant != XEP_QUANT_NONE;
    case ODD_SENT: return call->kind == CALL_DISPATCH && call->weights;
    case ODD_AT_OWNER: return call->kind == CALL_COMBINE && call->at_owner;
    default: return 0;
    }
}

/* ---- words ---- */

static void overflow(void **state)
{
    sim_check_overflow(state, 36, "rank 1 would get 36 rows, it has room for 17");
}

/* With weights, that may be sent, and without scales where rows are cast. */
static void edit(script_call_t *call)
{
    call->weights = 1;
    if (call->odd == ODD_QUANT) call->quant = XEP_QUANT_E4M3, call->nscales = 0;
    if (call->odd == ODD_AT_OWNER) call->at_owner = 1, call->weights = 0;
}

static void mismatch(void **state)
{
    static const sim_mismatch_t mismatches[] = {
        {CALL_DISPATCH, ODD_DTYPE, "rank 0 and rank 2 disagree on dtype: bf16, fp16"},
        {CALL_DISPATCH, ODD_HIDDEN, "rank 0 and rank 2 disagree on hidden: 40, 39"},
        {CALL_DISPATCH, ODD_TOPK, "rank 0 and rank 2 disagree on topk: 2, 1"},
        {CALL_DISPATCH, ODD_QUANT, "rank 0 and rank 2 disagree on quant: 1, 3"},
        {CALL_DISPATCH, ODD_SCALES, "rank 0 and rank 2 disagree on nscales: 1, 0"},
        {CALL_DISPATCH, ODD_SCALES_DTYPE, "rank 0 and rank 2 disagree on scales_dtype: fp32, int32"},
        {CALL_DISPATCH, ODD_SENT, "rank 0 and rank 2 disagree on XEP_DISPATCH_SEND_WEIGHTS: no, yes"},
        {CALL_DISPATCH, ODD_REFUSED, NOT_THE_SAME},
        {CALL_COMBINE, ODD_REFUSED, NOT_THE_SAME},
        {CALL_COMBINE, ODD_DTYPE, "rank 0 and rank 2 disagree on dtype: bf16, fp16"},
        {CALL_COMBINE, ODD_HIDDEN, "rank 0 and rank 2 disagree on hidden: 40, 39"},
        {CALL_COMBINE, ODD_QUANT, "rank 0 and rank 2 disagree on quant: 1, 0"},
        {CALL_COMBINE, ODD_AT_OWNER, "rank 0 and rank 2 disagree on flags: 1, 0"},
    };
    sim_check_mismatches(state, mismatches, sizeof mismatches / sizeof mismatches[0], edit);
}

/* ---- the same sums however many ranks there are ---- */

enum { ALL_TOKENS = 16, ALL_HIDDEN = 200, ROW = ALL_HIDDEN * 2 };

/* The same experts on so many ranks: sums of every token. */
static void sum_on(void **state, uint64_t seed, uint32_t nranks, char *sums)
{
    static char parts[8][ALL_TOKENS * ROW];
    const xep_shape_t shape = {.nranks = nranks, .slots = 1, SIM_SHAPE(24, 5, ALL_HIDDEN, ALL_TOKENS / nranks)};
    sim_run_t *run = sim_run_begin(state, seed * 8 + nranks, nranks);
    script_begin(&run->world, run->mode, &run->script, &shape);
    run->script.seed = seed;
    run->script.global_tokens = 1;
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->weights = 1;
    call->quant = XEP_QUANT_E4M3;
    script_combine(&run->script, 0);
    if (sim_run_open(run)) {
        for (uint32_t r = 0; r < nranks; r++) script_player(&run->world.ranks[r])->result = parts[r];
        sim_run_play(run, SIM_TURNS, 0);
    }
    for (uint32_t t = 0; t < ALL_TOKENS; t++) memcpy(sums + t * ROW, parts[t % nranks] + t / nranks * ROW, ROW);
    sim_run_end(run);
}

static void any_number_of_ranks(void **state)
{
    static char first[ALL_TOKENS * ROW], sums[ALL_TOKENS * ROW];
    for (uint64_t seed = 0; seed < 12; seed++) {
        sum_on(state, seed, 1, first);
        for (uint32_t nranks = 2; nranks <= 8; nranks *= 2) {
            sum_on(state, seed, nranks, sums);
            assert_memory_equal(sums, first, sizeof first);
        }
    }
}

/* ---- any order ---- */

static uint32_t factorial(uint32_t n)
{
    return n < 2 ? 1 : n * factorial(n - 1);
}

/* Permutation number "number" of the handles 0 .. n - 1; the others follow. */
static void permute(uint32_t number, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < SCRIPT_HANDLES; i++) order[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i + number % (n - i), kept = order[at];
        memmove(&order[i + 1], &order[i], (at - i) * sizeof *order);
        order[i] = kept;
        number /= n - i;
    }
}

/*
 * Five slots, five dispatches sent before the first is received, received in every order, another one on each rank;
 * the same with combines. All ranks are mapped: nothing but the one that is waited for is ever taken further.
 */
static void every_order(void **state)
{
    enum { SLOTS = 5 };
    xep_shape_t shape =
        {.experts = 6, .topk = 3, .hidden = 40, .elem_bytes = 2, .combine_elem_bytes = 2, .slots = SLOTS, .tokens = 4};
    for (uint32_t number = 0; number < factorial(SLOTS); number++) {
        uint32_t orders[3][SCRIPT_HANDLES];
        sim_run_t *run = sim_run_begin(state, number, shape.nranks = 1 + number % 3);
        script_t *script = &run->script;
        memset(run->options.node, 0, sizeof run->options.node);
        script_begin(&run->world, run->mode, script, &shape);
        for (uint32_t h = 0; h < SLOTS; h++) script_dispatch(script, h, SCRIPT_NO_HANDLE)->quant = (xep_quant_t)(h % 4);
        for (uint32_t h = 0; h < SLOTS; h++) script_combine(script, h);
        for (uint32_t h = 0; h < SLOTS; h++) script_release(script, h);
        for (uint32_t h = SLOTS; h < SLOTS + 3; h++) script_dispatch(script, h, SCRIPT_NO_HANDLE);
        if (sim_run_open(run)) {
            for (uint32_t r = 0; r < shape.nranks; r++) {
                permute((number + r * 47) % factorial(SLOTS), SLOTS, orders[r]);
                script_player(&run->world.ranks[r])->order = orders[r];
            }
            sim_run_play(run, SIM_TURNS, 0);
        }
        sim_run_end(run);
    }
}

/* ---- lies ---- */

static script_flight_t *begin_by_hand(sim_run_t *run, uint32_t rank, xep_recv_t *recv, const int32_t *idx)
{
    sim_rank_t *of = &run->world.ranks[rank];
    script_flight_t *flight = script_flight_dispatch(of, &run->script, &run->script.calls[0], 0, XEP_NO_SLOT, recv);
    if (idx != NULL) {
        flight->dispatch_args.topk_idx = idx;
        flight->dispatch_args.topk_idx_stride = sizeof *idx;
    }
    assert_int_equal(run->world.plugin->dispatch(of->mode, &flight->op), XEP_OK);
    return flight;
}

/* Two mapped ranks that have begun nothing yet; rank 0 will have no tokens, rank 1 four, capacity as dispatches say. */
static sim_run_t *open_two(void **state, uint64_t recv_rows, uint64_t capacity)
{
    const xep_shape_t shape = {.nranks = 2,
                               .slots = 1,
                               SIM_SHAPE(8, 1, 16, 4),
                               .sends_in_place = 1,
                               .recv_rows = recv_rows};
    sim_run_t *run = sim_run_begin(state, 1, 2);
    memset(run->options.node, 0, sizeof run->options.node);
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->idx_dtype = XEP_INT32;
    call->tokens[0] = 0;
    call->capacity[0] = call->capacity[1] = capacity;
    assert_true(sim_run_open(run));
    return run;
}

/* The notice announces no rows, the indices then name four of rank 0: more than the caller, or a slot, has room for. */
static void more_than_announced(void **state)
{
    static const int32_t announced[4] = {-1, -1, -1, -1}, sent[4] = {0, 1, 2, 3};
    for (int of_slot = 0; of_slot < 2; of_slot++) {
        xep_recv_t recv[2];
        sim_run_t *run = open_two(state, of_slot ? 2 : 8, of_slot ? 0 : 2);
        sim_rank_t *ranks = run->world.ranks;
        script_flight_t *liar = begin_by_hand(run, 1, &recv[1], announced);
        void *packet = memmem(ranks[1].env.heap, ranks[1].env.heap_bytes, announced, sizeof announced);
        assert_non_null(packet);
        memcpy(packet, sent, sizeof sent);
        script_flight_t *flight = begin_by_hand(run, 0, &recv[0], NULL);
        assert_int_equal(run->world.plugin->progress(ranks[0].mode, &flight->op), XEP_ERR_PROTOCOL);
        assert_non_null(strstr(sim_reason(&ranks[0], &flight->op), "announced"));
        script_flight_free(&ranks[1], liar);
        script_flight_free(&ranks[0], flight);
        sim_run_end(run);
    }
}

/* The line of source in rank's heap, in entry 0. */
static ll_notice_t *notice_from(const sim_rank_t *rank, uint32_t source)
{
    const ll_t *mode = rank->mode;
    return (ll_notice_t *)(void *)(mode->kit.own + mode->layout.common.notices) + source;
}

/*
 * A peer writes into the line in which a rank announces itself: what the rank says of its own room, of alignment and of
 * arrangement it knows better than its heap.
 */
static void own_notice_spoiled(void **state)
{
    static const int32_t idx[4] = {0, 1, 2, 3};
    xep_recv_t recv[2];
    sim_run_t *run = open_two(state, 8, 0);
    sim_rank_t *ranks = run->world.ranks;
    script_flight_t *other = begin_by_hand(run, 1, &recv[1], idx), *flight = begin_by_hand(run, 0, &recv[0], NULL);
    ll_notice_t *own = notice_from(&ranks[0], 0);
    assert_int_equal(own->tokens, 0);
    assert_int_equal(own->alignment, 1);
    own->capacity = UINT32_MAX;
    own->rows_at = 7;
    own->alignment = 1u << 20;
    own->padded = 1;
    assert_int_equal(run->world.plugin->progress(ranks[0].mode, &flight->op), XEP_OK);
    assert_int_equal(recv[0].rows, 4);
    assert_int_equal(recv[0].arrangement, XEP_ROWS_BY_EXPERT_COMPACT);
    for (uint32_t e = 0; e < recv[0].local_experts; e++) assert_int_equal(recv[0].expert_begin[e], e);
    script_flight_free(&ranks[1], other);
    script_flight_free(&ranks[0], flight);
    sim_run_end(run);
}

/* Rows in place: behind all areas; from the middle of one on, too many; of a rank that has none in place. */
static void places_that_are_none(void **state)
{
    static const struct {
        uint32_t rows_at;
        uint8_t in_place;
    } lies[] = {{9, 1}, {3, 1}, {UINT32_MAX, 1}, {1, 0}};
    static const int32_t idx[4] = {0, 1, 2, 3};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        xep_recv_t recv[2];
        sim_run_t *run = open_two(state, 8, 0);
        sim_rank_t *ranks = run->world.ranks;
        run->script.calls[0].in_place = 1;
        script_flight_t *liar = begin_by_hand(run, 1, &recv[1], idx), *flight = begin_by_hand(run, 0, &recv[0], NULL);
        ll_notice_t *said = notice_from(&ranks[0], 1);
        assert_int_equal(said->rows_at, 1);
        said->rows_at = lies[i].rows_at;
        said->in_place = lies[i].in_place;
        assert_int_equal(run->world.plugin->progress(ranks[0].mode, &flight->op), XEP_ERR_PROTOCOL);
        assert_non_null(strstr(sim_reason(&ranks[0], &flight->op), "invalid notice from rank 1"));
        script_flight_free(&ranks[1], liar);
        script_flight_free(&ranks[0], flight);
        sim_run_end(run);
    }
}

static const sim_mode_test_t tests[] = {
    {"overflow", overflow},
    {"mismatch", mismatch},
    {"any_number_of_ranks", any_number_of_ranks},
    {"every_order", every_order},
    {"more_than_announced", more_than_announced},
    {"own_notice_spoiled", own_notice_spoiled},
    {"places_that_are_none", places_that_are_none},
    {"messages", sim_ll_messages},
    {"recv_ring_latencies", sim_recv_ring_latencies},
    {"recv_ring_explains", sim_recv_ring_explains},
    {"recv_ring_lies", sim_recv_ring_lies},
    {"copies_begin_early", sim_nodes_copies_begin_early},
    {"pieces", sim_pieces},
};

const sim_mode_t sim_ll = {
    .name = "ll",
    .by_expert = 1,
    .make_dispatch = make_dispatch,
    .make_combine = make_combine,
    .notices = notices,
    .tests = tests,
    .ntests = sizeof tests / sizeof tests[0],
};
