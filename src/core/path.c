/* SPDX-License-Identifier: BSD-3-Clause */

#include "path.h"

#include "error.h"
#include "log.h"
#include "path_cost.h"

/* ---- the choice ---- */

static int has_shared_node(const xep_shape_t *shape)
{
    uint32_t n = 0;
    while (n < shape->nodes && shape->node_ranks[n] == 1) n++;
    return n < shape->nodes;
}

/* What a buffer asks for that the other path has not, or NULL. */
static const char *find_refusal(const xep_buffer_params_t *params)
{
    if (params->on_failure == XEP_ON_FAILURE_MASK) return "ranks may be left out";
    if (params->flags & XEP_BUFFER_PIECES) return "dispatches may come in pieces";
    return params->tokens >> XEP_FEED_ROWS_BITS != 0 ? "too many tokens" : NULL;
}

/* why not, or NULL */
static const char *find_objection(const xep_buffer_params_t *params, const xep_plugin_t *plugin,
                                  const xep_shape_t *shape, const xep_path_cost_t cost[XEP_COST_PATHS])
{
    if (shape->nodes == 1) return "all ranks are on one node";
    if (!plugin->by_nodes) return "the mode has no other";
    if (params->path == XEP_PATH_FLAT) return "it was asked for";
    if (!has_shared_node(shape)) return "no node has two ranks";
    const char *refusal = find_refusal(params);
    if (refusal != NULL) return refusal;
    if (params->path == XEP_PATH_AUTO && cost[XEP_COST_NODES].seconds >= cost[XEP_COST_FLAT].seconds)
        return "it takes less time";
    return NULL;
}

/* A rank of node b has the feeders of other nodes whose place is its own, modulo its ranks: place 0 has most. */
static uint32_t count_feeders(const xep_shape_t *shape)
{
    uint32_t most = 0;
    for (uint32_t b = 0; b < shape->nodes; b++) {
        uint32_t feeders = 0;
        for (uint32_t a = 0; a < shape->nodes; a++)
            if (a != b) feeders += (shape->node_ranks[a] + shape->node_ranks[b] - 1) / shape->node_ranks[b];
        if (feeders > most) most = feeders;
    }
    return most;
}

/* At least a row for each feeder, unless the caller has said how many there may be. */
static uint64_t count_rows(const xep_buffer_params_t *params, uint32_t feeders)
{
    uint64_t rows = params->pass_rows != 0 ? params->pass_rows : 2 * params->tokens;
    return rows < feeders && params->pass_rows == 0 ? feeders : rows;
}

/*
 * An even load at the rates of the configuration, which all ranks have: so they come to the same. Only where somebody
 * wants to know: a pass over all ranks is no part of making a buffer whose path is given.
 */
static xep_status_t find_costs(const xep_config_t *config, const xep_buffer_params_t *params,
                               const xep_plugin_t *plugin, const xep_shape_t *shape,
                               xep_path_cost_t cost[XEP_COST_PATHS])
{
    int chooses = plugin->by_nodes && params->path == XEP_PATH_AUTO;
    xep_cost_rates_t rates = {.rank_network = (double)config->net_rate, .rank_memory = (double)config->memory_rate};
    cost[XEP_COST_FLAT] = cost[XEP_COST_NODES] = (xep_path_cost_t){0, 0};
    if (shape->nodes == 1 || !(chooses || xep_log_enabled(XEP_LOG_INFO))) return XEP_OK;
    return xep_path_find_costs(shape, plugin->by_nodes, &rates, cost);
}

xep_status_t xep_path_choose(const xep_config_t *config, const xep_buffer_params_t *params, const xep_plugin_t *plugin,
                             xep_shape_t *shape)
{
    xep_path_cost_t cost[XEP_COST_PATHS];
    xep_status_t status = find_costs(config, params, plugin, shape, cost);
    if (status != XEP_OK) return status;
    const char *why = find_objection(params, plugin, shape, cost);
    shape->by_nodes = why == NULL;
    if (why == NULL) why = params->path == XEP_PATH_NODES ? "it was asked for" : "it takes less time";
    if (shape->nodes != 1)
        xep_log(XEP_LOG_INFO,
                "path %s: %s. Of a row %.2f copies leave a node, flat %.2f; a dispatch and its combine take %.0f us, "
                "flat %.0f (even load, XEP_NET_RATE, XEP_MEMORY_RATE)",
                shape->by_nodes ? "nodes" : "flat", why, cost[XEP_COST_NODES].copies, cost[XEP_COST_FLAT].copies,
                cost[XEP_COST_NODES].seconds * 1e6, cost[XEP_COST_FLAT].seconds * 1e6);
    if (!shape->by_nodes) return XEP_OK;
    shape->feeders = count_feeders(shape);
    /* the room of a rank is shared out to the feeders of the rank that has most: all heaps are laid alike */
    shape->feed_rows = count_rows(params, shape->feeders) / shape->feeders;
    if (plugin->by_nodes == XEP_BY_NODES_DISPATCH || shape->feed_rows > params->tokens)
        shape->feed_rows = params->tokens;
    if (shape->feed_rows != 0) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid pass_rows: %llu (0, or at least %u: so many ranks pass rows to one of another node)",
                    (unsigned long long)params->pass_rows, shape->feeders);
}

/*
 * A rank alone on its node is the forwarder of all others. Rounded up: with fewer feeders less is lost by rounding. For
 * dispatches alone the flat path has more room: for rows of all other ranks.
 */
void xep_path_imagine(const xep_buffer_params_t *params, const xep_plugin_t *plugin, xep_shape_t *shape)
{
    if (plugin->by_nodes != XEP_BY_NODES_ALL || shape->nranks < 3 || params->path == XEP_PATH_FLAT ||
        find_refusal(params) != NULL)
        return;
    shape->by_nodes = 1;
    shape->feeders = shape->nranks - 1;
    shape->feed_rows = (count_rows(params, shape->feeders) + shape->feeders - 1) / shape->feeders;
    if (shape->feed_rows > params->tokens) shape->feed_rows = params->tokens;
}
