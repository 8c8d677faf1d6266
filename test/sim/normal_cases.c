/* SPDX-License-Identifier: BSD-3-Clause */

/* The mode "normal" where chance does not lead often enough: errors and their words, lies, bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "../../plugins/normal/normal.h"
#include "normal_cases.h"

static const xep_shape_t small = {.nranks = 3, .experts = 7, .topk = 2, .hidden = 40, .scales = 1, .elem_bytes = 2,
                                  .combine_elem_bytes = 2, .slots = 3, .tokens = 6};

/* Every rank must have got the error, in the same words. */
static void check_reason(sim_world_t *world, const char *reason)
{
    for (uint32_t r = 0; r < world->options.nranks && !world->failure[0]; r++)
        if (strcmp(normal_player(world, r)->reason, reason))
            sim_fail(world, "rank %u says \"%s\", not \"%s\"", r, normal_player(world, r)->reason, reason);
}

/* Room for 5 rows where 6 tokens come from each of 3 ranks; then room enough, then combined. */
static void run_overflow(const xep_plugin_t *plugin, uint64_t seed)
{
    sim_world_t world;
    sim_options_t options;
    static script_t script;
    normal_world_begin(&world, &options, plugin, seed, small.nranks);
    script_begin(&world, &script, &small);
    for (uint32_t i = 0; i < 2; i++) {
        script_call_t *call = script_dispatch(&script, i, UINT32_MAX);
        call->route = ROUTE_ONE_EXPERT; /* 3, of rank 1 */
        call->expect = i ? XEP_OK : XEP_ERR_OVERFLOW;
        call->capacity[1] = i ? 18 : 17;
    }
    script_combine(&script, 1);
    script_release(&script, 1);
    if (sim_world_open(&world, &options, &small)) {
        normal_run(&world, &script, NORMAL_TURNS, 0);
        check_reason(&world, "rank 1 gets 18 rows and has room for 17");
    }
    normal_world_end(&world);
}

void test_overflow(void **state)
{
    normal_runs(state, 50, run_overflow);
}

static void run_mismatch(const xep_plugin_t *plugin, uint64_t seed, script_kind_t kind, script_odd_t odd, const char *reason)
{
    sim_world_t world;
    sim_options_t options;
    static script_t script;
    script_call_t *call;
    normal_world_begin(&world, &options, plugin, seed, small.nranks);
    script_begin(&world, &script, &small);
    script_dispatch(&script, 0, UINT32_MAX);
    script_dispatch(&script, 1, UINT32_MAX);
    call = kind == CALL_COMBINE ? script_combine(&script, 1)
                                : script_dispatch(&script, 2, odd == ODD_CACHED || odd == ODD_HANDLE ? 0 : UINT32_MAX);
    call->odd = odd;
    call->odd_rank = 2;
    call->odd_handle = 1;
    call->nscales = kind == CALL_DISPATCH;
    call->expect = XEP_ERR_MISMATCH;
    script_combine(&script, 1);
    script_combine(&script, 0);
    if (sim_world_open(&world, &options, &small)) {
        normal_run(&world, &script, NORMAL_TURNS, 0);
        check_reason(&world, reason);
    }
    normal_world_end(&world);
}

