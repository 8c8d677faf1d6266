/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The routing of every rank is drawn token by token, as in a run, and counted for both paths. What these counts cost is
 * said by the library's own model (cost_model.h), by which it also chooses paths, of the traffic and the heap that the
 * mode tells. No group and no buffer is made: one process works out all ranks.
 */
#include "perf_simulate.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_payloads.h"
#include "perf.h"

static _Noreturn void refuse(int status, const char *what, const char *why)
{
    fprintf(stderr, "xep_perf: %s%s\n", what, why);
    exit(status);
}

/* ---- the mode ---- */

typedef struct search {
    const char *name;
    const xep_plugin_t *mode;
    char why[512];
} search_t;

/* Called for every plugin file: the first one of that name decides. 0: the next one, please. */
static int look_at_mode(void *arg, const char *name, const char *path, const char *brief, const char *reason)
{
    search_t *search = arg;
    (void)brief;
    if (strcmp(name, search->name) != 0) return 0;
    void *library = reason == NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL; /* it stays loaded */
    if (library != NULL) search->mode = dlsym(library, "xep_plugin");
    else snprintf(search->why, sizeof search->why, "%s", reason != NULL ? reason : dlerror());
    return 1;
}

static const xep_plugin_t *find_mode(const char *name)
{
    search_t search = {.name = name, .why = "there is none, see --list"};
    xep_mode_each(look_at_mode, &search);
    if (search.mode != NULL && search.mode->traffic != NULL) return search.mode;
    fprintf(stderr, "xep_perf: --simulate cannot be used with mode %s: %s\n", name,
            search.mode != NULL ? "it does not tell its traffic" : search.why);
    exit(PERF_EXIT_USAGE);
}

/* ---- the job ---- */

static void make_routing(perf_simulation_t *simulation, const perf_placement_t *placement)
{
    const perf_options_t *options = simulation->options;
    oracle_routing_params_t params = perf_routing_of(options, options->cluster.nranks, perf_tokens_of(options));
    char why[512];

    if (placement != NULL) params.owners = placement->owners;
    if (oracle_routing_create(&params, &simulation->routing, why, sizeof why)) refuse(PERF_EXIT_USAGE, "", why);
    simulation->is_placed = placement != NULL;
    if (placement != NULL) perf_placer_open(simulation->routing, placement, &simulation->placer);
    if (options->record != NULL && oracle_routing_write(simulation->routing, options->record, why, sizeof why))
        refuse(PERF_EXIT_FAILED, "", why);
}

static void make_map(perf_simulation_t *simulation)
{
    const perf_cluster_t *cluster = &simulation->options->cluster;

    simulation->node = oracle_alloc(cluster->nranks * sizeof *simulation->node);
    const uint32_t nnodes = perf_cluster_nodes(cluster, simulation->node);
    simulation->words = oracle_alloc(xep_cost_map_words(cluster->nranks, nnodes) * sizeof *simulation->words);
    xep_cost_make_map(&simulation->map, cluster->nranks, nnodes, simulation->node, simulation->words);
}

/* As perf_setup.c asks a buffer for it. */
static void set_shape(perf_simulation_t *simulation)
{
    const perf_options_t *options = simulation->options;
    const xep_cost_map_t *map = &simulation->map;
    uint32_t *first_expert = oracle_alloc((map->nranks + 1) * sizeof *first_expert);
    uint32_t *node_ranks = oracle_alloc(map->nnodes * sizeof *node_ranks), first, count, most = 0;

    for (uint32_t rank = 0; rank < map->nranks; rank++) {
        oracle_experts_of(simulation->routing, rank, &first, &count);
        first_expert[rank + 1] = first_expert[rank] + count;
        if (count > most) most = count;
    }
    for (uint32_t n = 0; n < map->nnodes; n++) node_ranks[n] = xep_cost_node_ranks(map, n);
    simulation->first_expert = first_expert;
    simulation->node_ranks = node_ranks;
    simulation->shape = (xep_shape_t){.nranks = map->nranks,
                                      .nodes = map->nnodes,
                                      .node = map->node,
                                      .place = map->place,
                                      .node_ranks = node_ranks,
                                      .experts = (uint32_t)options->experts,
                                      .first_expert = first_expert,
                                      .local_experts = first_expert[1],
                                      .most_experts = most,
                                      .topk = (uint32_t)options->topk,
                                      .hidden = (uint32_t)options->hidden,
                                      .scales = perf_scales_of(&simulation->rows),
                                      .elem_bytes = (uint32_t)xep_dtype_size(options->dtype),
                                      .combine_elem_bytes = (uint32_t)xep_dtype_size(simulation->rows.combine_dtype),
                                      .slots = (uint32_t)options->slots + 1, /* as many as xep_perf has */
                                      .tokens = simulation->routing->tokens};
}

