/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The routing of every rank is drawn token by token, as in a run, and counted for both paths. What these counts cost is
 * said by the library's own model (cost_model.h), by which it also chooses paths. No group and no buffer is made: one
 * process works out all ranks.
 */
#include "perf_simulate.h"

#include <stdio.h>
#include <stdlib.h>

#include "oracle_alloc.h"
#include "perf.h"

enum { FP8_BLOCK = 128 }; /* elements that share a scale */

/* ---- the routing, token by token ---- */

/* What is counted: tokens on each path, the same ones, and in mode ll selections, each as a token of its own. */
enum { SELECTIONS = XEP_COST_PATHS, COUNTS };

/* Every count knows how often experts of a rank were selected: its dispatch copies so many rows. */
static void count_selections(const oracle_routing_t *routing, uint32_t source, const xep_cost_count_t count[COUNTS],
                             const int32_t *idx)
{
    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = oracle_owner(routing, (uint32_t)idx[k]);
        xep_cost_count_token(&count[SELECTIONS], source, &owner, 1);
        for (int i = 0; i < COUNTS; i++) count[i].flow[owner].picked++;
    }
}

/*
 * A token counts on all paths at once: to draw its routing takes longer than to count it. idx, weights and ranks:
 * scratch of a token, [K] each. A source ends before the next one begins, as xep_cost_count_end() wants it.
 */
static void count_source(const oracle_routing_t *routing, uint32_t source, const xep_cost_count_t count[COUNTS],
                         int32_t *idx, float *weights, uint32_t *ranks)
{
    const int counts = count[SELECTIONS].flow != NULL ? COUNTS : XEP_COST_PATHS;

    for (uint64_t token = 0; token < routing->params.tokens_of[source]; token++) {
        oracle_route(routing, source, token, idx, weights);
        const uint32_t n = oracle_destinations(routing, idx, ranks);
        for (int path = 0; path < XEP_COST_PATHS; path++) xep_cost_count_token(&count[path], source, ranks, n);
        if (counts == COUNTS) count_selections(routing, source, count, idx);
    }
    for (int i = 0; i < counts; i++) xep_cost_count_end(&count[i], source);
}

/* flow [R] is the simulation's from here on, which frees it at its end; to [R] goes when rows are counted. */
static xep_cost_count_t begin_count(const perf_simulation_t *simulation, xep_cost_path_t path)
{
    const uint32_t nranks = simulation->map.nranks;
    xep_cost_count_t count = {.map = &simulation->map, .path = path};

    count.flow = oracle_alloc(nranks * sizeof *count.flow);
    count.to = oracle_alloc(nranks * sizeof *count.to);
    xep_cost_message_rows(path, &simulation->sizes, count.message_rows);
    return count;
}

/*
 * Flows stay with the simulation; the rest is scratch of the counting. Selections are counted in mode ll alone, on the
 * flat path: a combine has a row for each there.
 */
static void count_rows(perf_simulation_t *simulation)
{
    const oracle_routing_t *routing = simulation->routing;
    const uint32_t topk = routing->params.topk;
    int32_t *idx = oracle_alloc(topk * sizeof *idx);
    float *weights = oracle_alloc(topk * sizeof *weights);
    uint32_t *ranks = oracle_alloc(topk * sizeof *ranks);
    xep_cost_count_t count[COUNTS] = {0};

    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        count[path] = begin_count(simulation, path);
        simulation->path[path].flow = count[path].flow;
    }
    if (simulation->sizes.by_selection) count[SELECTIONS] = begin_count(simulation, XEP_COST_FLAT);
    simulation->selections = count[SELECTIONS].flow;
    for (uint32_t source = 0; source < simulation->map.nranks; source++)
        count_source(routing, source, count, idx, weights, ranks);
    for (int i = 0; i < COUNTS; i++) free(count[i].to);
    free(ranks);
    free(weights);
    free(idx);
}

/* ---- what comes of it ---- */

