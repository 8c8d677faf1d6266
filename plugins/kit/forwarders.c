/* SPDX-License-Identifier: BSD-3-Clause */

#include "forwarders.h"

/* The rank of a node with a place: places count its ranks in ascending order. */
static uint32_t rank_at(const xep_shape_t *shape, uint32_t node, uint32_t place)
{
    uint32_t rank = 0;
    while (shape->node[rank] != node || shape->place[rank] != place) rank++;
    return rank;
}

/* The forwarder of rank on another node. */
static uint32_t forwarder_of(const xep_shape_t *shape, uint32_t rank, uint32_t node)
{
    return rank_at(shape, node, shape->place[rank] % shape->node_ranks[node]);
}

/* The inverse of forwarder_of(), so that counting upstream ranks need not go through all nodes. */
static int is_upstream(const xep_shape_t *shape, uint32_t rank, uint32_t forwarder)
{
    uint32_t node = shape->node[forwarder];
    return shape->node[rank] != node && shape->place[rank] % shape->node_ranks[node] == shape->place[forwarder];
}

uint32_t xep_forwarders_count(const xep_shape_t *shape, uint32_t forwarder, uint32_t below)
{
    uint32_t upstreams = 0;
    for (uint32_t r = 0; r < below; r++) upstreams += (uint32_t)is_upstream(shape, r, forwarder);
    return upstreams;
}

uint32_t xep_forwarders_most_locals(const xep_shape_t *shape)
{
    uint32_t most = 1;
    for (uint32_t n = 0; n < shape->nodes && shape->by_nodes; n++)
        if (shape->node_ranks[n] > most) most = shape->node_ranks[n];
    return most;
}

static void find_ranks(const xep_shape_t *shape, xep_forwarders_t *nodes)
{
    uint32_t upstreams = 0;
    for (uint32_t r = 0; r < shape->nranks; r++) {
        nodes->feed_of[r] = is_upstream(shape, r, shape->rank) ? upstreams : UINT32_MAX;
        if (nodes->feed_of[r] != UINT32_MAX) nodes->upstream[upstreams++] = r;
        nodes->through[r] = XEP_NO_RANK;
        if (shape->node[r] == nodes->node) continue;
        nodes->through[r] = forwarder_of(shape, r, nodes->node);
        nodes->fed[r] = xep_forwarders_count(shape, nodes->through[r], r);
    }
}

/* Every rank is a node of one. */
static void make_flat(xep_shape_t *shape, xep_carve_t *arena)
{
    uint32_t *node = xep_carve_array(arena, shape->nranks, sizeof *node);
    uint32_t *place = xep_carve_array(arena, shape->nranks, sizeof *place);
    uint32_t *node_ranks = xep_carve_array(arena, shape->nranks, sizeof *node_ranks);
    for (uint32_t r = 0; r < shape->nranks && arena->base != NULL; r++) {
        node[r] = r;
        place[r] = 0;
        node_ranks[r] = 1;
    }
    shape->nodes = shape->nranks;
    shape->node = node;
    shape->place = place;
    shape->node_ranks = node_ranks;
}

/* Without a base only measures: there is nothing to write to. */
void xep_forwarders_lay(const xep_shape_t *of, xep_carve_t *arena, xep_forwarders_t *nodes)
{
    xep_shape_t shape = *of;
    nodes->node = of->by_nodes ? of->node[of->rank] : of->rank;
    nodes->locals = of->by_nodes ? of->node_ranks[nodes->node] : 1;
    nodes->upstreams = of->by_nodes ? xep_forwarders_count(of, of->rank, of->nranks) : of->nranks - 1;
    if (!of->by_nodes) make_flat(&shape, arena);
    nodes->nodes = shape.nodes;
    nodes->node_of = shape.node;
    nodes->local = xep_carve_array(arena, nodes->locals, sizeof *nodes->local);
    nodes->upstream = xep_carve_array(arena, nodes->upstreams, sizeof *nodes->upstream);
    nodes->feed_of = xep_carve_array(arena, shape.nranks, sizeof *nodes->feed_of);
    nodes->forwarder = xep_carve_array(arena, shape.nodes, sizeof *nodes->forwarder);
    nodes->line = xep_carve_array(arena, shape.nodes, sizeof *nodes->line);
    nodes->through = xep_carve_array(arena, shape.nranks, sizeof *nodes->through);
    nodes->fed = xep_carve_array(arena, shape.nranks, sizeof *nodes->fed);
    if (arena->base == NULL) return;
    nodes->place = shape.place[shape.rank];
    for (uint32_t p = 0; p < nodes->locals; p++) nodes->local[p] = rank_at(&shape, nodes->node, p);
    for (uint32_t n = 0; n < shape.nodes; n++) {
        nodes->forwarder[n] = n == nodes->node ? XEP_NO_RANK : forwarder_of(&shape, shape.rank, n);
        if (n != nodes->node) nodes->line[n] = xep_forwarders_count(&shape, nodes->forwarder[n], shape.rank);
    }
    find_ranks(&shape, nodes);
}