void test_mismatch(void **state)
{
    static const struct {
        script_kind_t kind;
        script_odd_t odd;
        const char *reason;
    } cases[] = {
        {CALL_DISPATCH, ODD_DTYPE, "rank 0 and rank 2 disagree on dtype: bf16, fp16"},
        {CALL_DISPATCH, ODD_HIDDEN, "rank 0 and rank 2 disagree on hidden: 40, 39"},
        {CALL_DISPATCH, ODD_WEIGHTS, "rank 0 and rank 2 disagree on whether there are topk_weights: no, yes"},
        {CALL_DISPATCH, ODD_TOPK, "rank 0 and rank 2 disagree on topk: 2, 1"},
        {CALL_DISPATCH, ODD_IDX_DTYPE, "rank 0 and rank 2 disagree on topk_idx_dtype: int64, int32"},
        {CALL_DISPATCH, ODD_SCALES, "rank 0 and rank 2 disagree on nscales: 1, 0"},
        {CALL_DISPATCH, ODD_SCALES_DTYPE, "rank 0 and rank 2 disagree on scales_dtype: fp32, int32"},
        {CALL_DISPATCH, ODD_CACHED, "rank 0 and rank 2 disagree on whether there is a cached handle: yes, no"},
        {CALL_DISPATCH, ODD_HANDLE, "rank 0 and rank 2 disagree on the cached handle: of operation 1, 2"},
        {CALL_COMBINE, ODD_DTYPE, "rank 0 and rank 2 disagree on dtype: bf16, fp16"},
        {CALL_COMBINE, ODD_HIDDEN, "rank 0 and rank 2 disagree on hidden: 40, 39"},
        {CALL_COMBINE, ODD_WEIGHTS, "rank 0 and rank 2 disagree on whether there are topk_weights: no, yes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t seed = 1; seed <= 10; seed++) run_mismatch(*state, seed, cases[i].kind, cases[i].odd, cases[i].reason);
}

/* ---- lies ---- */

/* One field of rank 1's record says what no correct rank can say: rank 0 must notice. */
typedef struct lie {
    size_t offset;   /* in the record */
    uint32_t value;
    uint32_t repeat; /* words that say it */
    const char *reason;
} lie_t;

/* The record of this epoch and so many tokens in the heap of rank 0. */
static char *record_find(const sim_world_t *world, uint64_t epoch, uint64_t tokens)
{
    char *heap = world->ranks[0].env.heap;
    for (uint64_t at = 0; at + sizeof(normal_record_t) <= world->ranks[0].env.heap_bytes; at += 8)
        if (!memcmp(heap + at, &epoch, sizeof epoch) &&
            !memcmp(heap + at + offsetof(normal_record_t, tokens), &tokens, sizeof tokens))
            return heap + at;
    return NULL;
}

/* The others write what they have to write before rank 0 looks; then words of rank 1 are changed. */
static void run_lie(const xep_plugin_t *plugin, const lie_t *lie)
{
    sim_world_t world;
    sim_options_t options = {.nranks = small.nranks, .threads = 1, .inflight = 100};
    static script_t script;
    char *record;
    memset(options.maps, 1, sizeof options.maps);
    sim_world_init(&world, 1, plugin);
    script_begin(&world, &script, &small);
    script.unchecked = 1;
    script_dispatch(&script, 0, UINT32_MAX)->tokens[1] = 5;
    assert_true(sim_world_open(&world, &options, &small));
    script_players_make(&world, &script);
    for (uint32_t i = 0; i < 200; i++) script_step(&world.ranks[1 + i % 2]);
    record = record_find(&world, 1, 5);
    assert_non_null(record);
    for (uint32_t i = 0; i < lie->repeat; i++) memcpy(record + lie->offset + i * sizeof lie->value, &lie->value, sizeof lie->value);
    for (uint32_t i = 0; i < 200; i++) script_step(&world.ranks[0]);
    if (strcmp(normal_player(&world, 0)->reason, lie->reason))
        sim_fail(&world, "said \"%s\", not \"%s\"", normal_player(&world, 0)->reason, lie->reason);
    normal_world_end(&world);
}

void test_lies(void **state)
{
    enum { ROWS = sizeof(normal_record_t), SELECTIONS = ROWS + 3 * sizeof(uint32_t) };
    static const lie_t lies[] = {
        {offsetof(normal_record_t, epoch), 7, 1, "rank 1 sent a record with epoch 7"},
        {offsetof(normal_record_t, slot), 3, 1, "rank 1 sent a record with slot 3"},
        {offsetof(normal_record_t, pulls), 2, 1, "rank 1 sent a record with pulls 2"},
        {offsetof(normal_record_t, tokens), 7, 1, "rank 1 sent a record with tokens 7"},
        {offsetof(normal_record_t, capacity), 19, 1, "rank 1 sent a record with capacity 19"},
        {ROWS, 6, 1, "rank 1 sent a record with rows to a rank 6"},
        {ROWS, 5, 3, "rank 1 sent a record with rows in all 15"},
        {SELECTIONS, 0, 3, "rank 1 sent a record with selections 0"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) run_lie(*state, &lies[i]);
}

/* ---- the rest ---- */

/* Ranks other than 0 sleep: it says what it waits for. */
void test_explain(void **state)
{
    sim_world_t world;
    sim_options_t options = {.nranks = 3, .threads = 1, .inflight = 10};
    static script_t script;
    script_player_t *player;
    char text[200] = "", tiny[8];
    sim_world_init(&world, 1, *state);
    script_begin(&world, &script, &small);
    script_dispatch(&script, 0, UINT32_MAX);
    assert_true(sim_world_open(&world, &options, &small));
    script_players_make(&world, &script);
    for (int i = 0; i < 100; i++) script_step(&world.ranks[0]);
    player = normal_player(&world, 0);
    world.plugin->explain(world.ranks[0].mode, &player->handles[0].flight->op, text, sizeof text);
    world.plugin->explain(world.ranks[0].mode, &player->handles[0].flight->op, tiny, sizeof tiny);
    assert_string_equal(text, "epoch 1 waits for counts: rank 1 at 0 of 1, rank 2 at 0 of 1");
    assert_string_equal(tiny, "epoch 1");
    normal_world_end(&world);
}

void test_unsupported(void **state)
{
    sim_world_t world;
    sim_options_t options = {.nranks = 1, .threads = 1, .inflight = 10};
    const xep_shape_t shape = {.nranks = 1, .experts = 1, .topk = 1, .hidden = 1, .elem_bytes = 2, .combine_elem_bytes = 2, .slots = 1, .tokens = 1};
    const xep_plugin_t *plugin = *state;
    xep_dispatch_args_t args = {.dtype = XEP_BF16, .hidden = 1, .topk = 1, .topk_idx_dtype = XEP_INT64, .quant = XEP_QUANT_E4M3};
    xep_combine_args_t combine = {.dtype = XEP_BF16, .hidden = 1, .flags = XEP_COMBINE_LOGFMT};
    xep_recv_t recv;
    char op_state[1024] = {0};
    sim_waits_t waits = {0};
    xep_op_t op = {.cached_slot = XEP_NO_SLOT, .epoch = 1, .dispatch = &args, .recv = &recv, .state = op_state, .late = sim_late(&waits)};
    sim_world_init(&world, 1, plugin);
    assert_true(sim_world_open(&world, &options, &shape));
    assert_true(plugin->op_size <= sizeof op_state);
    assert_int_equal(plugin->dispatch(world.ranks[0].mode, &op), XEP_ERR_UNSUPPORTED);
    assert_string_equal(sim_reason(&world.ranks[0], &op), "the mode normal does not cast rows (quant)");
    args.quant = XEP_QUANT_NONE;
    args.arrangement = XEP_ROWS_BY_EXPERT_COMPACT;
    assert_int_equal(plugin->dispatch(world.ranks[0].mode, &op), XEP_ERR_UNSUPPORTED);
    args.arrangement = XEP_ROWS_BY_RANK;
    assert_int_equal(plugin->dispatch(world.ranks[0].mode, &op), XEP_OK);
    assert_int_equal(plugin->progress(world.ranks[0].mode, &op), XEP_OK);
    op = (xep_op_t){.kind = XEP_OP_COMBINE, .epoch = 2, .combine = &combine, .recv = &recv, .state = op_state};
    assert_int_equal(plugin->combine(world.ranks[0].mode, &op), XEP_ERR_UNSUPPORTED);
    sim_world_close(&world);
}

void test_heap_size(void **state)
{
    const xep_plugin_t *plugin = *state;
    xep_shape_t shape = small;
    uint64_t bytes, more, rows;
    assert_int_equal(plugin->heap_size(&shape, &bytes, &rows), XEP_OK);
    assert_int_equal(rows, 18); /* every token of every rank */
    shape.recv_rows = 19;
    assert_int_equal(plugin->heap_size(&shape, &more, &rows), XEP_OK);
    assert_int_equal(rows, 19);
    assert_true(more > bytes);
    shape = (xep_shape_t){.nranks = 512, .experts = 4096, .topk = 64, .hidden = 1u << 20, .elem_bytes = 8,
                          .combine_elem_bytes = 4, .slots = 4, .tokens = 65536};
    assert_int_equal(plugin->heap_size(&shape, &bytes, &rows), XEP_OK); /* 1.5 PB are not too many to count */
    assert_true(bytes / 4 > (UINT64_C(512) * 65536 << 23));
    shape.tokens = INT32_MAX;
    shape.hidden = UINT32_MAX;
    assert_int_equal(plugin->heap_size(&shape, &bytes, &rows), XEP_ERR_NO_MEMORY);
    shape.tokens = (uint64_t)INT32_MAX + 1;
    assert_int_equal(plugin->heap_size(&shape, &bytes, &rows), XEP_ERR_INVALID);
}
