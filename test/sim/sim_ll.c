/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The mode "ll" in simulated worlds. Every run follows from one number, printed when it fails:
 *   XEP_TEST_SEED=that XEP_TEST_RUNS=1 test/sim/sim_ll.t
 * limit: 240
 */
#define _GNU_SOURCE /* memmem */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ll_script.h"

enum { TURNS = 400000 };

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static int load(void **state)
{
    const char *folder = getenv("XEP_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/xep_ll.so", folder ? folder : ".libs");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) fail_msg("%s", dlerror());
    *state = dlsym(object, "xep_plugin");
    return *state == NULL;
}

static xep_simd_t simd_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return XEP_SIMD_AVX512;
    if (__builtin_cpu_supports("avx2")) return XEP_SIMD_AVX2;
#endif
    return XEP_SIMD_SCALAR;
}

static void world_end(sim_world_t *world)
{
    char failure[sizeof world->failure];
    memcpy(failure, world->failure, sizeof failure);
    ll_players_free(world);
    sim_world_close(world);
    if (failure[0]) fail_msg("seed %llu: %s", (unsigned long long)world->seed, failure);
}

static void explain_stuck(sim_world_t *world)
{
    char text[256], *to = world->failure;
    if (!strstr(to, "have not finished")) return;
    for (uint32_t r = 0; r < world->options.nranks; r++)
        for (uint32_t h = 0; h < LL_HANDLES; h++) {
            ll_handle_t *handle = &ll_player_of(&world->ranks[r])->handles[h];
            if (!handle->flight) continue;
            world->plugin->explain(world->ranks[r].mode, &handle->flight->op, text, sizeof text);
            snprintf(to + strlen(to), sizeof world->failure - strlen(to), "\n# rank %u: %s", r, text);
        }
}

/* who maps b is mapped by b: the core sees to it */
static void make_mutual(sim_options_t *options)
{
    for (uint32_t a = 0; a < options->nranks; a++)
        for (uint32_t b = 0; b < a; b++) options->maps[a][b] = options->maps[b][a];
}

static void options_make(sim_world_t *world, sim_options_t *options, uint32_t nranks)
{
    options->nranks = nranks;
    sim_options_random(world, options);
    make_mutual(options);
}

static void play(sim_world_t *world, const sim_options_t *options, ll_script_t *script)
{
    if (!sim_world_open(world, options, &script->shape)) return;
    ll_players_make(world, script);
    sim_world_run(world, TURNS, 0);
    explain_stuck(world);
}

/* ---- tests ---- */

static void random_worlds(void **state)
{
    static const uint32_t nranks[] = {1, 2, 2, 3, 3, 4, 5, 8};
    static ll_script_t script;
    uint64_t seed = env_number("XEP_TEST_SEED", 1), runs = env_number("XEP_TEST_RUNS", 1500);
    for (uint64_t i = 0; i < runs; i++) {
        sim_world_t world;
        sim_options_t options = {.simd = (xep_simd_t)(i % (simd_best() + 1u))};
        sim_world_init(&world, seed + i, *state);
        options_make(&world, &options, nranks[sim_below(&world, 8)]);
        ll_script_make(&world, &script, options.nranks);
        play(&world, &options, &script);
        world_end(&world);
    }
}

