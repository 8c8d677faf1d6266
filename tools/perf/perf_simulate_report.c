/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The model's times are in seconds, its sizes in bytes, its rows may be fractions (means). The table for people has us,
 * MB and GB of 10^6 and 10^9 bytes, and MiB of memory; JSON has us, and bytes everywhere else.
 */
#include "perf_simulate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "perf_report.h"

static const char *const path_names[] = {[XEP_COST_FLAT] = "flat", [XEP_COST_NODES] = "nodes"};
static const char *const op_names[] = {[XEP_COST_DISPATCH] = "dispatch", [XEP_COST_COMBINE] = "combine"};

/* ---- the table ---- */

/* All rates, also those that nobody gave: the times below mean nothing without them. */
static void print_head(const perf_simulation_t *simulation)
{
    const perf_options_t *options = simulation->options;
    const perf_cluster_t *cluster = &options->cluster;
    const xep_cost_rates_t *rates = &cluster->rates;

    printf("xep %s, simulated: %" PRIu32 " rank%s on %" PRIu32 " node%s\n", xep_version_string(), cluster->nranks,
           cluster->nranks == 1 ? "" : "s", simulation->map.nnodes, simulation->map.nnodes == 1 ? "" : "s");
    perf_print_shape(options, simulation->routing->tokens);
    if (options->ll) printf(", mode ll");
    if (options->ll || options->quant != XEP_QUANT_NONE) printf(", quant %s", options->quant_name);
    if (options->combine_quant != XEP_QUANT_NONE) printf(", combine %s", options->combine_quant_name);
    if (options->sum_at_owner) printf(", sums at owners");
    printf("\nnetwork %g GB/s a node, %g a rank; memory %g GB/s a rank, %g a node (0: no bound)\n",
           rates->node_network / 1e9, rates->rank_network / 1e9, rates->rank_memory / 1e9, rates->node_memory / 1e9);
    printf("latency %g us, a message %g us; pieces of %g KiB; room for %.0f rows in passing\n", rates->latency * 1e6,
           rates->message * 1e6, cluster->message_bytes / 1024, (double)simulation->pass_rows);
    printf("a rank receives %.0f rows on average, %.0f at most\n", simulation->mean_rows, simulation->most_rows);
}

/*
 * One line of what a rank does: near to other ranks of its node, sent and came over the network. whose: "mean", of all
 * ranks, or "most", where each figure is the largest of any rank, not always of the same one.
 */
static void print_load(xep_cost_path_t path, xep_cost_operation_t operation, const char *whose,
                       const xep_cost_load_t *load)
{
    printf("%-6s %-9s %-6s %10.0f %10.2f %9.0f %10.0f %10.2f %10.2f %9.0f\n", path_names[path], op_names[operation],
           whose, load->near_rows, load->near_bytes / 1e6, load->near_messages, load->sent_rows, load->sent_bytes / 1e6,
           load->came_bytes / 1e6, load->sent_messages);
}

/* The mean tells what the wires carry, the most what all wait for. */
static void print_loads(const perf_simulation_t *simulation)
{
    printf("%23s %31s %42s\n", "of a rank:", "to other ranks of its node", "over the network");
    printf("%-6s %-9s %-6s %10s %10s %9s %10s %10s %10s %9s\n", "path", "op", "rank", "rows", "MB", "messages",
           "rows out", "MB out", "MB in", "messages");
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++)
        for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++) {
            print_load(path, operation, "mean", &simulation->forecast[path][operation].mean);
            print_load(path, operation, "most", &simulation->forecast[path][operation].most);
        }
}

/*
 * The first time is that of the operation. The others are what takes longest in each of its parts. They do not add up
 * to it: the network and the memory are busy at the same time. node: the one whose network takes longest.
 */
static void print_times(const perf_simulation_t *simulation)
{
    printf("%-6s %-9s %12s %12s %12s %12s %12s %6s\n", "path", "op", "us", "network us", "memory us", "passing us",
           "rounds us", "node");
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++)
        for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++) {
            const xep_cost_time_t *time = &simulation->forecast[path][operation].time;
            printf("%-6s %-9s %12.1f %12.1f %12.1f %12.1f %12.1f %6" PRIu32 "\n", path_names[path], op_names[operation],
                   time->seconds * 1e6, time->network * 1e6, time->memory * 1e6, time->passed * 1e6, time->rounds * 1e6,
                   time->node);
        }
}