/* A xep_cost_load_t is an array of doubles. Each figure of most is the largest by itself, whichever rank has it. */
static void add_load(xep_cost_load_t *mean, xep_cost_load_t *most, const xep_cost_load_t *load, uint32_t nranks)
{
    const double *from = (const double *)load;
    double *sum = (double *)mean, *largest = (double *)most;
    for (size_t i = 0; i < sizeof *load / sizeof *from; i++) {
        sum[i] += from[i] / nranks;
        if (from[i] > largest[i]) largest[i] = from[i];
    }
}

/*
 * Loads and time of one operation where dispatches take a path. What all ranks send is what goes over the network: what
 * comes is the same bytes, seen from the other side.
 */
static void find_operation(perf_simulation_t *simulation, xep_cost_path_t path, xep_cost_operation_t operation)
{
    perf_forecast_t *forecast = &simulation->path[path];
    const xep_cost_path_t way = xep_cost_way(&simulation->sizes, path, operation);
    const int each = simulation->selections != NULL && operation == XEP_COST_COMBINE;
    const xep_cost_flow_t *flow = each ? simulation->selections : forecast->flow;

    for (uint32_t rank = 0; rank < simulation->map.nranks; rank++) {
        xep_cost_load_t load;
        xep_cost_find_load(&simulation->map, way, operation, &simulation->sizes, &flow[rank], rank, &load);
        add_load(&forecast->mean[operation], &forecast->most[operation], &load, simulation->map.nranks);
        forecast->network_bytes[operation] += load.sent_bytes;
    }
    xep_cost_find_time(&simulation->map, way, operation, &simulation->sizes, &simulation->options->cluster.rates, flow,
                       &simulation->time[path][operation]);
}

static void find_loads(perf_simulation_t *simulation, xep_cost_path_t path)
{
    perf_forecast_t *forecast = &simulation->path[path];
    const uint32_t nranks = simulation->map.nranks;

    for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++)
        find_operation(simulation, path, operation);
    for (uint32_t rank = 0; rank < nranks; rank++) {
        const double bytes = xep_cost_memory(&simulation->map, path, &simulation->sizes, rank);
        forecast->mean_memory += bytes / nranks;
        if (bytes > forecast->most_memory) forecast->most_memory = bytes;
    }
}

/*
 * As much room as this routing needs, as xep_perf asks for: the rows of the rank that gets most, in mode ll one for
 * each selection. On both paths the same rows arrive, so the flat path's are counted.
 */
static void find_room(perf_simulation_t *simulation)
{
    const xep_cost_flow_t *flow =
        simulation->selections != NULL ? simulation->selections : simulation->path[XEP_COST_FLAT].flow;
    for (uint32_t rank = 0; rank < simulation->map.nranks; rank++) {
        const double rows = xep_cost_received(&flow[rank], XEP_COST_FLAT);
        simulation->mean_rows += rows / simulation->map.nranks;
        if (rows > simulation->most_rows) simulation->most_rows = rows;
    }
    simulation->sizes.recv_rows = simulation->most_rows > 1 ? (uint64_t)simulation->most_rows : 1;
}

/* Rows that are cast: a byte for each channel, a scale for each group, of UE8M0 four in a word. */
static void set_cast(const perf_options_t *options, xep_cost_sizes_t *sizes)
{
    const uint32_t groups = (uint32_t)(options->hidden + FP8_BLOCK - 1) / FP8_BLOCK;
    sizes->row_bytes = options->hidden;
    sizes->scales = options->quant == XEP_QUANT_UE8M0 ? (groups + 3) / 4 : groups;
}

/*
 * As perf_setup.c asks a buffer for it: rows of fp8 have scales and are summed as bf16. first_expert [R + 1] is filled
 * here; it is the caller's and must last as long as the simulation. recv_rows is set later, by find_room().
 */
