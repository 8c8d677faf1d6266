/* SPDX-License-Identifier: BSD-3-Clause */

/* The mode "normal": a row per token and rank, in the order of sources; weights go back and are summed. limit: 240 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "../../plugins/normal/normal_nodes.h"
#include "oracle_cast.h"
#include "sim_cases.h"
#include "sim_heap.h"
#include "sim_suites.h"
#include "sim_wire.h"

/* ---- what it can do ---- */

static void make_combine(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    (void)dice;
    (void)script;
    (void)call;
}

/* For the scales of the longest row: how long one is comes later. */
static int has_room(const script_t *script, xep_quant_t quant)
{
    const oracle_shape_t cast = {.hidden = script->shape.hidden * script->shape.elem_bytes / 2, .quant = quant};
    return oracle_received_scales(&cast) <= script->shape.scales;
}

/* Casts whose scales a row has room for. */
static void make_dispatch(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    const xep_quant_t quant = oracle_cast_at(sim_below(dice, oracle_casts()));
    if (script->shape.elem_bytes == 1 || script->integers || sim_chance(dice, 60)) return;
    if (!has_room(script, quant)) return;
    call->dtype = script_dtype(dice, script->shape.elem_bytes, XEP_BF16, XEP_FP32);
    call->quant = quant;
    call->nscales = 0;
}

/* A rank without tokens has no opinion on weights. */
static int weights_show(const script_t *script, const script_call_t *call)
{
    uint32_t others = 0;
    for (uint32_t r = 0; r < script->shape.nranks; r++) others += r != call->odd_rank && call->tokens[r];
    return call->kind == CALL_DISPATCH && others && call->tokens[call->odd_rank];
}

static int notices(const script_t *script, const script_call_t *call)
{
    switch (call->odd) {
    case ODD_WEIGHTS: return weights_show(script, call);
    case ODD_QUANT:
        return call->kind == CALL_DISPATCH && call->quant != XEP_QUANT_NONE && has_room(script, XEP_QUANT_E4M3);
    case ODD_IDX_DTYPE: return call->kind == CALL_DISPATCH;
    case ODD_CACHED: return call->kind == CALL_DISPATCH && call->cached != SCRIPT_NO_HANDLE;
    default: return 0;
    }
}

/* ---- words ---- */

static void overflow(void **state)
{
    sim_check_overflow(state, 18, "rank 1 gets 18 rows and has room for 17");
}

static void edit(script_call_t *call)
{
    if (call->odd == ODD_QUANT) call->quant = XEP_QUANT_E4M3, call->nscales = 0;
}

static void mismatch(void **state)
{
    static const sim_mismatch_t mismatches[] = {
        {CALL_DISPATCH, ODD_QUANT, "rank 0 and rank 2 disagree on quant: 1, 3"},
        {CALL_DISPATCH, ODD_DTYPE, "rank 0 and rank 2 disagree on dtype: bf16, fp16"},
        {CALL_DISPATCH, ODD_HIDDEN, "rank 0 and rank 2 disagree on hidden: 40, 39"},
        {CALL_DISPATCH, ODD_WEIGHTS, "rank 0 and rank 2 disagree on whether there are topk_weights: no, yes"},
        {CALL_DISPATCH, ODD_TOPK, "rank 0 and rank 2 disagree on topk: 2, 1"},
        {CALL_DISPATCH, ODD_IDX_DTYPE, "rank 0 and rank 2 disagree on topk_idx_dtype: int64, int32"},
        {CALL_DISPATCH, ODD_SCALES, "rank 0 and rank 2 disagree on nscales: 1, 0"},
        {CALL_DISPATCH, ODD_SCALES_DTYPE, "rank 0 and rank 2 disagree on scales_dtype: fp32, int32"},
        {CALL_DISPATCH, ODD_CACHED, "rank 0 and rank 2 disagree on whether there is a cached handle: yes, no"},
        {CALL_DISPATCH, ODD_HANDLE, "rank 0 and rank 2 disagree on the cached handle: of operation 1, 2"},
        {CALL_DISPATCH, ODD_REFUSED, NOT_THE_SAME},
        {CALL_COMBINE, ODD_REFUSED, NOT_THE_SAME},
        {CALL_COMBINE, ODD_DTYPE, "rank 0 and rank 2 disagree on dtype: bf16, fp16"},
        {CALL_COMBINE, ODD_HIDDEN, "rank 0 and rank 2 disagree on hidden: 40, 39"},
        {CALL_COMBINE, ODD_WEIGHTS, "rank 0 and rank 2 disagree on whether there are topk_weights: no, yes"},
    };
    sim_check_mismatches(state, mismatches, sizeof mismatches / sizeof mismatches[0], edit);
}

