/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * One of three ranks dies, or is stopped for long, at every point of a few schedules (sim_death.h), in both modes:
 *   fail   the others end what they can, with the right bytes, and wait, in the end, for the one that is gone
 *   mask   the core's members go on without it: all others finish, with what the oracle has without that rank, and all
 *          tell the same of every operation
 * One that goes on finds everything as it was, or that it is out: then it ends nothing with success, and stores no row.
 * And two of four ranks, the second one at any time before, while or after the others go on without the first.
 *
 * make check plays some of the points, evenly; XEP_TEST_RUNS=0 plays all, another number so many of each kind.
 *
 * limit: 240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sim_cases.h"
#include "sim_death.h"
#include "sim_members.h"

enum { RANKS = 3, RANKS_OF_TWO = 4 /* deaths */, POINTS = 18, SECONDS = 2, PATIENT_TURNS = 4000 };

static xep_shape_t shape_of(uint32_t nranks)
{
    return (xep_shape_t){.nranks = nranks,
                         .experts = 5,
                         .topk = 2,
                         .hidden = 9,
                         .elem_bytes = 2,
                         .combine_elem_bytes = 2,
                         .slots = 2,
                         .tokens = 2};
}

/* ---- schedules ---- */

typedef void (*schedule_fn)(script_t *script);

static void one_after_the_other(script_t *script)
{
    script_dispatch(script, 0, SCRIPT_NO_HANDLE)->weights = 1;
    script_combine(script, 0)->weights = 1;
    script_release(script, 0);
    script_dispatch(script, 1, SCRIPT_NO_HANDLE);
    script_combine(script, 1);
    script_release(script, 1);
}

/* Two in flight, the routing used again, a slot and an input used again. */
static void overlapping(script_t *script)
{
    script_dispatch(script, 0, SCRIPT_NO_HANDLE);
    script_dispatch(script, 1, 0);
    script_combine(script, 0);
    script_combine(script, 1);
    script_combine(script, 0);
    script_release(script, 0);
    script_dispatch(script, 2, 1);
    script_combine(script, 2);
    script_release(script, 1);
    script_release(script, 2);
}

/* Dispatches alone: their turns come round. */
static void dispatches(script_t *script)
{
    for (uint32_t i = 0; i < 5; i++) {
        script_dispatch(script, i, SCRIPT_NO_HANDLE)->route = i % 2 ? ROUTE_ONE_EXPERT : ROUTE_UNIFORM;
        if (i % 2) script_release(script, i - 1);
        if (i % 2) script_release(script, i);
    }
    script_combine(script, 4);
}

/* ---- what must be true in the end ---- */

/* Whether a rank waits for the one that is gone, or for one that does; visited: a bit for each rank. */
static int waits_for_gone(const sim_world_t *world, uint32_t rank, uint32_t *visited)
{
    const script_player_t *player = script_player(&world->ranks[rank]);
    uint32_t flights = 0;
    *visited |= 1u << rank;
    for (uint32_t h = 0; h < SCRIPT_HANDLES; h++) {
        const script_flight_t *flight = player->handles[h].flight;
        if (flight == NULL) continue;
        flights++;
        for (uint32_t i = 0; i < flight->op.late.count; i++) {
            uint32_t other = flight->op.late.ranks[i];
            if (other == world->death->rank) return 1;
            if (!(*visited >> other & 1) && waits_for_gone(world, other, visited)) return 1;
        }
    }
    return flights == 0; /* the next cannot begin: a slot, or an input, is still in use there */
}

/* Where operations need all ranks, whoever has not finished can say whose fault that is. */
static void check_blame(const sim_run_t *run)
{
    sim_world_t *world = (sim_world_t *)&run->world;
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t visited = 0;
        if (world->ranks[r].dead || script_player_is_finished(&world->ranks[r])) continue;
        if (!waits_for_gone(world, r, &visited))
            sim_fail(world, "rank %u waits, and not for rank %u, which died", r, world->death->rank);
    }
}

/* Nobody that lives was left out by mistake. */
static void check_out(const sim_run_t *run)
{
    sim_world_t *world = (sim_world_t *)&run->world;
    uint32_t nranks = world->options.nranks;
    for (uint32_t r = 0; r < nranks; r++) {
        const uint8_t *out = sim_members_out(&world->ranks[r]);
        if (sim_death_of(world, r) != NULL) continue;
        if (world->ranks[r].is_out) sim_fail(world, "rank %u is out, and lives", r);
        for (uint32_t other = 0; other < nranks; other++)
            if (out[other] && sim_death_of(world, other) == NULL)
                sim_fail(world, "rank %u left out rank %u, which lives", r, other);
    }
}

/* ---- a run ---- */

/** What of it is tried at each point. */
typedef struct fate {
    const char *name;
    int goes_on; /* the others do: XEP_ON_FAILURE_MASK */
    uint64_t delay;
    int is_given_up;
} fate_t;

static const fate_t fates[] = {
    {"killed, fail", 0, 0, 0},
    {"stopped, fail", 0, 600, 0},
    {"killed, mask", 1, 0, 0},
    {"stopped, mask", 1, 600, 0},
    {"stopped and left out, mask", 1, 250, 1},
    {"stopped until all have finished, mask", 1, 4000, 1},
};