/* The same experts on 1, 2, 4 and 8 ranks: every token's sum has the same bits. */
static void any_number_of_ranks(void **state)
{
    enum { TOKENS = 16, HIDDEN = 200, RUNS = 12 };
    static ll_script_t script;
    static char sums[4][TOKENS * HIDDEN * 2], parts[8][TOKENS * HIDDEN * 2];
    for (uint64_t seed = 0; seed < RUNS; seed++) {
        for (uint32_t n = 0; n < 4; n++) {
            uint32_t nranks = 1u << n;
            sim_world_t world;
            sim_options_t options = {.simd = (xep_simd_t)((seed + n) % (simd_best() + 1u))};
            sim_world_init(&world, 1000 + seed * 4 + n, *state);
            options_make(&world, &options, nranks);
            script = (ll_script_t){.seed = seed, .global_tokens = 1, .slot_rows = UINT32_MAX};
            script.shape = (xep_shape_t){.nranks = nranks, .experts = 24, .topk = 5, .hidden = HIDDEN, .elem_bytes = 2,
                                         .combine_elem_bytes = 2, .slots = 1, .tokens = TOKENS / nranks};
            ll_call_t *call = ll_script_dispatch(&script, 0, UINT32_MAX);
            call->weights = 1;
            call->quant = XEP_QUANT_E4M3;
            ll_script_combine(&script, 0);
            if (sim_world_open(&world, &options, &script.shape)) {
                ll_players_make(&world, &script);
                for (uint32_t r = 0; r < nranks; r++) ll_player_of(&world.ranks[r])->result = parts[r];
                sim_world_run(&world, TURNS, 0);
            }
            for (uint32_t t = 0; t < TOKENS; t++)
                memcpy(sums[n] + t * HIDDEN * 2, parts[t % nranks] + t / nranks * HIDDEN * 2, HIDDEN * 2);
            world_end(&world);
            assert_memory_equal(sums[n], sums[0], sizeof sums[0]);
        }
    }
}

static uint32_t factorial(uint32_t n)
{
    return n < 2 ? 1 : n * factorial(n - 1);
}

/* Permutation number "number" of the handles 0 .. n - 1; the others follow. */
static void permute(uint32_t number, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < LL_HANDLES; i++) order[i] = i;
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
    static ll_script_t script;
    for (uint32_t number = 0; number < factorial(SLOTS); number++) {
        uint32_t orders[3][LL_HANDLES];
        sim_world_t world;
        sim_options_t options = {.simd = simd_best()};
        sim_world_init(&world, number, *state);
        options_make(&world, &options, 1 + number % 3);
        memset(options.maps, 1, sizeof options.maps);
        script = (ll_script_t){.seed = number, .slot_rows = UINT32_MAX};
        script.shape = (xep_shape_t){.nranks = options.nranks, .experts = 6, .topk = 3, .hidden = 40, .elem_bytes = 2,
                                     .combine_elem_bytes = 2, .slots = SLOTS, .tokens = 4};
        for (uint32_t h = 0; h < SLOTS; h++) ll_script_dispatch(&script, h, UINT32_MAX)->quant = (xep_quant_t)(h % 4);
        for (uint32_t h = 0; h < SLOTS; h++) ll_script_combine(&script, h);
        for (uint32_t h = 0; h < SLOTS; h++) ll_script_release(&script, h);
        for (uint32_t h = SLOTS; h < SLOTS + 3; h++) ll_script_dispatch(&script, h, UINT32_MAX);
        if (sim_world_open(&world, &options, &script.shape)) {
            ll_players_make(&world, &script);
            for (uint32_t r = 0; r < options.nranks; r++) {
                permute((number + r * 47) % factorial(SLOTS), SLOTS, orders[r]);
                ll_player_of(&world.ranks[r])->order = orders[r];
            }
            sim_world_run(&world, TURNS, 0);
            explain_stuck(&world);
        }
        world_end(&world);
    }
}

/* Whatever peers write into shared memory: an error or wrong rows, never a wild access (a sanitizer sees those). */
static void peers_that_lie(void **state)
{
    static ll_script_t script;
    uint64_t runs = env_number("XEP_TEST_RUNS", 600);
    for (uint64_t i = 0; i < runs; i++) {
        sim_world_t world;
        sim_options_t options = {.simd = simd_best(), .corrupt = 1};
        sim_world_init(&world, 500000 + i, *state);
        options_make(&world, &options, 1 + (uint32_t)sim_below(&world, 4));
        options.corrupt_bytes = sim_chance(&world, 50) ? 4096 : 65536;
        ll_script_make(&world, &script, options.nranks);
        script.unchecked = 1;
        if (sim_world_open(&world, &options, &script.shape)) {
            ll_players_make(&world, &script);
            sim_world_run(&world, 20000, 1);
        }
        world_end(&world);
    }
}

