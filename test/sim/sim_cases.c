/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_cases.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "script_truth.h"
#include "sim_wire.h"

sim_case_t sim_case_load(const sim_mode_t *mode)
{
    const char *folder = getenv("XEP_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/xep_%s.so", folder != NULL ? folder : ".libs", mode->name);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL) fail_msg("%s", dlerror());
    return (sim_case_t){.mode = mode, .plugin = dlsym(object, "xep_plugin")};
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

uint64_t sim_few_if_brief(uint64_t share)
{
    const char *brief = getenv("XEP_TEST_BRIEF");
    if (brief == NULL || *brief == '\0') return share;
    const uint64_t least = strcmp(brief, "quick") == 0 ? 8 : 4;
    return (share + least - 1) / least;
}

void sim_each_seed(void **state, uint64_t share, void (*fn)(void **state, uint64_t seed))
{
    uint64_t seed = env_number("XEP_TEST_SEED", 1), runs = env_number("XEP_TEST_RUNS", share);
    for (uint64_t i = 0; i < runs; i++) fn(state, seed + i);
}

/* ---- a run ---- */

sim_run_t *sim_run_begin(void **state, uint64_t seed, uint32_t nranks)
{
    static const uint32_t some[] = {1, 2, 2, 3, 3, 4, 5, 8};
    static sim_run_t run;
    const sim_case_t *c = *state;
    run.mode = c->mode;
    sim_world_init(&run.world, seed, c->plugin);
    run.options = (sim_options_t){.nranks = nranks ? nranks : some[sim_below(&run.world.dice, 8)],
                                  .simd = (xep_simd_t)(seed % (sim_simd_best() + 1u))};
    sim_options_random(&run.world.dice, &run.options);
    run.options.masks = seed % 3 == 2 && c->plugin->masks != NULL;
    run.world.options = run.options; /* what scripts may ask for depends on it */
    return &run;
}

int sim_run_open(sim_run_t *run)
{
    if (!sim_world_open(&run->world, &run->options, &run->script.shape)) return 0;
    script_players_make(&run->world, &run->script);
    return 1;
}

static void explain_stuck(sim_world_t *world)
{
    char text[256], *to = world->failure;
    if (strstr(to, "have not finished") == NULL) return;
    for (uint32_t r = 0; r < world->options.nranks; r++)
        for (uint32_t h = 0; h < SCRIPT_HANDLES; h++) {
            script_flight_t *flight = script_player(&world->ranks[r])->handles[h].flight;
            if (flight == NULL) continue;
            world->plugin->explain(world->ranks[r].mode, &flight->op, text, sizeof text);
            snprintf(to + strlen(to), sizeof world->failure - strlen(to), "\n# rank %u: %s", r, text);
        }
}

void sim_run_play(sim_run_t *run, uint64_t turns, int quiet)
{
    sim_world_t *world = &run->world;
    int64_t pairing = 0;
    sim_world_run(world, turns, quiet);
    if (world->failed) explain_stuck(world);
    for (uint32_t r = 0; r < world->options.nranks; r++) pairing += script_player(&world->ranks[r])->pairing;
    if (run->script.integers && !quiet && pairing)
        sim_fail(world, "dispatch and combine are not adjoint: %lld", (long long)pairing);
}

void sim_arrive(sim_world_t *world)
{
    while (world->net.messages != NULL) sim_wire_step(&world->net, &world->dice);
}

int sim_has_finished(const sim_world_t *world)
{
    uint32_t r = 0;
    while (r < world->options.nranks && script_player_is_finished(&world->ranks[r])) r++;
    return r == world->options.nranks;
}

uint64_t sim_run_latencies(sim_run_t *run)
{
    enum { STEPS = 400, MOST = 30 };
    uint64_t latencies = 0;
    run->world.still = 1;
    assert_true(sim_run_open(run));
    const uint32_t nranks = run->world.options.nranks;
    for (; latencies < MOST; latencies++) {
        for (uint32_t i = 0; i < STEPS * nranks; i++) script_player_step(&run->world.ranks[i % nranks]);
        if (sim_has_finished(&run->world)) break;
        sim_arrive(&run->world);
    }
    sim_run_end(run);
    return latencies;
}

