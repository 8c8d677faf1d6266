/* SPDX-License-Identifier: BSD-3-Clause */

#include "path.h"

#include "error.h"
#include "log.h"

/* Rows in passing are counted in so many bits beside an epoch. */
#define MOST_TOKENS (UINT64_C(1) << 24)

/* ---- an even load ---- */

/* The part of all tokens that choose one of so many experts, of topk different ones. */
static double part_of(const xep_shape_t *shape, uint32_t experts)
{
    double missed = 1;
    for (uint32_t k = 0; k < shape->topk; k++)
        missed *= experts + k < shape->experts ? 1 - (double)experts / (shape->experts - k) : 0;
    return 1 - missed;
}

static uint32_t experts_of_node(const xep_shape_t *shape, uint32_t node)
{
    uint32_t experts = 0;
    for (uint32_t r = 0; r < shape->nranks; r++)
        if (shape->node[r] == node) experts += shape->first_expert[r + 1] - shape->first_expert[r];
    return experts;
}

/* To all nodes, less what stays on the own one: the sums are made once, and not for each rank. */
xep_copies_t xep_path_copies(const xep_shape_t *shape)
{
    xep_copies_t copies = {0, 0};
    for (uint32_t n = 0; n < shape->nodes; n++) {
        double others = (double)(shape->nranks - shape->node_ranks[n]) / shape->nranks;
        copies.nodes += others * part_of(shape, experts_of_node(shape, n));
    }
    for (uint32_t r = 0; r < shape->nranks; r++) {
        double others = (double)(shape->nranks - shape->node_ranks[shape->node[r]]) / shape->nranks;
        copies.ranks += others * part_of(shape, shape->first_expert[r + 1] - shape->first_expert[r]);
    }
    return copies;
}

/* ---- the choice ---- */

static int has_shared_node(const xep_shape_t *shape)
{
    uint32_t n = 0;
    while (n < shape->nodes && shape->node_ranks[n] == 1) n++;
    return n < shape->nodes;
}

/*
 * Seconds of the network for a byte of each row, and of the copies from where rows pass through to where they belong.
 * What is behind the point is the rates', so they are compared with a tenth to spare.
 */
static int is_faster(const xep_config_t *config, const xep_copies_t *copies)
{
    double network = (double)config->net_rate, memory = (double)config->memory_rate;
    return copies->nodes / network + copies->ranks / memory < 0.9 * copies->ranks / network;
}

/* why not, or NULL */
static const char *find_objection(const xep_config_t *config, const xep_buffer_params_t *params,
                                  const xep_plugin_t *plugin, const xep_shape_t *shape, const xep_copies_t *copies)
{
    if (shape->nodes == 1) return "all ranks are on one node";
    if (!plugin->by_nodes) return "the mode has no other";
    if (params->path == XEP_PATH_FLAT) return "it was asked for";
    if (!has_shared_node(shape)) return "no node has two ranks";
    if (params->on_failure == XEP_ON_FAILURE_MASK) return "ranks may be left out";
    if (params->tokens >= MOST_TOKENS) return "too many tokens";
    if (params->path == XEP_PATH_AUTO && !is_faster(config, copies)) return "few rows are spared the network";
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
static void choose_room(const xep_buffer_params_t *params, xep_shape_t *shape)
{
    uint64_t rows = params->pass_rows != 0 ? params->pass_rows : 2 * params->tokens;
    if (rows < shape->feeders && params->pass_rows == 0) rows = shape->feeders;
    shape->feed_rows = rows / shape->feeders;
    if (shape->feed_rows > params->tokens) shape->feed_rows = params->tokens;
}

xep_status_t xep_path_choose(const xep_config_t *config, const xep_buffer_params_t *params, const xep_plugin_t *plugin,
                             xep_shape_t *shape)
{
    xep_copies_t copies = xep_path_copies(shape);
    const char *why = find_objection(config, params, plugin, shape, &copies);
    shape->by_nodes = why == NULL;
    if (why == NULL && params->path == XEP_PATH_NODES) why = "it was asked for";
    if (why == NULL) why = "that is faster at XEP_NET_RATE and XEP_MEMORY_RATE";
    if (shape->nodes != 1)
        xep_log(XEP_LOG_INFO, "path %s: %s; of a row %.2f copies leave a node, by ranks %.2f (even load)",
                shape->by_nodes ? "nodes" : "flat", why, copies.nodes, copies.ranks);
    if (!shape->by_nodes) return XEP_OK;
    shape->feeders = count_feeders(shape);
    choose_room(params, shape);
    if (shape->feed_rows != 0) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid pass_rows: %llu (0, or at least %u: so many ranks pass rows to one of another node)",
                    (unsigned long long)params->pass_rows, shape->feeders);
}

/* A rank alone on its node is the forwarder of all others. */
void xep_path_imagine(const xep_buffer_params_t *params, const xep_plugin_t *plugin, xep_shape_t *shape)
{
    if (!plugin->by_nodes || shape->nranks < 3 || params->path == XEP_PATH_FLAT ||
        params->on_failure == XEP_ON_FAILURE_MASK || params->tokens >= MOST_TOKENS)
        return;
    shape->by_nodes = 1;
    shape->feeders = shape->nranks - 1;
    choose_room(params, shape);
    if (shape->feed_rows == 0) shape->feed_rows = 1;
}
