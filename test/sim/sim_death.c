/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_death.h"

#include <stdlib.h>

#include "sim_wire.h"

/* Not inlined, as what it walks by would be a variable beside a setjmp(). */
__attribute__((noinline)) sim_death_t *sim_death_of(const sim_world_t *world, uint32_t rank)
{
    sim_death_t *death = world->death;
    while (death != NULL && death->rank != rank) death = death->next;
    return death;
}

static sim_death_t *death_of(const sim_rank_t *rank)
{
    return sim_death_of(rank->world, rank->index);
}

/* What is on the stack above way_out is the rank's alone: others that it gave a turn have come to its end. */
static void die(sim_rank_t *rank, sim_death_t *death)
{
    rank->dead = 1;
    if (rank->index < rank->world->first_dead) rank->world->first_dead = rank->index;
    sim_stores_unwatch();
    sim_wire_bury(&rank->wire);
    longjmp(death->way_out, 1);
}

/*
 * One that has come back after all others had finished knows nothing of that yet, but nobody waits for it any more:
 * rows that it stores now, it stores into memory of others.
 */
static void check_late_store(sim_rank_t *rank, const char *at)
{
    sim_world_t *world = rank->world;
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        const xep_env_t *env = &world->ranks[r].env;
        const xep_region_t *rows = &env->regions[XEP_REGION_ROWS];
        const char *begin = rows->base;
        if (r == rank->index || sim_death_of(world, r) != NULL) continue; /* whose rows count for nobody */
        if (!world->finished(&world->ranks[r])) return;
        if (at >= begin && at < begin + rows->bytes)
            sim_fail(world, "rank %u, which is out, stored into the rows of rank %u when that had finished",
                     rank->index, r);
    }
}

static void look_at_store(void *arg, const char *at);

/*
 * Those that leave it out need nothing of it: they have finished, but for ranks in whose midst this one has its turn.
 * Where it may store rows of others (normal_masks.c) they wait.
 */
static void check_alone(const sim_rank_t *rank)
{
    sim_world_t *world = rank->world;
    uint32_t nranks = world->options.nranks, waiting = 0;
    if (!death_of(rank)->is_given_up || rank->shape.nodes != nranks) return;
    for (uint32_t r = 0; r < nranks; r++) {
        const sim_rank_t *other = &world->ranks[r];
        if (r == rank->index || other->dead || other->stopped) continue;
        if (other->busy) return;
        waiting += !world->finished(other);
    }
    if (waiting > 0) sim_fail(world, "ranks have not finished without rank %u, which is stopped", rank->index);
}

static void sleep_for(sim_rank_t *rank, uint64_t turns)
{
    int watched = sim_stores_unwatch();
    rank->stopped = 1;
    sim_world_run(rank->world, turns, 1);
    if (turns >= SIM_FOR_EVER) check_alone(rank);
    rank->stopped = 0;
    if (watched) sim_stores_watch(rank->world, look_at_store, rank);
}

void sim_death_pass(sim_rank_t *rank)
{
    sim_death_t *death = death_of(rank);
    if (death == NULL || death->is_over || death->points++ != death->at) return;
    death->is_over = 1;
    death->since = rank->world->now;
    if (death->delay == 0) die(rank, death);
    sleep_for(rank, death->delay);
}

static void look_at_store(void *arg, const char *at)
{
    sim_rank_t *rank = arg;
    const sim_death_t *death = death_of(rank);
    if (death->is_over) check_late_store(rank, at);
    else sim_death_pass(rank);
}

void sim_death_step(sim_rank_t *rank)
{
    sim_death_t *death = death_of(rank);
    if (death == NULL || death->is_over) {
        rank->world->step(rank);
        return;
    }
    if (setjmp(death->way_out) != 0) return;
    if (death->points != death->seen || death->points == 0) sim_death_pass(rank);
    death->seen = death->points;
    rank->world->step(rank);
}

/* ---- parts of turns ---- */

/* Until then runs with this seed are the same. */
static int nobody_is_over(const sim_world_t *world)
{
    const sim_death_t *death = world->death;
    while (death != NULL && !death->is_over) death = death->next;
    return death == NULL;
}

static int may_skip(const sim_world_t *world, const sim_death_t *death)
{
    const sim_parts_t *parts = death->parts;
    return parts != NULL && death->at != SIM_NEVER && nobody_is_over(world) && death->part < parts->count &&
           parts->ends[death->part].points <= death->at;
}

static void note_part(const sim_world_t *world, const sim_death_t *death)
{
    sim_parts_t *parts = death->parts;
    if (parts->count == parts->room) {
        parts->room = 2 * parts->room + 64;
        parts->ends = realloc(parts->ends, parts->room * sizeof *parts->ends);
        if (parts->ends == NULL) abort();
    }
    parts->ends[parts->count].points = death->points;
    parts->ends[parts->count++].now = world->now;
}

static void end_part(sim_world_t *world, sim_death_t *death)
{
    const sim_parts_t *parts = death->parts;
    if (death->is_skipped) {
        death->points = parts->ends[death->part].points;
        if (world->now != parts->ends[death->part].now)
            sim_fail(world, "part %llu of rank %u's turns ends at %llu, not %llu: a run is not repeated",
                     (unsigned long long)death->part, death->rank, (unsigned long long)world->now,
                     (unsigned long long)parts->ends[death->part].now);
    } else if (parts != NULL && death->at == SIM_NEVER && nobody_is_over(world)) note_part(world, death);
    death->part++;
}

/* Who has come back is looked at when check_late_store() can find something: that begins with the first rank. */
static int may_store_late(const sim_rank_t *rank, const sim_death_t *death)
{
    sim_world_t *world = rank->world;
    uint32_t r = 0;
    while (r < world->options.nranks && sim_death_of(world, r) != NULL) r++;
    return death->is_given_up && r < world->options.nranks && world->finished(&world->ranks[r]);
}

int sim_death_enter(sim_rank_t *rank)
{
    sim_death_t *death = death_of(rank);
    if (death == NULL || (death->is_over && !may_store_late(rank, death))) return 0;
    death->is_inside = 1;
    death->is_skipped = may_skip(rank->world, death);
    return death->is_skipped || sim_stores_watch(rank->world, look_at_store, rank);
}

int sim_death_leave(sim_rank_t *rank, int watched)
{
    sim_death_t *death = death_of(rank);
    if (!watched || death == NULL || !death->is_inside) return 0;
    death->is_inside = 0;
    end_part(rank->world, death);
    return death->is_skipped || sim_stores_unwatch();
}
