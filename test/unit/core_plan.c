/* SPDX-License-Identifier: BSD-3-Clause */

/* Plans of balance: all selections are served, by ranks that have the expert, and none has more than it should. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hash.h"
#include "owners.h"
#include "plan.h"
#include "unit.h"

enum { MOST_EXPERTS = 400, MOST_RANKS = 70, TIMED = 40 };

typedef struct world {
    xep_instances_t instances;
    xep_planner_t planner;
    uint32_t *counts; /* [R][E] */
    const uint32_t *rows[MOST_RANKS];
} world_t;

static void open_world(world_t *world, const xep_buffer_params_t *params, uint32_t nranks)
{
    assert_int_equal(xep_instances_check(params, nranks), XEP_OK);
    assert_int_equal(xep_instances_open(params, nranks, &world->instances), XEP_OK);
    assert_int_equal(xep_planner_open(&world->instances, params->experts, nranks, xep_instances_are_whole(params),
                                      &world->planner),
                     XEP_OK);
    world->counts = calloc((size_t)nranks * params->experts, sizeof *world->counts);
    assert_non_null(world->counts);
    for (uint32_t r = 0; r < nranks; r++) world->rows[r] = world->counts + (size_t)r * params->experts;
}

static void close_world(world_t *world)
{
    xep_planner_close(&world->planner);
    xep_instances_close(&world->instances);
    free(world->counts);
}

/* kind 0: few and uneven; 1: one expert; 2: nothing; 3: as zipf 1 has it; 4: one rank alone has any */
static void fill_counts(world_t *world, int kind, uint32_t seed)
{
    const uint32_t experts = world->planner.experts, nranks = world->planner.nranks;
    for (uint32_t r = 0; r < nranks; r++)
        for (uint32_t e = 0; e < experts; e++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t *count = &world->counts[r * experts + e];
            *count = (seed >> 16) % 7 * ((seed >> 24) % 3);
            if (kind == 1) *count = e == experts / 2 ? 5 + r % 3 : 0;
            if (kind == 2) *count = 0;
            if (kind == 3) *count = 4096 / (1 + (e * 7 + 3) % experts) + (seed >> 30);
            if (kind == 4 && r != nranks / 2) *count = 0;
        }
}

/* Parts of an expert add up, on instances of it; those of each rank to what it has; loads are what is said. */
static void check(world_t *world)
{
    const xep_planner_t *planner = &world->planner;
    uint64_t served[MOST_RANKS] = {0}, most = 0, share[2 * MOST_RANKS];
    for (uint32_t e = 0; e < planner->experts; e++) {
        const xep_part_t *parts = planner->parts + planner->first[e];
        uint64_t total = 0, before = 0, left[2 * MOST_RANKS];
        for (uint32_t i = 0; i < planner->count[e]; i++) {
            assert_true(parts[i].instance >= world->instances.begin[e]);
            assert_true(parts[i].instance < world->instances.begin[e + 1]);
            assert_int_equal(parts[i].rank, world->instances.rank[parts[i].instance]);
            assert_true(i == 0 || parts[i].instance != parts[i - 1].instance);
            served[parts[i].rank] += left[i] = parts[i].rows;
            total += parts[i].rows;
        }
        assert_int_equal(total, planner->total[e]);
        for (uint32_t r = 0; r < planner->nranks; r++) {
            uint64_t sum = 0;
            assert_true(planner->count[e] < 2 || xep_plan_before(planner, world->rows, e, r) == before);
            before += xep_plan_share(planner, world->rows, e, r, before, share);
            for (uint32_t i = 0; i < planner->count[e]; i++) {
                assert_true(share[i] <= left[i]);
                left[i] -= share[i];
                sum += share[i];
            }
            assert_int_equal(sum, world->counts[r * planner->experts + e]);
        }
    }
    for (uint32_t r = 0; r < planner->nranks; r++)
        if (served[r] > most) most = served[r];
    assert_int_equal(most, planner->most_after);
}

static void run_plan(world_t *world, xep_balance_t rule)
{
    xep_plan_count(&world->planner, world->rows);
    if (rule == XEP_BALANCE_EVEN) xep_plan_even(&world->planner);
    else xep_plan_least_loaded(&world->planner);
}

