/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * One of three ranks dies, or is stopped for long, at every point of a few schedules (sim_death.h), in both modes,
 * where all map one another, none does, or two of them, and by nodes:
 *   fail   the others end what they can, with the right bytes, and wait, in the end, for the one that is gone
 *   mask   the core's members go on without it: all others finish, with what the oracle has without that rank, and all
 *          tell the same of every operation; over the wire, all have agreed on the same
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

enum { RANKS = 3, RANKS_OF_TWO = 4 /* deaths */, POINTS = 18, POINTS_OF_WIRE = 3, SECONDS = 2, PATIENT_TURNS = 4000 };

static xep_shape_t shape_of(uint32_t nranks)
{
    return (xep_shape_t){.nranks = nranks, .slots = 2, SIM_SHAPE(5, 2, 9, 2)};
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

/* Dispatches alone: their turns come round. Arrays of a fixed size, where rows that nobody sent select no expert. */
static void dispatches(script_t *script)
{
    for (uint32_t i = 0; i < 5; i++) {
        script_call_t *call = script_dispatch(script, i, SCRIPT_NO_HANDLE);
        call->route = i % 2 ? ROUTE_ONE_EXPERT : ROUTE_UNIFORM;
        for (uint32_t r = 0; r < script->shape.nranks; r++) call->capacity[r] = script->slot_rows;
        if (i % 2) script_release(script, i - 1);
        if (i % 2) script_release(script, i);
    }
    script_combine(script, 4);
}

/* ---- what must be true in the end ---- */

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

/* Whoever tells that it is with a rank knows that all have agreed on that, or will: it has concluded. */
static void check_agreed(const sim_run_t *run)
{
    sim_world_t *world = (sim_world_t *)&run->world;
    for (uint32_t i = 0; i < run->script.ncalls; i++) {
        const script_call_t *call = &run->script.calls[i];
        for (uint32_t r = 0; call->is_told && r < world->options.nranks; r++)
            for (uint32_t s = 0; s < world->options.nranks; s++)
                if (call->with[r] && sim_death_of(world, s) == NULL &&
                    !sim_members_is_with(&world->ranks[s], r, call->epoch))
                    sim_fail(world, "call %u: rank %u is out of it, says rank %u, and another one had it", i, r, s);
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
    {"stopped until all have finished, mask", 1, SIM_FOR_EVER, 1},
};

/** Fates that differ only from the point on. */
typedef struct kind {
    size_t first, end; /* of fates */
} kind_t;

enum { FAIL, MASK, KINDS };

static const kind_t kinds[] = {[FAIL] = {0, 2}, [MASK] = {2, sizeof fates / sizeof fates[0]}};

/** Who maps whom. */
typedef struct hosts {
    const char *name;
    uint32_t node[RANKS_OF_TWO];
    uint64_t feed_rows; /* as in sim_options_t */
    uint64_t patience;  /* times PATIENT_TURNS until all that can happen has */
    int flat;           /* likewise */
} hosts_t;

static const hosts_t mapped = {.name = "all mapped", .patience = 1};
static const hosts_t over_wire[] = {{.name = "none mapped", .node = {0, 1, 2, 3}, .patience = 3},
                                    {.name = "two hosts", .node = {0, 0, 1, 1}, .patience = 3}};
static const hosts_t by_nodes[] =
    {{.name = "by nodes", .node = {0, 0, 1, 1}, .feed_rows = 2, .patience = 5},
     {.name = "by nodes, the other way", .node = {0, 1, 1, 0}, .feed_rows = 2, .patience = 5}};
static const hosts_t little_room[] =
    {{.name = "none mapped, crowded", .node = {0, 1, 2, 3}, .feed_rows = 1, .patience = 5, .flat = 1},
     {.name = "two hosts, crowded", .node = {0, 0, 1, 1}, .feed_rows = 2, .patience = 5, .flat = 1}};

typedef struct trial {
    uint64_t seed;
    schedule_fn schedule;
    const fate_t *fate; /* of all deaths */
    const hosts_t *hosts;
} trial_t;

static void describe_failure(sim_world_t *world, const trial_t *trial)
{
    size_t used = strlen(world->failure), room = sizeof world->failure;
    for (const sim_death_t *d = world->death; d != NULL && used < room; d = d->next)
        used += (size_t)snprintf(world->failure + used, room - used, "\n# rank %u is %s at point %llu, %s", d->rank,
                                 trial->fate->name, (unsigned long long)d->at, trial->hosts->name);
}

static uint64_t heard_through; /* sentences that said so, over all trials */

static void check_end(sim_run_t *run, const trial_t *trial)
{
    if (!trial->fate->goes_on) sim_blame_check(&run->world);
    else check_out(run);
    if (trial->fate->goes_on && trial->hosts != &mapped) check_agreed(run);
    if (trial->hosts->feed_rows != 0 && !trial->hosts->flat && trial->fate->delay == 0)
        heard_through += sim_blame_check_names(&run->world);
}

static void play(void **state, const trial_t *trial, sim_death_t *death)
{
    uint32_t nranks = death->next == NULL ? RANKS : RANKS_OF_TWO;
    sim_run_t *run = sim_run_begin(state, trial->seed, nranks);
    xep_shape_t shape = shape_of(nranks);
    for (sim_death_t *d = death; d != NULL; d = d->next) {
        d->delay = trial->fate->delay;
        d->is_given_up = trial->fate->is_given_up;
    }
    memcpy(run->options.node, trial->hosts->node, nranks * sizeof trial->hosts->node[0]);
    run->options.threads = 2;
    run->options.spoiled = 1; /* heaps of whole pages: all stores are seen */
    run->options.masks = trial->fate->goes_on;
    run->options.feed_rows = trial->hosts->feed_rows;
    run->options.flat = trial->hosts->flat;
    run->world.death = death;
    run->world.around = trial->fate->goes_on ? &sim_members : NULL;
    script_begin(&run->world, run->mode, &run->script, &shape);
    trial->schedule(&run->script);
    if (sim_run_open(run)) {
        int may_wait = trial->fate->delay == 0 && !trial->fate->goes_on;
        sim_run_play(run, may_wait ? PATIENT_TURNS * trial->hosts->patience : SIM_TURNS, may_wait);
        check_end(run, trial);
    }
    if (run->world.failed) describe_failure(&run->world, trial);
    sim_run_end(run);
}

static uint64_t points_wanted(const hosts_t *hosts)
{
    const char *text = getenv("XEP_TEST_RUNS");
    if (text != NULL) return strtoull(text, NULL, 0);
    return sim_few_if_brief(hosts == &mapped ? POINTS : POINTS_OF_WIRE);
}

static uint64_t first_seed(void)
{
    const char *text = getenv("XEP_TEST_SEED");
    return text == NULL ? 1 : strtoull(text, NULL, 0);
}

/*
 * All fates of a kind, which are the same run up to the point, as all is drawn from the seed. Points that are skipped
 * differ from fate to fate.
 */
static void play_points(void **state, trial_t *trial, uint32_t rank, const kind_t *kind)
{
    sim_parts_t parts = {0};
    sim_death_t death = {.rank = rank, .at = SIM_NEVER, .parts = &parts};
    trial->fate = &fates[kind->first];
    play(state, trial, &death);
    uint64_t count = death.points, wanted = points_wanted(trial->hosts);
    uint64_t step = wanted == 0 || wanted >= count ? 1 : count / wanted;
    assert_in_range(count, 10, 100000);
    for (size_t f = kind->first; f < kind->end; f++) {
        trial->fate = &fates[f];
        for (uint64_t at = (trial->seed + rank + f) % step; at < count; at += step) {
            death = (sim_death_t){.rank = rank, .at = at, .parts = &parts};
            play(state, trial, &death);
            assert_true(death.is_over);
        }
    }
    free(parts.ends);
}

static void play_all(void **state, schedule_fn schedule, const hosts_t *hosts, size_t nhosts, size_t nkinds)
{
    for (size_t k = 0; k < nkinds; k++)
        for (size_t n = 0; n < nhosts; n++)
            for (uint32_t r = 0; r < RANKS; r++)
                play_points(state, &(trial_t){first_seed() + k + 2 * n + 4 * r, schedule, NULL, &hosts[n]}, r,
                            &kinds[k]);
}

/* At points of the first one some of the second one's, which is any of the others, and may have fewer by then. */
static void play_two(void **state, trial_t *trial, uint32_t rank)
{
    uint64_t seed = trial->seed;
    uint32_t other = (rank + 1 + (uint32_t)seed % (RANKS_OF_TWO - 1)) % RANKS_OF_TWO;
    sim_parts_t parts = {0}, parts_too = {0};
    sim_death_t second = {.rank = other, .at = SIM_NEVER, .parts = &parts_too};
    sim_death_t first = {.next = &second, .rank = rank, .at = SIM_NEVER, .parts = &parts};
    trial->fate = &fates[kinds[MASK].first];
    play(state, trial, &first);
    uint64_t count = first.points, count_too = second.points, wanted = (points_wanted(trial->hosts) + 2) / 3;
    uint64_t step = wanted == 0 || wanted >= count ? 1 : count / wanted;
    assert_in_range(count, 10, 100000);
    for (size_t f = kinds[MASK].first; f < kinds[MASK].end; f++) {
        trial->fate = &fates[f];
        /* of two that live two halves are left, and that with rank 0 goes on */
        if (trial->hosts != &mapped && trial->fate->is_given_up && (rank == 0 || other == 0)) continue;
        for (uint64_t at = (seed + rank + f) % step; at < count; at += step)
            for (uint64_t i = 0; i < SECONDS; i++) {
                uint64_t at_too = sim_hash(seed + f, rank, at, i, 0) % count_too;
                second = (sim_death_t){.rank = other, .at = at_too, .parts = &parts_too};
                first = (sim_death_t){.next = &second, .rank = rank, .at = at, .parts = &parts};
                play(state, trial, &first);
                assert_true(first.is_over || second.is_over);
            }
    }
    free(parts.ends);
    free(parts_too.ends);
}

static const schedule_fn schedules[] = {one_after_the_other, overlapping, dispatches};

enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

static void play_pairs(void **state, const hosts_t *hosts)
{
    for (uint32_t r = 0; r < RANKS_OF_TWO; r++)
        for (size_t s = 0; s < SCHEDULES; s++)
            play_two(state, &(trial_t){first_seed() + r + s, schedules[s], NULL, hosts}, r);
}

static void deaths_of_two(void **state)
{
    play_pairs(state, &mapped);
}

static void deaths_of_two_over_wire(void **state)
{
    for (size_t n = 0; n < 2; n++) play_pairs(state, &over_wire[n]);
}

static void deaths_one_after_the_other(void **state)
{
    play_all(state, one_after_the_other, &mapped, 1, KINDS);
}

static void deaths_overlapping(void **state)
{
    play_all(state, overlapping, &mapped, 1, KINDS);
}

static void deaths_dispatches(void **state)
{
    play_all(state, dispatches, &mapped, 1, KINDS);
}

static void deaths_over_wire(void **state)
{
    for (size_t s = 0; s < SCHEDULES; s++) play_all(state, schedules[s], over_wire, 2, KINDS);
}

/* Without masks: with them rows go to each rank. */
static void deaths_by_nodes(void **state)
{
    heard_through = 0;
    for (size_t s = 0; s < SCHEDULES; s++) play_all(state, schedules[s], by_nodes, 2, FAIL + 1);
    assert_in_range(heard_through, 5, UINT64_MAX);
}

/* Flat, and receive rings are crowded; likewise without masks: with them there is room for all. */
static void deaths_in_crowds(void **state)
{
    for (size_t s = 0; s < SCHEDULES; s++) play_all(state, schedules[s], little_room, 2, FAIL + 1);
}

#define DEATHS(mode, what)                                                            \
    {                                                                                 \
        .name = #mode "_" #what, .test_func = deaths_##what, .initial_state = &(mode) \
    }

int main(void)
{
    setenv("XEP_LOG", "error", 1); /* that a rank is out is no news here */
    sim_case_t normal = sim_case_load(&sim_normal), ll = sim_case_load(&sim_ll);
    const struct CMUnitTest tests[] = {
        DEATHS(normal, one_after_the_other),
        DEATHS(normal, overlapping),
        DEATHS(normal, dispatches),
        DEATHS(normal, of_two),
        DEATHS(normal, over_wire),
        DEATHS(normal, of_two_over_wire),
        DEATHS(normal, by_nodes),
        DEATHS(ll, one_after_the_other),
        DEATHS(ll, overlapping),
        DEATHS(ll, dispatches),
        DEATHS(ll, of_two),
        DEATHS(ll, over_wire),
        DEATHS(ll, of_two_over_wire),
        DEATHS(ll, by_nodes),
        DEATHS(ll, in_crowds),
    };
    return cmocka_run_group_tests_name("sim_deaths", tests, NULL, NULL);
}
