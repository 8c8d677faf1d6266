/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_heap.h"

#include <stdlib.h>

/*
 * By nodes, where that is asked for and there are such: the most upstream ranks that any rank has, counted one by one.
 */
static void fill_upstreams(xep_shape_t *shape)
{
    int shared = 0;
    shape->upstreams = 0;
    for (uint32_t f = 0; f < shape->nranks; f++) {
        uint32_t node = shape->node[f], upstreams = 0;
        shared |= shape->node_ranks[node] > 1;
        for (uint32_t r = 0; r < shape->nranks; r++)
            upstreams += shape->node[r] != node && shape->place[r] % shape->node_ranks[node] == shape->place[f];
        if (upstreams > shape->upstreams) shape->upstreams = upstreams;
    }
    shape->by_nodes = shape->by_nodes && shared && shape->nodes > 1;
    if (!shape->by_nodes) shape->upstreams = 0;
}

void sim_shape_fill(xep_shape_t *shape, uint32_t rank, const uint32_t *node)
{
    uint32_t nranks = shape->nranks, each = shape->experts / nranks, more = shape->experts % nranks;
    uint32_t *arrays = calloc(5 * (size_t)nranks + 1 + shape->experts + 1, sizeof *arrays);
    uint32_t *first = arrays, *nodes = first + nranks + 1, *place = nodes + nranks, *node_ranks = place + nranks;
    uint32_t *sends = node_ranks + nranks, *expert = sends + nranks; /* no map: the caller's numbers are the mode's */
    shape->rank = rank;
    shape->nodes = 1;
    for (uint32_t r = 0; r < nranks; r++) {
        nodes[r] = node == NULL ? 0 : node[r];
        if (nodes[r] >= shape->nodes) shape->nodes = nodes[r] + 1;
        place[r] = node_ranks[nodes[r]]++;
        first[r + 1] = first[r] + each + (r < more);
        sends[r] = 1;
    }
    shape->node = nodes;
    shape->sends = sends;
    shape->place = place;
    shape->node_ranks = node_ranks;
    shape->first_expert = first;
    for (uint32_t e = 0; e <= shape->experts; e++) expert[e] = e;
    shape->expert = expert;
    shape->most_experts = first[1];
    shape->local_experts = first[rank + 1] - first[rank];
    fill_upstreams(shape);
}

void sim_shape_free(xep_shape_t *shape)
{
    free((void *)(uintptr_t)shape->first_expert);
}

xep_status_t sim_shape_measure(const xep_plugin_t *plugin, const xep_shape_t *shape, const uint32_t *node,
                               xep_region_t regions[XEP_REGIONS], uint64_t *bytes_p, uint64_t *rows_p)
{
    xep_shape_t filled = *shape;
    uint64_t end = 0;
    for (int i = 0; i < XEP_REGIONS; i++) regions[i] = (xep_region_t){0};
    sim_shape_fill(&filled, 0, node);
    xep_status_t status = plugin->heap_size(&filled, regions, rows_p);
    for (int i = 0; i < XEP_REGIONS && status == XEP_OK; i++) {
        uint64_t mask = regions[i].bytes == 0 ? 0 : regions[i].alignment - UINT64_C(1);
        regions[i].offset = (end + mask) & ~mask;
        end = regions[i].offset + regions[i].bytes;
    }
    sim_shape_free(&filled);
    *bytes_p = end;
    return status;
}