/* fate: of all deaths. */
static void play(void **state, uint64_t seed, schedule_fn schedule, const fate_t *fate, sim_death_t *death)
{
    uint32_t nranks = death->next == NULL ? RANKS : RANKS_OF_TWO;
    sim_run_t *run = sim_run_begin(state, seed, nranks);
    xep_shape_t shape = shape_of(nranks);
    for (sim_death_t *d = death; d != NULL; d = d->next) {
        d->delay = fate->delay;
        d->is_given_up = fate->is_given_up;
    }
    memset(run->options.node, 0, sizeof run->options.node);
    run->options.threads = 2;
    run->options.spoiled = 1; /* heaps of whole pages: all stores are seen */
    run->world.death = death;
    run->world.around = fate->goes_on ? &sim_members : NULL;
    script_begin(&run->world, run->mode, &run->script, &shape);
    schedule(&run->script);
    if (sim_run_open(run)) {
        int may_wait = fate->delay == 0 && !fate->goes_on;
        sim_run_play(run, may_wait ? PATIENT_TURNS : SIM_TURNS, may_wait);
        if (fate->goes_on) check_out(run);
        else check_blame(run);
    }
    if (run->world.failed) {
        size_t used = strlen(run->world.failure);
        for (const sim_death_t *d = death; d != NULL && used < sizeof run->world.failure; d = d->next)
            used += (size_t)snprintf(run->world.failure + used, sizeof run->world.failure - used,
                                     "\n# rank %u is %s at point %llu", d->rank, fate->name, (unsigned long long)d->at);
    }
    sim_run_end(run);
}

static uint64_t points_wanted(void)
{
    const char *text = getenv("XEP_TEST_RUNS");
    return text == NULL ? POINTS : strtoull(text, NULL, 0);
}

/* The run is the same up to the point, as all is drawn from the seed. Points that are skipped differ from kind to kind.
 */
static void play_points(void **state, uint64_t seed, schedule_fn schedule, const fate_t *fate, uint32_t rank)
{
    sim_death_t death = {.rank = rank, .at = SIM_NEVER};
    play(state, seed, schedule, fate, &death);
    uint64_t count = death.points, wanted = points_wanted();
    uint64_t step = wanted == 0 || wanted >= count ? 1 : count / wanted;
    assert_in_range(count, 10, 100000);
    for (uint64_t at = (seed + rank) % step; at < count; at += step) {
        death = (sim_death_t){.rank = rank, .at = at};
        play(state, seed, schedule, fate, &death);
        assert_true(death.is_over);
    }
}

static void play_all(void **state, schedule_fn schedule)
{
    const char *text = getenv("XEP_TEST_SEED");
    uint64_t seed = text == NULL ? 1 : strtoull(text, NULL, 0);
    for (size_t i = 0; i < sizeof fates / sizeof fates[0]; i++)
        for (uint32_t r = 0; r < RANKS; r++) play_points(state, seed + i, schedule, &fates[i], r);
}

/* At points of the first one some of the second one's, which is any of the others, and may have fewer by then. */
static void play_two(void **state, uint64_t seed, schedule_fn schedule, const fate_t *fate, uint32_t rank)
{
    sim_death_t second = {.rank = (rank + 1 + (uint32_t)seed % (RANKS_OF_TWO - 1)) % RANKS_OF_TWO, .at = SIM_NEVER};
    sim_death_t first = {.next = &second, .rank = rank, .at = SIM_NEVER};
    play(state, seed, schedule, fate, &first);
    uint64_t count = first.points, count_too = second.points, wanted = (points_wanted() + 2) / 3;
    uint64_t step = wanted == 0 || wanted >= count ? 1 : count / wanted;
    assert_in_range(count, 10, 100000);
    for (uint64_t at = (seed + rank) % step; at < count; at += step)
        for (uint64_t i = 0; i < SECONDS; i++) {
            uint64_t at_too = sim_hash(seed, rank, at, i, 0) % count_too;
            second = (sim_death_t){.rank = second.rank, .at = at_too};
            first = (sim_death_t){.next = &second, .rank = rank, .at = at};
            play(state, seed, schedule, fate, &first);
            assert_true(first.is_over || second.is_over);
        }
}

static void deaths_of_two(void **state)
{
    static const schedule_fn schedules[] = {one_after_the_other, overlapping, dispatches};
    const char *text = getenv("XEP_TEST_SEED");
    uint64_t seed = text == NULL ? 1 : strtoull(text, NULL, 0);
    for (size_t i = 0; i < sizeof fates / sizeof fates[0]; i++)
        for (uint32_t r = 0; r < RANKS_OF_TWO && fates[i].goes_on; r++)
            for (size_t s = 0; s < 3; s++) play_two(state, seed + i + r + s, schedules[s], &fates[i], r);
}

static void deaths_one_after_the_other(void **state)
{
    play_all(state, one_after_the_other);
}

static void deaths_overlapping(void **state)
{
    play_all(state, overlapping);
}

static void deaths_dispatches(void **state)
{
    play_all(state, dispatches);
}

int main(void)
{
    setenv("XEP_LOG", "error", 1); /* that a rank is out is no news here */
    sim_case_t normal = sim_case_load(&sim_normal), ll = sim_case_load(&sim_ll);
    const struct CMUnitTest tests[] = {
        {.name = "normal_one_after_the_other", .test_func = deaths_one_after_the_other, .initial_state = &normal},
        {.name = "normal_overlapping", .test_func = deaths_overlapping, .initial_state = &normal},
        {.name = "normal_dispatches", .test_func = deaths_dispatches, .initial_state = &normal},
        {.name = "normal_of_two", .test_func = deaths_of_two, .initial_state = &normal},
        {.name = "ll_one_after_the_other", .test_func = deaths_one_after_the_other, .initial_state = &ll},
        {.name = "ll_overlapping", .test_func = deaths_overlapping, .initial_state = &ll},
        {.name = "ll_dispatches", .test_func = deaths_dispatches, .initial_state = &ll},
        {.name = "ll_of_two", .test_func = deaths_of_two, .initial_state = &ll},
    };
    return cmocka_run_group_tests_name("sim_deaths", tests, NULL, NULL);
}
