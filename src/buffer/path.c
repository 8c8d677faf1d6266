/* SPDX-License-Identifier: BSD-3-Clause */

#include "path.h"

#include <stdlib.h>
#include <xep/inspect.h>

#include "cost_model.h"
#include "error.h"
#include "log.h"

/* ---- what an even load costs on both paths ---- */

typedef struct path_cost {
    double seconds; /* of a dispatch and its combine */
    double copies;  /* of a dispatched row that leave its node, on an average over all ranks */
} path_cost_t;

enum { MESSAGE_BYTES = 512 * 1024 }; /* as the transport packs them */

/*
 * Of the largest batch that the buffer takes: the choice is made once, at create, when no routing is known. flow: room
 * for all ranks, overwritten for each operation. Copies are those of the dispatch: a combine sends as many back.
 */
static void find_cost(const xep_cost_map_t *map, const xep_shape_t *shape, const xep_plugin_t *plugin,
                      const xep_cost_rates_t *rates, xep_cost_flow_t *flow, path_cost_t *cost_p)
{
    xep_traffic_t traffic[XEP_COST_OPERATIONS] = {0};
    path_cost_t cost = {0};

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

/* ---- the choice ---- */

/* What the params ask for that the path by nodes does not have, or NULL. */
static const char *find_refusal(const xep_buffer_params_t *params)
{
    if (params->on_failure == XEP_ON_FAILURE_MASK) return "ranks may be left out";
    if (params->flags & XEP_BUFFER_PIECES) return "dispatches may come in pieces";
    return params->tokens >> XEP_FEED_ROWS_BITS != 0 ? "too many tokens" : NULL;
}

/* why not, or NULL */
static const char *find_objection(const xep_buffer_params_t *params, const xep_plugin_t *plugin,
                                  const xep_shape_t *shape, const path_cost_t cost[XEP_COST_PATHS])
{
    if (shape->nodes == 1) return "all ranks are on one node";
    if (!(plugin->can & XEP_CAN_NODES)) return "the mode has no other";
    if (params->path == XEP_PATH_FLAT) return "it was asked for";
    if (!xep_cost_has_locals(shape)) return "no node has two ranks";
    const char *refusal = find_refusal(params);
    if (refusal != NULL) return refusal;
    if (params->path == XEP_PATH_AUTO && cost[XEP_COST_NODES].seconds >= cost[XEP_COST_FLAT].seconds)
        return "it takes less time";
    return NULL;
}

/* ---- room ---- */

/*
 * Whether a rank may have room for less than all that others send: not if ranks may be left out, as rows that wait for
 * room would be lost with them, and not if words cannot count the tokens. By nodes neither is the case.
 */
static int may_be_crowded(const xep_buffer_params_t *params, const xep_shape_t *shape)
{
    return shape->nodes > 1 && params->on_failure != XEP_ON_FAILURE_MASK && params->tokens >> XEP_FEED_ROWS_BITS == 0;
}

static uint32_t count_sources(const xep_shape_t *shape)
{
    return shape->by_nodes ? shape->upstreams : shape->nranks;
}

/*
 * Rows of all sources together that there is room for: at least one of each, unless the caller has said how many. 0:
 * rows never wait.
 */
static uint64_t count_rows(const xep_buffer_params_t *params, const xep_plugin_t *plugin, const xep_shape_t *shape)
{
    xep_traffic_t dispatch = {0}, combine = {0};
    if (plugin->traffic == NULL || !may_be_crowded(params, shape)) return 0;
    plugin->traffic(shape, &dispatch, &combine);
    if (dispatch.pass_rows == 0) return 0;
    if (params->pass_rows != 0) return params->pass_rows;
    return dispatch.pass_rows < count_sources(shape) ? count_sources(shape) : dispatch.pass_rows;
}

/* Sets the room for each source. Flat, 0 is room for all: then rows never wait. */
static void set_room(xep_shape_t *shape, uint64_t rows)
{
    shape->feed_rows = rows;
    if (rows == 0 || rows >= shape->tokens) shape->feed_rows = shape->by_nodes ? shape->tokens : 0;
}

/* Shared out to the sources, by nodes to the upstream ranks of the rank that has most: all heaps are laid alike. */
static xep_status_t choose_room(const xep_buffer_params_t *params, const xep_plugin_t *plugin, xep_shape_t *shape)
{
    const uint32_t sources = count_sources(shape);
    const uint64_t rows = count_rows(params, plugin, shape);
    if (rows != 0 && rows < sources)
        return xep_fail(XEP_ERR_INVALID,
                        "invalid pass_rows: %llu (0, or at least %u: one of each rank that rows come from)",
                        (unsigned long long)params->pass_rows, sources);
    set_room(shape, rows / sources);
    return XEP_OK;
}

/* ---- paths ---- */

/*
 * Costs of an even load at the configured rates, the same on all ranks. Only if they are needed: making a buffer whose
 * path is given should not pass over all ranks.
 */
static xep_status_t find_costs(const xep_config_t *config, const xep_buffer_params_t *params,
                               const xep_plugin_t *plugin, const xep_shape_t *shape, path_cost_t cost[XEP_COST_PATHS])
{
    const int chooses = params->path == XEP_PATH_AUTO && (plugin->can & XEP_CAN_NODES) != 0;
    const xep_cost_rates_t rates = {.rank_network = (double)config->net_rate,
                                    .rank_memory = (double)config->memory_rate};
    xep_status_t status = XEP_OK;
    cost[XEP_COST_FLAT] = cost[XEP_COST_NODES] = (path_cost_t){0, 0};
    if (shape->nodes == 1 || plugin->traffic == NULL || !(chooses || xep_log_enabled(XEP_LOG_INFO))) return XEP_OK;
    xep_cost_flow_t *flow = calloc(shape->nranks, sizeof *flow);
    uint32_t *words = calloc(xep_cost_map_words(shape->nranks, shape->nodes), sizeof *words);
    if (flow == NULL || words == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory to choose a path for %u ranks", shape->nranks);
    } else {
        xep_cost_map_t map;
        xep_cost_make_map(&map, shape->nranks, shape->nodes, shape->node, words);
        for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
            const xep_shape_t taken = xep_cost_shape_on(shape, path);
            find_cost(&map, &taken, plugin, &rates, flow, &cost[path]);
        }
    }
    free(words);
    free(flow);
    return status;
}