void sim_run_end(sim_run_t *run)
{
    sim_wire_clear(&run->world.net);
    script_players_free(&run->world);
    sim_world_close(&run->world);
    if (run->world.failed) fail_msg("seed %llu: %s", (unsigned long long)run->world.seed, run->world.failure);
}

/* ---- chance ---- */

static void random_world(void **state, uint64_t seed)
{
    sim_run_t *run = sim_run_begin(state, seed, 0);
    script_make(&run->world, run->mode, &run->script, run->options.nranks, NULL);
    if (sim_run_open(run)) sim_run_play(run, SIM_TURNS, 0);
    sim_run_end(run);
}

void sim_random_worlds(void **state)
{
    sim_each_seed(state, sim_few_if_brief(2000), random_world);
}

/* Ranks are stopped in the middle of everything, then begin anew on memory full of what was. */
static void reset_world(void **state, uint64_t seed)
{
    sim_run_t *run = sim_run_begin(state, seed, 0);
    static script_t before;
    script_make(&run->world, run->mode, &run->script, run->options.nranks, NULL);
    if (sim_run_open(run)) {
        sim_run_play(run, sim_below(&run->world.dice, 2000), 1);
        sim_wire_clear(&run->world.net);
        script_players_free(&run->world);
        before = run->script;
        script_make(&run->world, run->mode, &run->script, run->options.nranks, &before);
        if (sim_world_reopen(&run->world)) {
            script_players_make(&run->world, &run->script);
            sim_run_play(run, SIM_TURNS, 0);
        }
    }
    sim_run_end(run);
}

void sim_resets(void **state)
{
    sim_each_seed(state, sim_few_if_brief(400), reset_world);
}

/* Bits of signals, counts and messages flip: any status will do, but no access may go astray. */
static void hostile_world(void **state, uint64_t seed)
{
    sim_run_t *run = sim_run_begin(state, seed, 0);
    run->options.corrupt = 1;
    run->options.corrupt_bytes = UINT64_C(256) << sim_below(&run->world.dice, 9);
    script_make(&run->world, run->mode, &run->script, run->options.nranks, NULL);
    run->script.unchecked = 1;
    if (sim_run_open(run)) sim_run_play(run, 3000, 1);
    sim_run_end(run);
}

void sim_hostile_peers(void **state)
{
    sim_each_seed(state, sim_few_if_brief(1000), hostile_world);
}

/* More ranks than bits of a word, experts that do not divide by them. */
static void many_ranks(void **state, uint64_t seed)
{
    static const xep_shape_t shape = {.nranks = SIM_MAX_RANKS, .slots = 1, SIM_SHAPE(333, 6, 5, 3)};
    sim_run_t *run = sim_run_begin(state, seed, shape.nranks);
    script_begin(&run->world, run->mode, &run->script, &shape);
    script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE)->weights = 1;
    script_combine(&run->script, 0)->weights = 1;
    if (sim_run_open(run)) sim_run_play(run, 4 * SIM_TURNS, 0);
    sim_run_end(run);
}

void sim_many_ranks(void **state)
{
    sim_each_seed(state, sim_few_if_brief(3), many_ranks);
}

/*
 * As much room as is needed everywhere, then one row less at one rank. Every other time that rank alone has tokens:
 * what is known of it before its rows are counted is then exact.
 */
static void tight_room(void **state, uint64_t seed)
{
    sim_run_t *run = sim_run_begin(state, seed, sim_small_shape.nranks);
    script_t *script = &run->script;
    uint32_t nranks = run->options.nranks, full = (uint32_t)(seed / ROUTE_KINDS) % nranks;
    script_begin(&run->world, run->mode, script, &sim_small_shape);
    for (uint32_t i = 0; i < 2; i++) {
        script_call_t *call = script_dispatch(script, i, SCRIPT_NO_HANDLE);
        call->route = (script_route_t)(seed % ROUTE_KINDS);
        for (uint32_t r = 0; r < nranks && seed / ROUTE_KINDS / nranks % 2; r++)
            if (r != full) call->tokens[r] = 0;
        for (uint32_t r = 0; r < nranks; r++) call->capacity[r] = script_rows_needed(script, call, r);
        if (i == 1 && call->capacity[full] > 1) call->capacity[full]--;
        script_expect(script, call);
    }
    if (sim_run_open(run)) sim_run_play(run, SIM_TURNS, 0);
    sim_run_end(run);
}

void sim_tight_rooms(void **state)
{
    sim_each_seed(state, sim_few_if_brief(180), tight_room);
}

