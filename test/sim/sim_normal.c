/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The mode "normal" in simulated worlds. Every run follows from one number, printed when it fails:
 *   XEP_TEST_SEED=that XEP_TEST_RUNS=1 test/sim/sim_normal.t
 *
 * limit: 240
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "normal_cases.h"

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static const xep_plugin_t *plugin_load(void)
{
    const char *folder = getenv("XEP_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/xep_normal.so", folder ? folder : ".libs");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) fail_msg("%s", dlerror());
    return dlsym(object, "xep_plugin");
}

static xep_simd_t simd_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return XEP_SIMD_AVX512;
    if (__builtin_cpu_supports("avx2")) return XEP_SIMD_AVX2;
#endif
    return XEP_SIMD_SCALAR;
}

script_player_t *normal_player(const sim_world_t *world, uint32_t rank)
{
    return world->ranks[rank].driver;
}

/* ---- a world and what it ends with ---- */

static void stuck_explain(sim_world_t *world)
{
    char text[256], *to = world->failure;
    if (!strstr(to, "have not finished")) return;
    for (uint32_t r = 0; r < world->options.nranks; r++)
        for (uint32_t h = 0; h < SCRIPT_HANDLES; h++) {
            script_flight_t *flight = normal_player(world, r)->handles[h].flight;
            if (!flight) continue;
            world->plugin->explain(world->ranks[r].mode, &flight->op, text, sizeof text);
            snprintf(to + strlen(to), sizeof world->failure - strlen(to), "\n# rank %u: %s", r, text);
        }
}

void normal_run(sim_world_t *world, script_t *script, uint64_t turns, int quiet)
{
    int64_t pairing = 0;
    script_players_make(world, script);
    sim_world_run(world, turns, quiet);
    stuck_explain(world);
    for (uint32_t r = 0; r < world->options.nranks; r++) pairing += normal_player(world, r)->pairing;
    if (script->integers && !quiet && pairing) sim_fail(world, "dispatch and combine are not adjoint: %lld", (long long)pairing);
}

void normal_world_end(sim_world_t *world)
{
    char failure[sizeof world->failure];
    memcpy(failure, world->failure, sizeof failure);
    sim_wire_clear(world);
    script_players_free(world);
    sim_world_close(world);
    if (failure[0]) fail_msg("seed %llu: %s", (unsigned long long)world->seed, failure);
}

void normal_world_begin(sim_world_t *world, sim_options_t *options, const xep_plugin_t *plugin, uint64_t seed, uint32_t nranks)
{
    static const uint32_t some[] = {1, 2, 2, 3, 3, 4, 5, 8};
    sim_world_init(world, seed, plugin);
    memset(options, 0, sizeof *options);
    options->nranks = nranks ? nranks : some[sim_below(world, 8)];
    options->simd = (xep_simd_t)(seed % (simd_best() + 1u));
    sim_options_random(world, options);
}

void normal_runs(void **state, uint64_t share, void (*run)(const xep_plugin_t *plugin, uint64_t seed))
{
    uint64_t seed = env_number("XEP_TEST_SEED", 1), runs = env_number("XEP_TEST_RUNS", share);
    for (uint64_t i = 0; i < runs; i++) run(*state, seed + i);
}

/* ---- chance ---- */

static void run_random(const xep_plugin_t *plugin, uint64_t seed)
{
    sim_world_t world;
    sim_options_t options;
    static script_t script;
    normal_world_begin(&world, &options, plugin, seed, 0);
    script_make(&world, &script, options.nranks, NULL);
    if (sim_world_open(&world, &options, &script.shape)) normal_run(&world, &script, NORMAL_TURNS, 0);
    normal_world_end(&world);
}

static void test_random_worlds(void **state)
{
    normal_runs(state, 2000, run_random);
}

/* Ranks are stopped in the middle of everything, then begin anew on memory full of what was. */
static void run_reset(const xep_plugin_t *plugin, uint64_t seed)
{
    sim_world_t world;
    sim_options_t options;
    static script_t script, again;
    normal_world_begin(&world, &options, plugin, seed, 0);
    script_make(&world, &script, options.nranks, NULL);
    if (sim_world_open(&world, &options, &script.shape)) {
        normal_run(&world, &script, sim_below(&world, 2000), 1);
        sim_wire_clear(&world);
        script_players_free(&world);
        script_make(&world, &again, options.nranks, &script);
        if (sim_world_reopen(&world)) normal_run(&world, &again, NORMAL_TURNS, 0);
    }
    normal_world_end(&world);
}

static void test_resets(void **state)
{
    normal_runs(state, 400, run_reset);
}

/* Bits of signals, records and messages flip: any status will do, but no access may go astray. */
static void run_hostile(const xep_plugin_t *plugin, uint64_t seed)
{
    sim_world_t world;
    sim_options_t options;
    static script_t script;
    normal_world_begin(&world, &options, plugin, seed, 0);
    options.corrupt = 1;
    options.corrupt_bytes = UINT64_C(256) << sim_below(&world, 7);
    script_make(&world, &script, options.nranks, NULL);
    script.unchecked = 1;
    if (sim_world_open(&world, &options, &script.shape)) normal_run(&world, &script, 3000, 1);
    normal_world_end(&world);
}

static void test_hostile_peers(void **state)
{
    normal_runs(state, 1000, run_hostile);
}

/* More ranks than bits of a word, experts that do not divide by them. */
static void run_many(const xep_plugin_t *plugin, uint64_t seed)
{
    static const xep_shape_t shape = {.nranks = 70, .experts = 333, .topk = 6, .hidden = 5, .elem_bytes = 2,
                                      .combine_elem_bytes = 2, .slots = 1, .tokens = 3};
    sim_world_t world;
    sim_options_t options;
    static script_t script;
    normal_world_begin(&world, &options, plugin, seed, shape.nranks);
    script_begin(&world, &script, &shape);
    script_dispatch(&script, 0, UINT32_MAX)->weights = 1;
    script_combine(&script, 0)->weights = 1;
    if (sim_world_open(&world, &options, &shape)) normal_run(&world, &script, 4 * NORMAL_TURNS, 0);
    normal_world_end(&world);
}

static void test_many_ranks(void **state)
{
    normal_runs(state, 3, run_many);
}

static int setup(void **state)
{
    *state = (void *)(uintptr_t)plugin_load();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_worlds), cmocka_unit_test(test_resets),   cmocka_unit_test(test_hostile_peers),
        cmocka_unit_test(test_many_ranks),    cmocka_unit_test(test_overflow), cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_lies),          cmocka_unit_test(test_explain),  cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_heap_size),
    };
    return cmocka_run_group_tests_name("sim_normal", tests, setup, NULL);
}