/* ---- its traffic ---- */

/*
 * What the mode tells of a path: for dispatched rows that are cast, of rows of bytes and their scales. Outputs go over
 * the network as they are asked for; that ranks sum their own costs the network rows of ranks.
 */
static void ask_mode(const perf_simulation_t *simulation, xep_shape_t shape, xep_traffic_t *dispatch,
                     xep_traffic_t *combine)
{
    const perf_options_t *options = simulation->options;
    xep_traffic_t unused;

    simulation->mode->traffic(&shape, dispatch, combine);
    if (simulation->rows.quant != XEP_QUANT_NONE) {
        shape.hidden = (uint32_t)oracle_received_bytes(&simulation->rows);
        shape.elem_bytes = 1;
        shape.scales = oracle_words_beside(&simulation->rows);
        simulation->mode->traffic(&shape, dispatch, &unused);
    }
    if (options->ll || options->combine_quant != XEP_QUANT_NONE)
        combine->sent_bytes = oracle_travel_bytes(&simulation->rows);
    if (options->sum_at_owner) combine->by_selection = 0;
}

static void begin_path(perf_simulation_t *simulation, xep_cost_path_t path)
{
    const xep_shape_t shape = xep_cost_shape_on(&simulation->shape, path);
    perf_forecast_t *forecast = simulation->forecast[path];

    ask_mode(simulation, shape, &forecast[XEP_COST_DISPATCH].traffic, &forecast[XEP_COST_COMBINE].traffic);
    for (int operation = 0; operation < XEP_COST_OPERATIONS; operation++, forecast++)
        forecast->count =
            (xep_cost_count_t){.map = &simulation->map,
                               .path = xep_cost_way(&forecast->traffic),
                               .by_selection = forecast->traffic.by_selection,
                               .message_rows = xep_cost_message_rows(&forecast->traffic,
                                                                     simulation->options->cluster.message_bytes),
                               .flow = oracle_alloc(shape.nranks * sizeof *forecast->count.flow),
                               .to = oracle_alloc(shape.nranks * sizeof *forecast->count.to)};
}

/* Everything at once: to draw a token's routing takes longer than to count it. idx, weights, owners: scratch, [K]. */
static void count_source(perf_simulation_t *simulation, uint32_t source, int32_t *idx, float *weights, uint32_t *owners)
{
    const oracle_routing_t *routing = simulation->routing;
    perf_forecast_t *forecast = simulation->forecast[0];

    for (uint64_t token = 0; token < routing->params.tokens_of[source]; token++) {
        uint32_t n = 0;
        oracle_route(routing, source, token, idx, weights);
        for (uint32_t k = 0; k < routing->params.topk; k++)
            if (idx[k] >= 0)
                owners[n++] = simulation->is_placed ? xep_plan_pick(&simulation->placer.planner, (uint32_t)idx[k])->rank
                                                    : oracle_owner(routing, (uint32_t)idx[k]);
        for (int i = 0; i < XEP_COST_PATHS * XEP_COST_OPERATIONS; i++)
            xep_cost_count_token(&forecast[i].count, source, owners, n);
    }
    for (int i = 0; i < XEP_COST_PATHS * XEP_COST_OPERATIONS; i++) xep_cost_count_end(&forecast[i].count, source);
}

static void count_rows(perf_simulation_t *simulation)
{
    const uint32_t topk = simulation->shape.topk;
    int32_t *idx = oracle_alloc(topk * sizeof *idx);
    float *weights = oracle_alloc(topk * sizeof *weights);
    uint32_t *owners = oracle_alloc(topk * sizeof *owners);

    for (uint32_t source = 0; source < simulation->map.nranks; source++) {
        if (simulation->is_placed) perf_placer_begin(&simulation->placer, source);
        count_source(simulation, source, idx, weights, owners);
    }
    free(owners);
    free(weights);
    free(idx);
}

/* ---- what comes of it ---- */

/*
 * As much room as this routing needs, as xep_perf asks for: the rows of the rank that gets most, on either path; by
 * expert one of each selection, however they come back.
 */
static void find_room(perf_simulation_t *simulation)
{
    const xep_cost_flow_t *flow = simulation->forecast[XEP_COST_FLAT][XEP_COST_COMBINE].count.flow;
    for (uint32_t rank = 0; rank < simulation->map.nranks; rank++) {
        const double rows = simulation->options->ll ? flow[rank].picked : xep_cost_received(&flow[rank], XEP_COST_FLAT);
        simulation->mean_rows += rows / simulation->map.nranks;
        if (rows > simulation->most_rows) simulation->most_rows = rows;
    }
    simulation->shape.recv_rows = simulation->most_rows > 1 ? (uint64_t)simulation->most_rows : 1;
}