TEST(even_is_even_for_every_routing)
{
    static const uint32_t shapes[][2] = {{1, 1}, {7, 3}, {3, 7}, {64, 8}, {65, 9}, {384, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int kind = 0; kind < 5; kind++) {
            uint32_t owners[MOST_EXPERTS];
            xep_buffer_params_t params = {.experts = shapes[i][0], .topk = 1, .balance = XEP_BALANCE_EVEN};
            world_t world;
            for (uint32_t e = 0; e < shapes[i][0]; e++) owners[e] = e * e % shapes[i][1] / 2;
            params.owners = kind % 2 == 0 ? owners : NULL;
            open_world(&world, &params, shapes[i][1]);
            fill_counts(&world, kind, (uint32_t)i + 1);
            run_plan(&world, XEP_BALANCE_EVEN);
            check(&world);
            assert_int_equal(world.planner.most_after, (world.planner.selections + shapes[i][1] - 1) / shapes[i][1]);
            close_world(&world);
        }
}

/* Of two ranks with the busy expert, the one that has nothing else takes as much as makes them equal. */
TEST(least_loaded_fills_up_the_ranks_of_an_expert)
{
    xep_replica_t replicas[] = {{1, 2}, {0, 1}, {1, 1}};
    xep_buffer_params_t params = {.experts = 3,
                                  .topk = 1,
                                  .replicas = replicas,
                                  .nreplicas = 3,
                                  .balance = XEP_BALANCE_LEAST_LOADED};
    uint32_t owners[] = {0, 0, 2};
    world_t world;
    params.owners = owners;
    open_world(&world, &params, 3);
    for (int kind = 0; kind < 5; kind++) {
        fill_counts(&world, kind, 7);
        run_plan(&world, XEP_BALANCE_LEAST_LOADED);
        check(&world);
        assert_true(world.planner.most_after <= world.planner.most_before);
    }
    memset(world.counts, 0, 9 * sizeof *world.counts);
    world.counts[1] = 100, world.counts[3 + 2] = 10; /* expert 1: all ranks; expert 2: rank 2 alone */
    run_plan(&world, XEP_BALANCE_LEAST_LOADED);
    check(&world);
    assert_int_equal(world.planner.most_before, 100);
    assert_int_equal(world.planner.most_after, 37); /* 110 selections on 3 ranks */
    close_world(&world);
}

/* ---- ranks that have some experts, and ranks that are out ---- */

enum { SMALL_EXPERTS = 11, SMALL_RANKS = 6, TRIALS = 400 };

/* Of all plans of the trials: one that is made faster stays the same plan. */
static const uint64_t DIGEST = UINT64_C(0xda43232c7c0aadb2);

static uint64_t add_plan(uint64_t sum, const xep_planner_t *planner)
{
    for (uint32_t e = 0; e < planner->experts; e++)
        for (uint32_t i = 0; i < planner->count[e]; i++) {
            const xep_part_t *part = &planner->parts[planner->first[e] + i];
            sum = xep_hash_word(xep_hash_word(sum, part->instance), part->rows);
        }
    return sum;
}

/* The ranks that are in and have the expert, a bit each. */
static uint32_t servers(const world_t *world, uint32_t expert)
{
    uint32_t set = 0;
    for (uint32_t i = world->instances.begin[expert]; i < world->instances.begin[expert + 1]; i++)
        if (!xep_plan_is_out(&world->planner, world->instances.rank[i])) set |= 1u << world->instances.rank[i];
    return set;
}

/* By Hall's theorem: any set of ranks has at least what only they can serve. */
static uint64_t least_of_the_busiest(const world_t *world)
{
    uint64_t bound = 0;
    for (uint32_t set = 1; set < 1u << world->planner.nranks; set++) {
        const uint32_t count = (uint32_t)__builtin_popcount(set);
        uint64_t forced = 0;
        for (uint32_t e = 0; e < world->planner.experts; e++)
            if (servers(world, e) != 0 && (servers(world, e) & ~set) == 0) forced += world->planner.total[e];
        if ((forced + count - 1) / count > bound) bound = (forced + count - 1) / count;
    }
    return bound;
}

/* Nobody who is out gets rows of an expert that others have. Returns the load of the busiest rank that is in. */
static uint64_t busiest_in(const world_t *world)
{
    const xep_planner_t *planner = &world->planner;
    uint64_t served[SMALL_RANKS] = {0}, most = 0;
    for (uint32_t e = 0; e < planner->experts; e++)
        for (uint32_t i = 0; i < planner->count[e]; i++) {
            const xep_part_t *part = &planner->parts[planner->first[e] + i];
            if (servers(world, e) == 0) continue;
            assert_false(xep_plan_is_out(planner, part->rank));
            served[part->rank] += part->rows;
            if (served[part->rank] > most) most = served[part->rank];
        }
    return most;
}

static uint32_t random_of(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 12) % n;
}