xep_status_t xep_path_choose(const xep_config_t *config, const xep_buffer_params_t *params, const xep_plugin_t *plugin,
                             xep_shape_t *shape)
{
    path_cost_t cost[XEP_COST_PATHS];
    xep_status_t status = find_costs(config, params, plugin, shape, cost);
    if (status != XEP_OK) return status;
    const char *why = find_objection(params, plugin, shape, cost);
    *shape = xep_cost_shape_on(shape, why == NULL ? XEP_COST_NODES : XEP_COST_FLAT);
    if (why == NULL) why = params->path == XEP_PATH_NODES ? "it was asked for" : "it takes less time";
    if (shape->nodes != 1 && plugin->traffic == NULL) xep_log(XEP_LOG_INFO, "path flat: %s", why);
    else if (shape->nodes != 1)
        xep_log(XEP_LOG_INFO,
                "path %s: %s. Of a row %.2f copies leave a node, flat %.2f; a dispatch and its combine take %.0f us, "
                "flat %.0f (even load, XEP_NET_RATE, XEP_MEMORY_RATE)",
                shape->by_nodes ? "nodes" : "flat", why, cost[XEP_COST_NODES].copies, cost[XEP_COST_FLAT].copies,
                cost[XEP_COST_NODES].seconds * 1e6, cost[XEP_COST_FLAT].seconds * 1e6);
    return choose_room(params, plugin, shape);
}

/*
 * By nodes a rank that is alone on its node forwards for all others. If only dispatches go by nodes, the flat path
 * needs more room: for rows of all ranks. Rounded up, as with fewer sources rounding loses less.
 */
void xep_path_imagine(const xep_buffer_params_t *params, const xep_plugin_t *plugin, xep_shape_t *shape)
{
    const xep_shape_t by_nodes = xep_cost_shape_on(shape, XEP_COST_NODES);
    xep_traffic_t dispatch = {0}, combine = {0};
    if (plugin->can & XEP_CAN_NODES) plugin->traffic(&by_nodes, &dispatch, &combine);
    if (shape->nranks >= 3 && params->path != XEP_PATH_FLAT && find_refusal(params) == NULL && combine.by_nodes) {
        shape->by_nodes = 1;
        shape->upstreams = shape->nranks - 1;
    }
    const uint32_t sources = count_sources(shape);
    set_room(shape, (count_rows(params, plugin, shape) + sources - 1) / sources);
}