/* ---- words ---- */

const xep_shape_t sim_small_shape = {.nranks = 3, .slots = 3, SIM_SHAPE(7, 2, 40, 6), .scales = 1};

/* Every rank must have got the error, in the same words. */
static void check_reason(sim_world_t *world, const char *reason)
{
    for (uint32_t r = 0; r < world->options.nranks && !world->failed; r++)
        if (strcmp(script_player(&world->ranks[r])->reason, reason))
            sim_fail(world, "rank %u says \"%s\", not \"%s\"", r, script_player(&world->ranks[r])->reason, reason);
}

void sim_check_overflow(void **state, uint64_t rows, const char *reason)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        sim_run_t *run = sim_run_begin(state, seed, sim_small_shape.nranks);
        script_begin(&run->world, run->mode, &run->script, &sim_small_shape);
        for (uint32_t i = 0; i < 2; i++) {
            script_call_t *call = script_dispatch(&run->script, i, SCRIPT_NO_HANDLE);
            call->route = ROUTE_ONE_EXPERT; /* 3, of rank 1 */
            call->expect = i ? XEP_OK : XEP_ERR_OVERFLOW;
            call->capacity[1] = i ? rows : 17;
        }
        script_combine(&run->script, 1);
        script_release(&run->script, 1);
        if (sim_run_open(run)) {
            sim_run_play(run, SIM_TURNS, 0);
            check_reason(&run->world, reason);
        }
        sim_run_end(run);
    }
}

static void check_mismatch(void **state, uint64_t seed, const sim_mismatch_t *mismatch,
                           void (*edit)(script_call_t *call))
{
    sim_run_t *run = sim_run_begin(state, seed, sim_small_shape.nranks);
    script_t *script = &run->script;
    int dispatch = mismatch->kind == CALL_DISPATCH, cached = mismatch->odd == ODD_CACHED || mismatch->odd == ODD_HANDLE;
    script_begin(&run->world, run->mode, script, &sim_small_shape);
    script_dispatch(script, 0, SCRIPT_NO_HANDLE);
    script_dispatch(script, 1, SCRIPT_NO_HANDLE);
    script_call_t *call =
        dispatch ? script_dispatch(script, 2, cached ? 0 : SCRIPT_NO_HANDLE) : script_combine(script, 1);
    call->odd = mismatch->odd;
    call->odd_rank = 2;
    call->odd_handle = 1;
    call->nscales = dispatch;
    call->expect = XEP_ERR_MISMATCH;
    if (edit != NULL) edit(call);
    script_combine(script, 1);
    script_combine(script, 0);
    if (sim_run_open(run)) {
        sim_run_play(run, SIM_TURNS, 0);
        check_reason(&run->world, mismatch->reason);
    }
    sim_run_end(run);
}

void sim_check_mismatches(void **state, const sim_mismatch_t *mismatches, size_t count,
                          void (*edit)(script_call_t *call))
{
    for (size_t i = 0; i < count; i++)
        for (uint64_t seed = 1; seed <= 10; seed++) check_mismatch(state, seed, &mismatches[i], edit);
}

/* Ranks other than 0 sleep: it says what it waits for. */
void sim_explains(void **state)
{
    sim_run_t *run = sim_run_begin(state, 1, 3);
    sim_world_t *world = &run->world;
    char text[200] = "", tiny[8];
    run->options = (sim_options_t){.nranks = 3, .node = {0, 1, 2}, .threads = 1, .inflight = 10};
    script_begin(world, run->mode, &run->script, &sim_small_shape);
    script_dispatch(&run->script, 0, SCRIPT_NO_HANDLE);
    assert_true(sim_run_open(run));
    for (int i = 0; i < 100; i++) script_player_step(&world->ranks[0]);
    const xep_op_t *op = &script_player(&world->ranks[0])->handles[0].flight->op;
    world->plugin->explain(world->ranks[0].mode, op, text, sizeof text);
    world->plugin->explain(world->ranks[0].mode, op, tiny, sizeof tiny);
    assert_memory_equal(text, "epoch 1 waits for ", strlen("epoch 1 waits for "));
    assert_non_null(strstr(text, ": rank 1 at 0 of 1, rank 2 at 0 of 1"));
    assert_string_equal(tiny, "epoch 1");
    sim_run_end(run);
}