static uint32_t deal_replicas(xep_replica_t *replicas, const uint32_t *owners, uint32_t nranks, uint32_t *seed)
{
    uint32_t count = 0, most = 1 + random_of(seed, 4);
    for (uint32_t e = 0; e < SMALL_EXPERTS; e++)
        for (uint32_t r = 0; r < nranks; r++)
            if (r != owners[e] && random_of(seed, 4) < most) replicas[count++] = (xep_replica_t){e, r};
    return count;
}

TEST(even_is_as_even_as_replicas_and_ranks_that_are_in_allow)
{
    xep_replica_t replicas[SMALL_EXPERTS * SMALL_RANKS];
    uint32_t owners[SMALL_EXPERTS], seed = 1, better = 0;
    uint64_t sum = XEP_HASH_BEGIN;
    for (int trial = 0; trial < TRIALS; trial++) {
        const uint32_t nranks = 1 + random_of(&seed, SMALL_RANKS);
        xep_buffer_params_t params = {.experts = SMALL_EXPERTS, .topk = 1, .balance = XEP_BALANCE_EVEN};
        uint8_t out[SMALL_RANKS] = {0};
        world_t world;
        for (uint32_t e = 0; e < SMALL_EXPERTS; e++) owners[e] = random_of(&seed, nranks);
        params.owners = owners, params.replicas = replicas;
        if (trial % 4 != 0) params.nreplicas = deal_replicas(replicas, owners, nranks, &seed); /* else all have all */
        open_world(&world, &params, nranks);
        fill_counts(&world, trial % 5, seed);
        for (uint32_t r = 0; trial % 3 != 0 && r < nranks; r++) out[r] = r != nranks / 2 && random_of(&seed, 3) == 0;
        for (uint32_t r = 0; r < nranks; r++)
            if (out[r]) memset(world.counts + r * SMALL_EXPERTS, 0, SMALL_EXPERTS * sizeof *world.counts);
        world.planner.out = trial % 3 != 0 ? out : NULL;
        run_plan(&world, XEP_BALANCE_EVEN);
        check(&world);
        sum = add_plan(sum, &world.planner);
        const uint64_t even = busiest_in(&world);
        assert_int_equal(even, least_of_the_busiest(&world));
        if (params.nreplicas != 0) {
            run_plan(&world, XEP_BALANCE_LEAST_LOADED);
            check(&world);
            sum = add_plan(sum, &world.planner);
            assert_true(busiest_in(&world) >= even);
            better += busiest_in(&world) > even;
        }
        close_world(&world);
    }
    assert_true(better > 0); /* or EVEN would do nothing that LEAST_LOADED does not */
    assert_int_equal(sum, DIGEST);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Counts of some shape: microseconds of the sums alone, and with the plan. */
static void time_plan(const xep_buffer_params_t *params, double *sums_p, double *plan_p)
{
    double sums = 1e9, plan = 1e9;
    world_t world;
    open_world(&world, params, 64);
    fill_counts(&world, 3, 1);
    for (int i = 0; i < TIMED; i++) {
        const double begin = now();
        xep_plan_count(&world.planner, world.rows);
        const double counted = now();
        xep_plan_even(&world.planner);
        const double end = now();
        if (counted - begin < sums) sums = counted - begin;
        if (end - begin < plan) plan = end - begin;
    }
    *sums_p = sums, *plan_p = plan;
    close_world(&world);
}

/* 20 us is the goal, of E = 384 and R = 64; a plan takes no more than a few of the sums that it begins with. */
TEST(a_plan_takes_no_longer_than_a_few_of_its_sums)
{
    xep_buffer_params_t params = {.experts = 384, .topk = 8, .balance = XEP_BALANCE_EVEN};
    xep_replica_t replicas[128];
    double sums, whole, some;
    time_plan(&params, &sums, &whole);
    for (uint32_t i = 0; i < 128; i++) replicas[i] = (xep_replica_t){i * 3, (i * 29 + 40) % 64};
    for (uint32_t i = 0; i < 128; i++)
        if (replicas[i].rank == replicas[i].expert / 6) replicas[i].rank = (replicas[i].rank + 1) % 64;
    params.replicas = replicas, params.nreplicas = 128;
    time_plan(&params, &sums, &some);
    print_message("# counts %.1f us, with the plan %.1f us, of 128 replicas %.1f us\n", sums, whole, some);
    assert_true(whole < 4 * sums);
}
