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

/* By nodes: whoever hears others through the one that is gone says so. */
static int hears_through(const sim_world_t *world, const sim_rank_t *rank, const script_flight_t *flight, uint32_t gone)
{
    char text[512] = "", wanted[64];
    world->plugin->explain(rank->mode, &flight->op, text, sizeof text);
    snprintf(wanted, sizeof wanted, "(through rank %u)", gone);
    return strstr(text, wanted) != NULL;
}

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
        if (hears_through(world, &world->ranks[rank], flight, world->death->rank)) return 1;
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

/* ---- by nodes ---- */

static uint64_t heard_through; /* sentences that said so, over all trials */

/* The rank of this node that hears what the other one says: that with its place. */
static uint32_t forwarder_of(const sim_rank_t *rank, uint32_t other)
{
    const xep_shape_t *shape = &rank->shape;
    uint32_t node = shape->node[rank->index], place = shape->place[other] % shape->node_ranks[node], r = 0;
    while (shape->node[r] != node || shape->place[r] != place) r++;
    return r;
}

/* Whoever waits for the dead one, and does not hear it itself, says through whom. */
static void check_names(const sim_run_t *run)
{
    sim_world_t *world = (sim_world_t *)&run->world;
    uint32_t gone = world->death->rank;
    char text[512], wanted[64], *at;
    for (uint32_t r = 0; r < RANKS; r++) {
        const sim_rank_t *rank = &world->ranks[r];
        for (uint32_t h = 0; !rank->dead && h < SCRIPT_HANDLES; h++) {
            const script_flight_t *flight = script_player(rank)->handles[h].flight;
            if (flight == NULL) continue;
            world->plugin->explain(rank->mode, &flight->op, text, sizeof text);
            snprintf(wanted, sizeof wanted, " rank %u at", gone);
            at = strstr(text, wanted);
            if (at == NULL || at[strcspn(at, "(,")] != '(') continue;
            snprintf(wanted, sizeof wanted, "(through rank %u)", forwarder_of(rank, gone));
            heard_through++;
            if (strncmp(strchr(at, '('), wanted, strlen(wanted)))
                sim_fail(world, "rank %u says \"%s\", not \"%s\"", r, text, wanted);
        }
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

/** Who maps whom. */
typedef struct hosts {
    const char *name;
    uint32_t node[RANKS_OF_TWO];
    uint64_t feed_rows; /* as in sim_options_t */
    uint64_t patience;  /* times PATIENT_TURNS until all that can happen has */
} hosts_t;

static const hosts_t mapped = {"all mapped", {0, 0, 0, 0}, 0, 1};
static const hosts_t over_wire[] = {{"none mapped", {0, 1, 2, 3}, 0, 3}, {"two hosts", {0, 0, 1, 1}, 0, 3}};
static const hosts_t by_nodes[] = {{"by nodes", {0, 0, 1, 1}, 2, 5}, {"by nodes, the other way", {0, 1, 1, 0}, 2, 5}};

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

static void check_end(const sim_run_t *run, const trial_t *trial)
{
    if (!trial->fate->goes_on) check_blame(run);
    else check_out(run);
    if (trial->fate->goes_on && trial->hosts != &mapped) check_agreed(run);
    if (trial->hosts->feed_rows != 0 && trial->fate->delay == 0) check_names(run);
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
    return hosts == &mapped ? POINTS : POINTS_OF_WIRE;
}

static uint64_t first_seed(void)
{
    const char *text = getenv("XEP_TEST_SEED");
    return text == NULL ? 1 : strtoull(text, NULL, 0);
}

/* The run is the same up to the point, as all is drawn from the seed. Points that are skipped differ from kind to kind.
 */
static void play_points(void **state, const trial_t *trial, uint32_t rank)
{
    sim_death_t death = {.rank = rank, .at = SIM_NEVER};
    play(state, trial, &death);
    uint64_t count = death.points, wanted = points_wanted(trial->hosts);
    uint64_t step = wanted == 0 || wanted >= count ? 1 : count / wanted;
    assert_in_range(count, 10, 100000);
    for (uint64_t at = (trial->seed + rank) % step; at < count; at += step) {
        death = (sim_death_t){.rank = rank, .at = at};
        play(state, trial, &death);
        assert_true(death.is_over);
    }
}

static void play_all(void **state, schedule_fn schedule, const hosts_t *hosts, size_t nhosts, size_t nfates)
{
    for (size_t i = 0; i < nfates; i++)
        for (size_t n = 0; n < nhosts; n++)
            for (uint32_t r = 0; r < RANKS; r++)
                play_points(state, &(trial_t){first_seed() + i, schedule, &fates[i], &hosts[n]}, r);
}

/* At points of the first one some of the second one's, which is any of the others, and may have fewer by then. */
static void play_two(void **state, const trial_t *trial, uint32_t rank)
{
    uint64_t seed = trial->seed;
    sim_death_t second = {.rank = (rank + 1 + (uint32_t)seed % (RANKS_OF_TWO - 1)) % RANKS_OF_TWO, .at = SIM_NEVER};
    sim_death_t first = {.next = &second, .rank = rank, .at = SIM_NEVER};
    /* of two that live two halves are left, and that with rank 0 goes on */
    if (trial->hosts != &mapped && trial->fate->is_given_up && (rank == 0 || second.rank == 0)) return;
    play(state, trial, &first);
    uint64_t count = first.points, count_too = second.points, wanted = (points_wanted(trial->hosts) + 2) / 3;
    uint64_t step = wanted == 0 || wanted >= count ? 1 : count / wanted;
    assert_in_range(count, 10, 100000);
    for (uint64_t at = (seed + rank) % step; at < count; at += step)
        for (uint64_t i = 0; i < SECONDS; i++) {
            uint64_t at_too = sim_hash(seed, rank, at, i, 0) % count_too;
            second = (sim_death_t){.rank = second.rank, .at = at_too};
            first = (sim_death_t){.next = &second, .rank = rank, .at = at};
            play(state, trial, &first);
            assert_true(first.is_over || second.is_over);
        }
}

static const schedule_fn schedules[] = {one_after_the_other, overlapping, dispatches};

enum { SCHEDULES = sizeof schedules / sizeof schedules[0], FATES = sizeof fates / sizeof fates[0], FATES_OF_FAIL = 2 };

static void play_pairs(void **state, const hosts_t *hosts)
{
    for (size_t i = FATES_OF_FAIL; i < FATES; i++)
        for (uint32_t r = 0; r < RANKS_OF_TWO; r++)
            for (size_t s = 0; s < SCHEDULES; s++)
                play_two(state, &(trial_t){first_seed() + i + r + s, schedules[s], &fates[i], hosts}, r);
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
    play_all(state, one_after_the_other, &mapped, 1, FATES);
}

static void deaths_overlapping(void **state)
{
    play_all(state, overlapping, &mapped, 1, FATES);
}

static void deaths_dispatches(void **state)
{
    play_all(state, dispatches, &mapped, 1, FATES);
}

static void deaths_over_wire(void **state)
{
    for (size_t s = 0; s < SCHEDULES; s++) play_all(state, schedules[s], over_wire, 2, FATES);
}

/* Without masks: with them rows go to each rank. */
static void deaths_by_nodes(void **state)
{
    heard_through = 0;
    for (size_t s = 0; s < SCHEDULES; s++) play_all(state, schedules[s], by_nodes, 2, FATES_OF_FAIL);
    assert_in_range(heard_through, 10, UINT64_MAX);
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
    };
    return cmocka_run_group_tests_name("sim_deaths", tests, NULL, NULL);
}