/* Bytes over the network are of all ranks together, memory is of one rank. The library itself has chosen the path. */
static void print_end(const perf_simulation_t *simulation)
{
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        printf(
            "%-6s %.3f GB over the network for a dispatch of all ranks, %.3f for a combine; a rank shares %.1f MiB\n",
            path_names[path], simulation->forecast[path][XEP_COST_DISPATCH].network_bytes / 1e9,
            simulation->forecast[path][XEP_COST_COMBINE].network_bytes / 1e9,
            (double)simulation->memory[path] / (1 << 20));
    }
    printf("path: %s (dispatch and combine: flat %.1f us, nodes %.1f us)\n", path_names[simulation->chosen],
           simulation->seconds[XEP_COST_FLAT] * 1e6, simulation->seconds[XEP_COST_NODES] * 1e6);
}

/* ---- JSON ---- */

/* Nine figures, of which the table has seven: rows and messages that come are here alone. Leaves a comma behind it. */
static void write_load(FILE *file, const char *whose, const xep_cost_load_t *load)
{
    fprintf(file,
            "\"%s\": {\"near_rows\": %.17g, \"near_bytes\": %.17g, \"near_messages\": %.17g, \"sent_rows\": %.17g, "
            "\"sent_bytes\": %.17g, \"sent_messages\": %.17g, \"came_rows\": %.17g, \"came_bytes\": %.17g, "
            "\"came_messages\": %.17g}, ",
            whose, load->near_rows, load->near_bytes, load->near_messages, load->sent_rows, load->sent_bytes,
            load->sent_messages, load->came_rows, load->came_bytes, load->came_messages);
}

static void write_op(FILE *file, const perf_simulation_t *simulation, xep_cost_path_t path,
                     xep_cost_operation_t operation)
{
    const perf_forecast_t *forecast = &simulation->forecast[path][operation];
    const xep_cost_time_t *time = &forecast->time;

    fprintf(file, "{\"op\": \"%s\", ", op_names[operation]);
    write_load(file, "mean", &forecast->mean);
    write_load(file, "most", &forecast->most);
    fprintf(file,
            "\"network_bytes\": %.17g, \"us\": %.3f, \"network_us\": %.3f, \"memory_us\": %.3f, \"passing_us\": %.3f, "
            "\"rounds_us\": %.3f, \"node\": %" PRIu32 "}",
            forecast->network_bytes, time->seconds * 1e6, time->network * 1e6, time->memory * 1e6, time->passed * 1e6,
            time->rounds * 1e6, time->node);
}

static void write_path(FILE *file, const perf_simulation_t *simulation, xep_cost_path_t path)
{
    fprintf(file, "{\"path\": \"%s\", \"memory_bytes\": %" PRIu64 ", \"ops\": [", path_names[path],
            simulation->memory[path]);
    write_op(file, simulation, path, XEP_COST_DISPATCH);
    fputs(", ", file);
    write_op(file, simulation, path, XEP_COST_COMBINE);
    fputs("]}", file);
}

/* Numbers as %.17g: what reads them gets the same bits. */
static int write_json(FILE *file, const void *arg)
{
    const perf_simulation_t *simulation = arg;
    const perf_options_t *options = simulation->options;

    fprintf(file,
            "{\"format\": %d, \"version\": \"%s\", \"ranks\": %" PRIu32 ", \"nodes\": %" PRIu32 ", \"tokens\": %" PRIu64
            ", \"hidden\": %" PRIu64 ", \"topk\": %" PRIu64 ", \"experts\": %" PRIu64
            ", \"dtype\": \"%s\", \"mode\": \"%s\", \"seed\": %" PRIu64
            ", \"rows\": {\"mean\": %.17g, \"most\": %.0f}, "
            "\"chosen\": \"%s\", \"paths\": [",
            PERF_JSON_FORMAT, xep_version_string(), simulation->map.nranks, simulation->map.nnodes,
            simulation->routing->tokens, options->hidden, options->topk, options->experts, options->dtype_name,
            simulation->mode->name, options->seed, simulation->mean_rows, simulation->most_rows,
            path_names[simulation->chosen]);
    write_path(file, simulation, XEP_COST_FLAT);
    fputs(", ", file);
    write_path(file, simulation, XEP_COST_NODES);
    return fputs("]}\n", file) < 0;
}

/* With --json - stdout is JSON and nothing else, so the table is left out. */
static int has_table(const perf_options_t *options)
{
    return options->json == NULL || strcmp(options->json, "-") != 0;
}

int perf_report_simulation(const perf_options_t *options)
{
    perf_simulation_t simulation;

    perf_simulate(options, NULL, &simulation);
    if (has_table(options)) {
        print_head(&simulation);
        print_loads(&simulation);
        print_times(&simulation);
        print_end(&simulation);
        fflush(stdout);
    }
    const int ret = perf_json_file(options, "w", write_json, &simulation);
    perf_simulation_end(&simulation);
    return ret;
}