/* ---- lies ---- */

/* One field of rank 1's record says what no correct rank can say: rank 0 must notice. */
typedef struct lie {
    size_t offset; /* in the record */
    uint32_t value;
    uint32_t repeat; /* words that say it */
    const char *reason;
} lie_t;

/* The record of this epoch and so many tokens in the heap of a rank. */
static char *find_record(const sim_world_t *world, uint32_t rank, uint64_t epoch, uint64_t tokens)
{
    char *heap = world->ranks[rank].env.heap;
    for (uint64_t at = 0; at + sizeof(normal_record_t) <= world->ranks[rank].env.heap_bytes; at += 8)
        if (!memcmp(heap + at, &epoch, sizeof epoch) &&
            !memcmp(heap + at + offsetof(normal_record_t, tokens), &tokens, sizeof tokens))
            return heap + at;
    return NULL;
}

/* The others write what they have to write before rank 0 looks; then words of rank 1 are changed. */
static void check_lie(void **state, const lie_t *lie)
{
    sim_run_t *run = sim_run_begin(state, 1, sim_small_shape.nranks);
    sim_world_t *world = &run->world;
    xep_shape_t shape = sim_small_shape;
    shape.sends_in_place = 1;
    run->options = (sim_options_t){.nranks = sim_small_shape.nranks, .threads = 1, .inflight = 100};
    memset(run->options.node, 0, sizeof run->options.node);
    script_begin(world, run->mode, &run->script, &shape);
    run->script.unchecked = 1;
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ALL; /* rank 0 gets some of them */
    call->tokens[1] = 5;
    assert_true(sim_run_open(run));
    for (uint32_t i = 0; i < 200; i++) script_player_step(&world->ranks[1 + i % 2]);
    char *record = find_record(world, 0, 1, 5);
    assert_non_null(record);
    for (uint32_t i = 0; i < lie->repeat; i++)
        memcpy(record + lie->offset + i * sizeof lie->value, &lie->value, sizeof lie->value);
    for (uint32_t i = 0; i < 200; i++) script_player_step(&world->ranks[0]);
    if (strcmp(script_player(&world->ranks[0])->reason, lie->reason))
        sim_fail(world, "said \"%s\", not \"%s\"", script_player(&world->ranks[0])->reason, lie->reason);
    sim_run_end(run);
}