static void set_sizes(perf_simulation_t *simulation, uint32_t *first_expert)
{
    const perf_options_t *options = simulation->options;
    const uint32_t hidden = (uint32_t)options->hidden;
    const xep_dtype_t summed = options->dtype == XEP_E4M3 ? XEP_BF16 : options->dtype;
    const double sum_elem = options->cluster.sum_elem;
    uint32_t count;

    for (uint32_t rank = 0; rank < simulation->routing->params.nranks; rank++)
        oracle_experts_of(simulation->routing, rank, &first_expert[rank], &count);
    first_expert[simulation->routing->params.nranks] = (uint32_t)options->experts;
    simulation->sizes = (xep_cost_sizes_t){
        .topk = (uint32_t)options->topk,
        .slots = (uint32_t)options->slots + 1, /* as many as xep_perf has */
        .scales = options->dtype == XEP_E4M3 ? (hidden + FP8_BLOCK - 1) / FP8_BLOCK : 0,
        .tokens = simulation->routing->tokens,
        .row_bytes = hidden * (uint64_t)xep_dtype_size(options->dtype),
        .sum_bytes = hidden * (uint64_t)xep_dtype_size(summed),
        .node_sum_bytes = (uint64_t)(hidden * (sum_elem > 0 ? sum_elem : (double)xep_dtype_size(summed))),
        .message_bytes = (uint64_t)options->cluster.message_bytes,
        .pass_rows =
            options->cluster.pass_rows > 0 ? (uint64_t)options->cluster.pass_rows : 2 * simulation->routing->tokens,
        .by_selection = options->ll,
        .first_expert = first_expert,
    };
    if (options->ll && options->quant != XEP_QUANT_NONE) set_cast(options, &simulation->sizes);
}

/* In this order: room follows from the rows that come, memory and times from both. */
static int simulate(const perf_options_t *options, const oracle_routing_t *routing, perf_simulated_fn report)
{
    const uint32_t nranks = options->cluster.nranks;
    perf_simulation_t simulation = {.options = options, .routing = routing};
    uint32_t *node = oracle_alloc(nranks * sizeof *node);
    uint32_t *first_expert = oracle_alloc((nranks + 1) * sizeof *first_expert);
    const uint32_t nnodes = perf_cluster_nodes(&options->cluster, node);
    uint32_t *words = oracle_alloc(xep_cost_map_words(nranks, nnodes) * sizeof *words);

    xep_cost_make_map(&simulation.map, nranks, nnodes, node, words);
    set_sizes(&simulation, first_expert);
    count_rows(&simulation);
    find_room(&simulation);
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) find_loads(&simulation, path);
    simulation.chosen =
        xep_cost_choose_path(&simulation.map, (const xep_cost_time_t(*)[XEP_COST_OPERATIONS])simulation.time);
    const int ret = report(&simulation);
    for (int path = 0; path < XEP_COST_PATHS; path++) free(simulation.path[path].flow);
    free(simulation.selections);
    free(words);
    free(first_expert);
    free(node);
    return ret;
}

/* A file says by itself how many tokens there are. */
int perf_simulate(const perf_options_t *options, perf_simulated_fn report)
{
    const uint64_t tokens = options->tokens || options->route.kind == ORACLE_ROUTE_FILE ? options->tokens : PERF_TOKENS;
    const oracle_routing_params_t params = {.spec = options->route,
                                            .seed = options->seed,
                                            .nranks = options->cluster.nranks,
                                            .experts = (uint32_t)options->experts,
                                            .topk = (uint32_t)options->topk,
                                            .mask = (uint32_t)options->mask,
                                            .tokens = tokens};
    oracle_routing_t *routing;
    char why[512];
    int ret;

    if (oracle_routing_create(&params, &routing, why, sizeof why)) {
        fprintf(stderr, "xep_perf: %s\n", why);
        return PERF_EXIT_USAGE;
    }
    if (options->record != NULL && oracle_routing_write(routing, options->record, why, sizeof why)) {
        fprintf(stderr, "xep_perf: %s\n", why);
        ret = PERF_EXIT_FAILED;
    } else {
        ret = simulate(options, routing, report);
    }
    oracle_routing_destroy(routing);
    return ret;
}