/* ---- placements ---- */

static const perf_placement_t placements[] = {
    {.name = "blocks", .owners = "block"},
    {.name = "greedy", .owners = "greedy"},
    {.name = "1 replica", .owners = "block", .replicas = 1},
    {.name = "8 replicas", .owners = "block", .replicas = 8},
    {.name = "16 replicas", .owners = "block", .replicas = 16},
    {.name = "32 replicas", .owners = "block", .replicas = 32},
    {.name = "64 replicas", .owners = "block", .replicas = 64},
    {.name = "64, greedy", .owners = "greedy", .replicas = 64},
    {.name = "even", .owners = "block", .is_even = 1},
};

enum { PLACEMENTS = sizeof placements / sizeof *placements };

/** The figures of a placement, on the faster of the two paths. */
typedef struct placed {
    double imbalance;            /* of selections */
    double mean_rows, most_rows; /* of a rank */
    double network_bytes;        /* of all ranks, for a dispatch and its combine */
    double most_bytes;           /* in by the network, of the rank with most, for a dispatch */
    double us;
} placed_t;

typedef struct comparison {
    const perf_options_t *options;
    placed_t placed[PLACEMENTS];
} comparison_t;

static placed_t place(const perf_options_t *options, const perf_placement_t *placement)
{
    perf_simulation_t simulation;

    perf_simulate(options, placement, &simulation);
    const xep_planner_t *planner = &simulation.placer.planner;
    const perf_forecast_t *chosen = simulation.forecast[simulation.chosen];
    const placed_t placed = {.imbalance = planner->selections == 0 ? 0
                                                                   : (double)planner->most_after * planner->nranks /
                                                                         (double)planner->selections,
                             .mean_rows = simulation.mean_rows,
                             .most_rows = simulation.most_rows,
                             .network_bytes =
                                 chosen[XEP_COST_DISPATCH].network_bytes + chosen[XEP_COST_COMBINE].network_bytes,
                             .most_bytes = chosen[XEP_COST_DISPATCH].most.came_bytes,
                             .us = simulation.seconds[simulation.chosen] * 1e6};
    perf_simulation_end(&simulation);
    return placed;
}

static void print_placements(const comparison_t *all)
{
    const perf_options_t *options = all->options;

    printf("xep %s, simulated: %" PRIu32 " ranks, top %" PRIu64 " of %" PRIu64 " experts, routing %s\n",
           xep_version_string(), options->cluster.nranks, options->topk, options->experts, options->routing);
    printf("%-12s %10s %10s %10s %12s %12s %12s\n", "placement", "imbalance", "rows mean", "rows most", "MB in, most",
           "network GB", "us");
    for (int i = 0; i < PLACEMENTS; i++) {
        const placed_t *placed = &all->placed[i];
        printf("%-12s %10.3f %10.0f %10.0f %12.2f %12.3f %12.1f\n", placements[i].name, placed->imbalance,
               placed->mean_rows, placed->most_rows, placed->most_bytes / 1e6, placed->network_bytes / 1e9, placed->us);
    }
    fflush(stdout);
}

static int write_placements(FILE *file, const void *arg)
{
    const comparison_t *all = arg;
    const perf_options_t *options = all->options;

    fprintf(file,
            "{\"version\": \"%s\", \"ranks\": %" PRIu32 ", \"topk\": %" PRIu64 ", \"experts\": %" PRIu64
            ", \"tokens\": %" PRIu64 ", \"hidden\": %" PRIu64 ", \"mode\": \"%s\", \"seed\": %" PRIu64
            ", \"placements\": [",
            xep_version_string(), options->cluster.nranks, options->topk, options->experts, options->tokens,
            options->hidden, options->mode, options->seed);
    for (int i = 0; i < PLACEMENTS; i++) {
        const placed_t *placed = &all->placed[i];
        fprintf(file,
                "%s{\"name\": \"%s\", \"imbalance\": %.17g, \"rows\": {\"mean\": %.17g, \"most\": %.0f}, "
                "\"most_bytes\": %.17g, \"network_bytes\": %.17g, \"us\": %.3f}",
                i == 0 ? "" : ", ", placements[i].name, placed->imbalance, placed->mean_rows, placed->most_rows,
                placed->most_bytes, placed->network_bytes, placed->us);
    }
    return fputs("]}\n", file) < 0;
}

int perf_report_placements(const perf_options_t *options)
{
    comparison_t all = {.options = options};

    for (int i = 0; i < PLACEMENTS; i++) all.placed[i] = place(options, &placements[i]);
    if (has_table(options)) print_placements(&all);
    return perf_json_file(options, "w", write_placements, &all);
}