static void lies(void **state)
{
    enum { ROWS = sizeof(normal_record_t), SELECTIONS = ROWS + 3 * sizeof(uint32_t) };
    static const lie_t all[] = {
        {offsetof(normal_record_t, epoch), 7, 1, "invalid record from rank 1: epoch: 7 (1 to 1)"},
        {offsetof(normal_record_t, slot), 3, 1, "invalid record from rank 1: slot: 3 (0 to 2)"},
        {offsetof(normal_record_t, tokens), 7, 1, "invalid record from rank 1: tokens: 7 (0 to 6)"},
        {offsetof(normal_record_t, capacity), 19, 1, "invalid record from rank 1: capacity: 19 (0 to 18)"},
        {offsetof(normal_record_t, rows_at), 25, 1,
         "invalid record from rank 1: rows in place from row 24 on (in its send memory)"}, /* behind all areas */
        {offsetof(normal_record_t, rows_at), 3, 1,
         "invalid record from rank 1: rows in place from row 2 on (in its send memory)"}, /* too many of one */
        {ROWS, 6, 1, "invalid record from rank 1: rows to a rank: 6 (0 to 5)"},
        {ROWS, 5, 3, "invalid record from rank 1: rows in all: 15 (0 to 10)"},
        {SELECTIONS, 0, 3, "invalid record from rank 1: selections: 0 (4 to 8)"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) check_lie(state, &all[i]);
}

/* ---- lies of a rank of another node ---- */

/* What rank 2, alone on its node, tells its forwarder, rank 0: a word there that is changed. */
typedef enum { IN_TAIL, IN_LINE, IN_METADATA } passed_word_t;

typedef struct passed_lie {
    passed_word_t word;
    size_t offset;
    uint64_t value;
    size_t bytes;
    const char *reason;
} passed_lie_t;

/*
 * With room for two rows of each upstream rank: in the tail of the record, in the word, in the metadata of the first
 * row.
 */
static char *find_passed(const sim_world_t *world, passed_word_t word)
{
    char *heap = world->ranks[0].env.heap;
    const normal_t *mode = world->ranks[0].mode;
    if (word == IN_LINE) return heap + mode->layout.passed;
    if (word == IN_METADATA) return heap + xep_area_at(mode->layout.feed_metadata, 0);
    return heap + mode->layout.records + 2 * mode->layout.record_bytes + sizeof(normal_record_t) +
           (sim_small_shape.nranks + (size_t)sim_small_shape.experts) * sizeof(uint32_t);
}

/* Of the first index: whether the record of source is at a rank. */
static int is_recorded(const sim_world_t *world, uint32_t rank, uint32_t source)
{
    const normal_t *mode = world->ranks[rank].mode;
    const char *heap = world->ranks[rank].env.heap;
    return ((const normal_line_t *)(const void *)(heap + mode->layout.line))[source].counts != 0;
}

/* Whether the first upstream rank of rank 0 has passed rows. */
static int has_passed(const sim_world_t *world)
{
    const normal_t *mode = world->ranks[0].mode;
    const char *heap = world->ranks[0].env.heap;
    return *(const uint64_t *)(const void *)(heap + mode->layout.passed) != 0;
}

/* Ranks 1 and 2 go as far as they get without rank 0, or with its record alone. */
static void check_passed_lie(void **state, const passed_lie_t *lie)
{
    static const uint32_t node[] = {0, 0, 1};
    sim_run_t *run = sim_run_begin(state, 1, sim_small_shape.nranks);
    sim_world_t *world = &run->world;
    run->options = (sim_options_t){.nranks = sim_small_shape.nranks, .threads = 1, .inflight = 100, .feed_rows = 2};
    memcpy(run->options.node, node, sizeof node);
    script_begin(world, run->mode, &run->script, &sim_small_shape);
    run->script.unchecked = 1;
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ONE_EXPERT; /* 3, of rank 1 */
    call->tokens[2] = 5;
    assert_true(sim_run_open(run));
    char *at = find_passed(world, lie->word);
    for (uint32_t i = 0; i < 400 && lie->word != IN_TAIL && !is_recorded(world, 2, 0); i++) {
        script_player_step(&world->ranks[0]);
        sim_wire_step(&world->net, &world->dice);
    }
    for (uint32_t i = 0; i < 4000 && !(lie->word == IN_TAIL ? is_recorded(world, 0, 2) : has_passed(world)); i++) {
        script_player_step(&world->ranks[1 + i % 2]);
        sim_wire_step(&world->net, &world->dice);
    }
    memcpy(at + lie->offset, &lie->value, lie->bytes);
    for (uint32_t i = 0; i < 200; i++) script_player_step(&world->ranks[0]);
    if (strcmp(script_player(&world->ranks[0])->reason, lie->reason))
        sim_fail(world, "said \"%s\", not \"%s\"", script_player(&world->ranks[0])->reason, lie->reason);
    sim_run_end(run);
}

static void passed_lies(void **state)
{
    static const passed_lie_t all[] = {
        {IN_TAIL, offsetof(normal_feed_tail_t, rows), 6, 4,
         "invalid tail from rank 2: 6 rows, with sums from row 0 on (5 to 5 rows, of 6)"},
        {IN_TAIL, offsetof(normal_feed_tail_t, rows), 4, 4,
         "invalid tail from rank 2: 4 rows, with sums from row 0 on (5 to 5 rows, of 6)"},
        {IN_TAIL, offsetof(normal_feed_tail_t, returned), 2, 8,
         "invalid tail from rank 2: 5 rows, with sums from row 2 on (5 to 5 rows, of 6)"},
        {IN_LINE, 0, (1 << XEP_FEED_ROWS_BITS) + 6, 8, "rank 2 has passed too many rows: 6 (at most 2)"},
        {IN_LINE, 0, (1 << XEP_FEED_ROWS_BITS) + 5, 8, "rank 2 has passed too many rows: 5 (at most 2)"},
        {IN_METADATA, 0, 5, 4, "invalid row passed by rank 2: token: 5 (0 to 4)"},
        {IN_METADATA, 0, UINT32_MAX, 4, "invalid row passed by rank 2: token: -1 (0 to 4)"},
        {IN_METADATA, 4, 7, 4, "invalid row passed by rank 2: expert: 7 (0 to 6)"},
        {IN_METADATA, 4, UINT64_C(6) << 32 | 6, 8, "invalid row passed by rank 2: experts of this node: 0 (1 to 2)"},
        {IN_METADATA, 4, 0, 4, "wrong number of rows from rank 2 for rank 0: 1 (0, as announced)"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) check_passed_lie(state, &all[i]);
}

/* ---- one tells two others different things ---- */

/* A word of rank 1's record that rank 2 alone gets, and what all ranks say when the rows are here. */
typedef struct story {
    size_t offset; /* in the record */
    int32_t change;
    const char *reasons[3];
} story_t;

static void make_stories(sim_run_t *run, const uint32_t *node, int masks)
{
    run->options =
        (sim_options_t){.nranks = sim_small_shape.nranks, .threads = 1, .inflight = 100, .deliver = 50, .masks = masks};
    memcpy(run->options.node, node, sim_small_shape.nranks * sizeof *node);
    script_begin(&run->world, run->mode, &run->script, &sim_small_shape);
    run->script.unchecked = 1;
    script_call_t *call = script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    call->route = ROUTE_ONE_EXPERT; /* 3, of rank 1: the rows of all lie there, one behind the other */
    call->tokens[1] = 5;
    call->capacity[1] = 18;
}

/* Rank 2 is told another story by rank 1, whose heap it maps, than rank 0 is: all three must notice. */
static void check_story(void **state, const story_t *story, const uint32_t *node, int masks)
{
    sim_run_t *run = sim_run_begin(state, 1, sim_small_shape.nranks);
    sim_world_t *world = &run->world;
    char *record = NULL;
    uint32_t value;
    make_stories(run, node, masks);
    assert_true(sim_run_open(run));
    for (uint32_t i = 0; i < 200 && record == NULL; i++) {
        script_player_step(&world->ranks[1]);
        record = find_record(world, 2, 1, 5);
    }
    assert_non_null(record);
    memcpy(&value, record + story->offset, sizeof value);
    value += (uint32_t)story->change;
    memcpy(record + story->offset, &value, sizeof value);
    sim_run_play(run, SIM_TURNS, 0);
    for (uint32_t r = 0; r < sim_small_shape.nranks; r++)
        if (strcmp(script_player(&world->ranks[r])->reason, story->reasons[r]))
            sim_fail(world, "rank %u says \"%s\", not \"%s\"", r, script_player(&world->ranks[r])->reason,
                     story->reasons[r]);
    sim_run_end(run);
}

static void stories(void **state)
{
    enum { ROWS = sizeof(normal_record_t), TO_1 = ROWS + sizeof(uint32_t) };
    static const char *counts[] = {"rank 0 and rank 2 were told different counts of rows by rank 1",
                                   "rank 1 and rank 2 were told different counts of rows by rank 1"},
                      *params[] = {"rank 0 and rank 2 were told different parameters",
                                   "rank 1 and rank 2 were told different parameters"};
    static const uint32_t nodes[][3] = {{0, 0, 0}, {0, 1, 1}};
    const story_t all[] = {
        {TO_1, -1, {counts[0], counts[1], counts[0]}}, /* the last row of rank 2 falls on none: one is left as it was */
        {TO_1, -5, {counts[0], counts[1], counts[0]}}, /* rank 2 writes over all rows of rank 1 */
        {ROWS, 2, {counts[0], counts[1], counts[0]}},  /* for others */
        {offsetof(normal_record_t, capacity), -2, {params[0], params[1], params[0]}}, /* to rank 2 alone, too little */
        {offsetof(normal_record_t, params) + NORMAL_HAS_WEIGHTS * sizeof(uint32_t),
         1,
         {params[0], params[1], params[0]}},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t n = 0; n < 2 * sizeof nodes / sizeof nodes[0]; n++)
            check_story(state, &all[i], nodes[n / 2], n % 2); /* where ranks may be left out, too: none is */
}

/* ---- what it cannot do ---- */

static void heap_size(void **state)
{
    const xep_plugin_t *plugin = ((const sim_case_t *)*state)->plugin;
    xep_shape_t shape = sim_small_shape;
    xep_region_t regions[XEP_REGIONS];
    uint64_t bytes, more, rows;
    assert_int_equal(sim_shape_measure(plugin, &shape, NULL, regions, &bytes, &rows), XEP_OK);
    assert_int_equal(rows, 18); /* every token of every rank */
    shape.recv_rows = 19;
    assert_int_equal(sim_shape_measure(plugin, &shape, NULL, regions, &more, &rows), XEP_OK);
    assert_int_equal(rows, 19);
    assert_true(more > bytes);
    shape = (xep_shape_t){.nranks = 512,
                          .experts = 4096,
                          .topk = 64,
                          .hidden = 1u << 20,
                          .elem_bytes = 8,
                          .combine_elem_bytes = 4,
                          .slots = 4,
                          .tokens = 65536};
    assert_int_equal(sim_shape_measure(plugin, &shape, NULL, regions, &bytes, &rows),
                     XEP_OK); /* 1.5 PB are not too many to count */
    assert_true(bytes / 4 > (UINT64_C(512) * 65536 << 23));
    shape.tokens = INT32_MAX;
    shape.hidden = UINT32_MAX;
    assert_int_equal(sim_shape_measure(plugin, &shape, NULL, regions, &bytes, &rows), XEP_ERR_NO_MEMORY);
    shape.tokens = (uint64_t)INT32_MAX + 1;
    assert_int_equal(sim_shape_measure(plugin, &shape, NULL, regions, &bytes, &rows), XEP_ERR_INVALID);
}

static const sim_mode_test_t tests[] = {
    {"overflow", overflow},
    {"mismatch", mismatch},
    {"lies", lies},
    {"passed_lies", passed_lies},
    {"stories", stories},
    {"messages", sim_nodes_messages},
    {"latencies", sim_nodes_latencies},
    {"sums_go_on", sim_nodes_sums_go_on},
    {"sums_begin_early", sim_nodes_sums_begin_early},
    {"summed_lie", sim_nodes_summed_lie},
    {"pieces", sim_pieces},
    {"heap_size", heap_size},
};

const sim_mode_t sim_normal = {
    .name = "normal",
    .make_dispatch = make_dispatch,
    .make_combine = make_combine,
    .notices = notices,
    .tests = tests,
    .ntests = sizeof tests / sizeof tests[0],
};