/*
 * A xep_cost_load_t is an array of doubles. Each figure of most is the largest by itself, whichever rank has it. What
 * all ranks send is what goes over the network: what comes is the same bytes, seen from the other side.
 */
static void forecast_operation(perf_simulation_t *simulation, xep_cost_path_t path, xep_cost_operation_t operation)
{
    const xep_cost_map_t *map = &simulation->map;
    perf_forecast_t *forecast = &simulation->forecast[path][operation];
    double *mean = (double *)&forecast->mean, *most = (double *)&forecast->most;

    for (uint32_t rank = 0; rank < map->nranks; rank++) {
        xep_cost_load_t load;
        xep_cost_find_load(map, operation, &forecast->traffic, &forecast->count.flow[rank], rank, &load);
        for (size_t i = 0; i < sizeof load / sizeof *mean; i++) {
            const double value = ((const double *)&load)[i];
            mean[i] += value / map->nranks;
            if (value > most[i]) most[i] = value;
        }
        forecast->network_bytes += load.sent_bytes;
    }
    xep_cost_find_time(map, operation, &forecast->traffic, &simulation->options->cluster.rates, forecast->count.flow,
                       &forecast->time);
    simulation->seconds[path] += forecast->time.seconds;
}

/* What the mode asks for, with the room for rows in passing that a buffer would choose. */
static void measure_heap(perf_simulation_t *simulation, xep_cost_path_t path)
{
    xep_shape_t shape = xep_cost_shape_on(&simulation->shape, path);
    const uint64_t sources = shape.by_nodes ? shape.upstreams : shape.nranks;
    xep_region_t regions[XEP_REGIONS] = {0};
    uint64_t rows, bytes = 0, room = simulation->forecast[path][XEP_COST_DISPATCH].traffic.pass_rows;

    if (room != 0 && simulation->options->cluster.pass_rows > 0)
        room = (uint64_t)simulation->options->cluster.pass_rows;
    shape.feed_rows = room < sources ? 1 : room / sources;
    if (room == 0 || shape.feed_rows > shape.tokens) shape.feed_rows = shape.tokens;
    if (simulation->mode->heap_size(&shape, regions, &rows) != XEP_OK)
        refuse(PERF_EXIT_FAILED, simulation->mode->name, ": the mode cannot serve this shape");
    for (int i = 0; i < XEP_REGIONS; i++)
        if (regions[i].bytes != 0)
            bytes = (bytes + regions[i].alignment - 1) / regions[i].alignment * regions[i].alignment + regions[i].bytes;
    simulation->memory[path] = bytes;
    if (path == XEP_COST_NODES) simulation->pass_rows = room;
}

/*
 * In this order: room follows from the rows that come, memory from that. As in a buffer, by nodes where it pays. Ranks
 * with few experts have other room by a placement: the mode is asked for that of the owners, so memory is not compared.
 */
void perf_simulate(const perf_options_t *options, const perf_placement_t *placement, perf_simulation_t *simulation_p)
{
    perf_simulation_t *simulation = simulation_p;

    *simulation =
        (perf_simulation_t){.options = options, .mode = find_mode(options->mode), .rows = perf_shape_of(options)};
    make_routing(simulation, placement);
    make_map(simulation);
    set_shape(simulation);
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) begin_path(simulation, path);
    count_rows(simulation);
    find_room(simulation);
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        forecast_operation(simulation, path, XEP_COST_DISPATCH);
        forecast_operation(simulation, path, XEP_COST_COMBINE);
        measure_heap(simulation, path);
    }
    if (xep_cost_has_locals(&simulation->shape) &&
        simulation->seconds[XEP_COST_NODES] < simulation->seconds[XEP_COST_FLAT])
        simulation->chosen = XEP_COST_NODES;
}

void perf_simulation_end(perf_simulation_t *simulation)
{
    const perf_forecast_t *forecast = simulation->forecast[0];

    for (int i = 0; i < XEP_COST_PATHS * XEP_COST_OPERATIONS; i++) {
        free(forecast[i].count.flow);
        free(forecast[i].count.to);
    }
    free(simulation->words);
    free(simulation->node_ranks);
    free(simulation->first_expert);
    free(simulation->node);
    if (simulation->is_placed) perf_placer_close(&simulation->placer);
    oracle_routing_destroy(simulation->routing);
}
