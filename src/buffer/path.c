/* SPDX-License-Identifier: BSD-3-Clause */

#include "path.h"

#include "cost_model.h"
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

static xep_status_t refuse_rows(const xep_buffer_params_t *params, uint32_t sources)
{
    return xep_fail(XEP_ERR_INVALID,
                    "invalid pass_rows: %llu (0, or at least %u: one of each rank that rows come from)",
                    (unsigned long long)params->pass_rows, sources);
}

/* ---- inboxes ---- */

/*
 * Whether a rank may have room for less than all that others send: not where ranks may be left out, as rows that wait
 * for room would die with them, and not where words cannot count the tokens.
 */
static int may_be_crowded(const xep_buffer_params_t *params, const xep_shape_t *shape)
{
    return shape->nodes > 1 && params->on_failure != XEP_ON_FAILURE_MASK && params->tokens >> XEP_FEED_ROWS_BITS == 0;
}

/* Experts of the node that has most. */
static uint32_t most_experts(const xep_shape_t *shape)
{
    uint32_t found = 0;
    for (uint32_t n = 0; n < shape->nodes; n++) {
        uint32_t experts = 0;
        for (uint32_t r = 0; r < shape->nranks; r++)
            if (shape->node[r] == n) experts += shape->first_expert[r + 1] - shape->first_expert[r];
        if (experts > found) found = experts;
    }
    return found;
}

static uint64_t even_inbox(const xep_shape_t *shape, uint32_t experts, uint32_t sources)
{
    double bytes = (double)shape->hidden * shape->elem_bytes + 4.0 * shape->scales;
    double even = xep_cost_expect_tokens((double)shape->tokens, experts, shape->experts, shape->topk);
    return xep_cost_inbox_rows(shape->tokens, even, bytes, 2.0 * shape->slots * sources);
}

/* Rows of each other rank for which there is room in the flat path, that of all sources together rounded up. */
static uint64_t flat_inbox(const xep_buffer_params_t *params, const xep_shape_t *shape)
{
    if (params->pass_rows == 0) return even_inbox(shape, shape->first_expert[1], shape->nranks);
    return (params->pass_rows - 1) / shape->nranks + 1;
}

/*
 * By nodes there is never more room than flat, which the size hint is of: nodes that differ in size would have it,
 * where the one with most experts is not the one whose ranks have most feeders.
 */
static uint64_t nodes_inbox(const xep_buffer_params_t *params, const xep_shape_t *shape)
{
    uint64_t rows = even_inbox(shape, most_experts(shape), shape->feeders),
             most = flat_inbox(params, shape) * shape->nranks / shape->feeders;
    return rows < most ? rows : most;
}

/* Room for all is 0, flat: then rows need not wait for any. */
static xep_status_t choose_inboxes(const xep_buffer_params_t *params, xep_shape_t *shape)
{
    const uint32_t sources = shape->by_nodes ? shape->feeders : shape->nranks;
    const uint64_t all = shape->by_nodes ? shape->tokens : 0;
    shape->feed_rows = all;
    if (!may_be_crowded(params, shape)) return XEP_OK;
    uint64_t rows = params->pass_rows / sources;
    if (params->pass_rows == 0) rows = shape->by_nodes ? nodes_inbox(params, shape) : flat_inbox(params, shape);
    if (rows == 0) return refuse_rows(params, sources);
    if (rows < shape->tokens) shape->feed_rows = rows;
    return XEP_OK;
}

/* ---- paths ---- */

/*
 * An even load at the rates of the configuration, which all ranks have: so they come to the same. Only where somebody
 * wants to know: a pass over all ranks is not part of making a buffer whose path is given.
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
    if (shape->by_nodes) shape->feeders = count_feeders(shape);
    if (plugin->by_nodes == XEP_BY_NODES_DISPATCH) return choose_inboxes(params, shape);
    if (!shape->by_nodes) return XEP_OK;
    /* the room of a rank is shared out to the feeders of the rank that has most: all heaps are laid alike */
    shape->feed_rows = count_rows(params, shape->feeders) / shape->feeders;
    if (shape->feed_rows > params->tokens) shape->feed_rows = params->tokens;
    return shape->feed_rows != 0 ? XEP_OK : refuse_rows(params, shape->feeders);
}

/*
 * A rank alone on its node is the forwarder of all others. Rounded up: with fewer feeders less is lost by rounding. For
 * dispatches alone the flat path has more room: for rows of all other ranks.
 */
void xep_path_imagine(const xep_buffer_params_t *params, const xep_plugin_t *plugin, xep_shape_t *shape)
{
    if (plugin->by_nodes == XEP_BY_NODES_DISPATCH && may_be_crowded(params, shape)) {
        shape->feed_rows = flat_inbox(params, shape);
        if (shape->feed_rows >= shape->tokens) shape->feed_rows = 0;
    }
    if (plugin->by_nodes != XEP_BY_NODES_ALL || shape->nranks < 3 || params->path == XEP_PATH_FLAT ||
        find_refusal(params) != NULL)
        return;
    shape->by_nodes = 1;
    shape->feeders = shape->nranks - 1;
    shape->feed_rows = (count_rows(params, shape->feeders) + shape->feeders - 1) / shape->feeders;
    if (shape->feed_rows > params->tokens) shape->feed_rows = params->tokens;
}
