/* SPDX-License-Identifier: BSD-3-Clause */

#include "path_cost.h"

#include <stdlib.h>

#include "error.h"

enum { MESSAGE_BYTES = 512 * 1024 }; /* as the transport packs them */

/* The largest batch that the buffer takes: the choice is made once, at create, when no routing is known. */
static xep_cost_sizes_t sizes_of(const xep_shape_t *shape, int by_selection)
{
    return (xep_cost_sizes_t){.topk = shape->topk,
                              .slots = shape->slots,
                              .scales = shape->scales,
                              .tokens = shape->tokens,
                              .recv_rows = shape->recv_rows,
                              .row_bytes = (uint64_t)shape->hidden * shape->elem_bytes,
                              .sum_bytes = (uint64_t)shape->hidden * shape->combine_elem_bytes,
                              .node_sum_bytes =
                                  (uint64_t)shape->hidden * (shape->wide_sums ? 4 : shape->combine_elem_bytes),
                              .message_bytes = MESSAGE_BYTES,
                              .by_selection = by_selection,
                              .first_expert = shape->first_expert};
}

/*
 * flow: room for all ranks, overwritten for each path. A dispatch and its combine count alike, and the copies are
 * those of the dispatch: a combine sends as many back.
 */
static void find_cost(const xep_cost_map_t *map, xep_cost_path_t path, const xep_cost_sizes_t *sizes,
                      const xep_cost_rates_t *rates, xep_cost_flow_t *flow, xep_path_cost_t *cost_p)
{
    xep_path_cost_t cost = {0};

    for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++) {
        xep_cost_time_t time;
        xep_cost_expect_flow(map, path, operation, sizes, flow);
        xep_cost_find_time(map, xep_cost_way(sizes, path, operation), operation, sizes, rates, flow, &time);
        cost.seconds += time.seconds;
        for (uint32_t r = 0; r < map->nranks && operation == XEP_COST_DISPATCH; r++)
            cost.copies += flow[r].sent / (double)sizes->tokens / map->nranks;
    }
    *cost_p = cost;
}

xep_status_t xep_path_find_costs(const xep_shape_t *shape, xep_by_nodes_t knows, const xep_cost_rates_t *rates,
                                 xep_path_cost_t cost[XEP_COST_PATHS])
{
    const xep_cost_sizes_t sizes = sizes_of(shape, knows == XEP_BY_NODES_DISPATCH);
    xep_cost_flow_t *flow = calloc(shape->nranks, sizeof *flow);
    uint32_t *words = calloc(xep_cost_map_words(shape->nranks, shape->nodes), sizeof *words);
    xep_status_t status = XEP_OK;

    if (flow == NULL || words == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory to choose a path for %u ranks", shape->nranks);
    } else {
        xep_cost_map_t map;
        xep_cost_make_map(&map, shape->nranks, shape->nodes, shape->node, words);
        for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++)
            find_cost(&map, path, &sizes, rates, flow, &cost[path]);
    }
    free(words);
    free(flow);
    return status;
}