static xep_status_t begin_dispatch(sim_rank_t *rank, const int32_t *idx, uint32_t tokens, uint64_t capacity, xep_op_t *op)
{
    static const uint16_t x[4 * 16];
    static sim_waits_t waits[2];
    static xep_dispatch_args_t args[2];
    static xep_recv_t recv[2];
    args[rank->index] = (xep_dispatch_args_t){.size = sizeof args[0], .tokens = tokens, .x = x, .x_stride = 32, .dtype = XEP_BF16, .hidden = 16,
                                              .topk_idx = idx, .topk_idx_stride = 4, .topk_idx_dtype = XEP_INT32, .topk = 1, .capacity = capacity,
                                              .expert_alignment = 1, .arrangement = XEP_ROWS_BY_EXPERT_COMPACT};
    *op = (xep_op_t){.kind = XEP_OP_DISPATCH, .cached_slot = XEP_NO_SLOT, .epoch = 1, .dispatch = &args[rank->index], .recv = &recv[rank->index],
                     .state = calloc(1, rank->world->plugin->op_size), .late = sim_late(&waits[rank->index])};
    return rank->world->plugin->dispatch(rank->mode, op);
}

/* The notice announces one row of rank 1, its indices then name four of rank 0: more than the caller, or a slot, has room for. */
static void more_than_announced(void **state)
{
    static const int32_t announced[4] = {-1, -1, -1, 4}, sent[4] = {0, 1, 2, 3};
    for (int of_slot = 0; of_slot < 2; of_slot++) {
        const xep_shape_t shape = {.nranks = 2, .experts = 8, .topk = 1, .hidden = 16, .elem_bytes = 2, .combine_elem_bytes = 2,
                                   .slots = 1, .tokens = 4, .recv_rows = of_slot ? 2 : 8};
        sim_world_t world;
        sim_options_t options = {.nranks = 2, .threads = 1, .simd = simd_best(), .inflight = 1};
        xep_op_t ops[2];
        sim_world_init(&world, 900000, *state);
        memset(options.maps, 1, sizeof options.maps);
        assert_true(sim_world_open(&world, &options, &shape));
        assert_int_equal(begin_dispatch(&world.ranks[1], announced, 4, of_slot ? 0 : 2, &ops[1]), XEP_OK);
        void *parcel = memmem(world.ranks[1].env.heap, world.ranks[1].env.heap_bytes, announced, sizeof announced);
        assert_non_null(parcel);
        memcpy(parcel, sent, sizeof sent);
        assert_int_equal(begin_dispatch(&world.ranks[0], announced, 0, of_slot ? 0 : 2, &ops[0]), XEP_OK);
        assert_int_equal(world.plugin->progress(world.ranks[0].mode, &ops[0]), XEP_ERR_PROTOCOL);
        assert_non_null(strstr(sim_reason(&world.ranks[0], &ops[0]), "announced"));
        free(ops[0].state);
        free(ops[1].state);
        sim_world_close(&world);
    }
}

/* After a reset the memory is as it was left, with the words of operations that never ended. */
static void reset_in_the_middle(void **state)
{
    static ll_script_t script;
    for (uint64_t i = 0; i < 150; i++) {
        sim_world_t world;
        sim_options_t options = {.simd = simd_best()};
        sim_world_init(&world, 700000 + i, *state);
        options_make(&world, &options, 1 + (uint32_t)sim_below(&world, 4));
        ll_script_make(&world, &script, options.nranks);
        if (sim_world_open(&world, &options, &script.shape)) {
            ll_players_make(&world, &script);
            sim_world_run(&world, sim_below(&world, 3000), 1);
            ll_players_free(&world);
            script.ncalls = 0; /* epochs and turns go on */
            ll_call_t *call = ll_script_dispatch(&script, 0, UINT32_MAX);
            ll_script_expect(&script, call);
            if (call->expect == XEP_OK) ll_script_combine(&script, 0);
            if (sim_world_reopen(&world)) {
                ll_players_make(&world, &script);
                for (uint32_t r = 0; r < options.nranks; r++) memset(ll_player_of(&world.ranks[r])->turn_done, 1, LL_CALLS);
                sim_world_run(&world, TURNS, 0);
                explain_stuck(&world);
            }
        }
        world_end(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_worlds), cmocka_unit_test(any_number_of_ranks), cmocka_unit_test(every_order),
        cmocka_unit_test(peers_that_lie), cmocka_unit_test(more_than_announced),
        cmocka_unit_test(reset_in_the_middle),
    };
    return cmocka_run_group_tests_name("sim_ll", tests, load, NULL);
}
