/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_death.h"

#include <stdio.h>
#include <string.h>

#include "script_flight.h"
#include "script_player.h"

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

void sim_blame_check(sim_world_t *world)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        uint32_t visited = 0;
        if (world->ranks[r].dead || script_player_is_finished(&world->ranks[r])) continue;
        if (!waits_for_gone(world, r, &visited))
            sim_fail(world, "rank %u waits, and not for rank %u, which died", r, world->death->rank);
    }
}

/* The rank of this node that hears what the other one says: that with its place. */
static uint32_t forwarder_of(const sim_rank_t *rank, uint32_t other)
{
    const xep_shape_t *shape = &rank->shape;
    uint32_t node = shape->node[rank->index], place = shape->place[other] % shape->node_ranks[node], r = 0;
    while (shape->node[r] != node || shape->place[r] != place) r++;
    return r;
}

uint64_t sim_blame_check_names(sim_world_t *world)
{
    uint64_t heard_through = 0;
    uint32_t gone = world->death->rank;
    char text[512], wanted[64], *at;
    for (uint32_t r = 0; r < world->options.nranks; r++) {
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
    return heard_through;
}
