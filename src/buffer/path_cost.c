/* SPDX-License-Identifier: BSD-3-Clause */

#include "path.h"

#include <stdlib.h>

#include "error.h"

enum { MESSAGE_BYTES = 512 * 1024 }; /* as the transport packs them */

/*
 * Of the largest batch that the buffer takes: the choice is made once, at create, when no routing is known. flow: room
 * for all ranks, overwritten for each operation. Copies are those of the dispatch: a combine sends as many back.
 */
static void find_cost(const xep_cost_map_t *map, const xep_shape_t *shape, const xep_plugin_t *plugin,
                      const xep_cost_rates_t *rates, xep_cost_flow_t *flow, xep_path_cost_t *cost_p)
{
    xep_traffic_t traffic[XEP_COST_OPERATIONS] = {0};
    xep_path_cost_t cost = {0};

    plugin->traffic(shape, &traffic[XEP_COST_DISPATCH], &traffic[XEP_COST_COMBINE]);
    for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++) {
        xep_cost_time_t time;
        xep_cost_expect_flow(map, shape, &traffic[operation], MESSAGE_BYTES, flow);
        xep_cost_find_time(map, operation, &traffic[operation], rates, flow, &time);
        cost.seconds += time.seconds;
        for (uint32_t r = 0; r < map->nranks && operation == XEP_COST_DISPATCH; r++)
            cost.copies += flow[r].sent / (double)shape->tokens / map->nranks;
    }
    *cost_p = cost;
}

xep_status_t xep_path_find_costs(const xep_shape_t *shape, const xep_plugin_t *plugin, const xep_cost_rates_t *rates,
                                 xep_path_cost_t cost[XEP_COST_PATHS])
{
    xep_cost_flow_t *flow = calloc(shape->nranks, sizeof *flow);
    uint32_t *words = calloc(xep_cost_map_words(shape->nranks, shape->nodes), sizeof *words);
    xep_status_t status = XEP_OK;

    if (flow == NULL || words == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory to choose a path for %u ranks", shape->nranks);
    } else {
        xep_cost_map_t map;
        xep_cost_make_map(&map, shape->nranks, shape->nodes, shape->node, words);
        for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
            const xep_shape_t taken = xep_cost_shape_on(shape, path);
            find_cost(&map, &taken, plugin, rates, flow, &cost[path]);
        }
    }
    free(words);
    free(flow);
    return status;
}
