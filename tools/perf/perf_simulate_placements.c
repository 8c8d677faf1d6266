/* SPDX-License-Identifier: BSD-3-Clause */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "perf_report.h"
#include "perf_simulate.h"

/** What is known of one placement. */
typedef struct placed {
    double imbalance;            /* of selections */
    double mean_rows, most_rows; /* of a rank */
    double network_bytes;        /* of all ranks, for a dispatch and its combine */
    double most_bytes;           /* in by the network, of the rank with most, for a dispatch */
    double seconds;
} placed_t;

/* On the path that takes less time. */
static int take(void *arg, const perf_simulation_t *simulation)
{
    const xep_planner_t *planner = &simulation->placer->planner;
    const perf_forecast_t *dispatch = perf_forecast(simulation, simulation->chosen, XEP_COST_DISPATCH),
                          *combine = perf_forecast(simulation, simulation->chosen, XEP_COST_COMBINE);
    placed_t *placed = arg;

    *placed = (placed_t){.mean_rows = simulation->mean_rows,
                         .most_rows = simulation->most_rows,
                         .network_bytes = dispatch->network_bytes + combine->network_bytes,
                         .most_bytes = dispatch->most.came_bytes,
                         .seconds = simulation->seconds[simulation->chosen]};
    if (planner->selections != 0)
        placed->imbalance = (double)planner->most_after * planner->nranks / (double)planner->selections;
    return 0;
}

static void print(const perf_options_t *options, const placed_t *placed)
{
    printf("xep %s, simulated: %" PRIu32 " ranks, top %" PRIu64 " of %" PRIu64 " experts, routing %s\n",
           xep_version_string(), options->cluster.nranks, options->topk, options->experts, options->routing);
    printf("%-12s %10s %10s %10s %12s %12s %12s\n", "placement", "imbalance", "rows mean", "rows most", "MB in, most",
           "network GB", "us");
    for (int i = 0; i < PERF_PLACEMENTS; i++)
        printf("%-12s %10.3f %10.0f %10.0f %12.2f %12.3f %12.1f\n", perf_placements[i].name, placed[i].imbalance,
               placed[i].mean_rows, placed[i].most_rows, placed[i].most_bytes / 1e6, placed[i].network_bytes / 1e9,
               placed[i].seconds * 1e6);
}

typedef struct placements {
    const perf_options_t *options;
    placed_t placed[PERF_PLACEMENTS];
} placements_t;

static int write_json(FILE *file, const void *arg)
{
    const placements_t *all = arg;
    const perf_options_t *options = all->options;

    fprintf(file,
            "{\"version\": \"%s\", \"ranks\": %" PRIu32 ", \"topk\": %" PRIu64 ", \"experts\": %" PRIu64
            ", \"tokens\": %" PRIu64 ", \"hidden\": %" PRIu64 ", \"mode\": \"%s\", \"seed\": %" PRIu64
            ", \"placements\": [",
            xep_version_string(), options->cluster.nranks, options->topk, options->experts, options->tokens,
            options->hidden, options->mode, options->seed);
    for (int i = 0; i < PERF_PLACEMENTS; i++) {
        const placed_t *placed = &all->placed[i];
        fprintf(file,
                "%s{\"name\": \"%s\", \"imbalance\": %.17g, \"rows\": {\"mean\": %.17g, \"most\": %.0f}, "
                "\"most_bytes\": %.17g, \"network_bytes\": %.17g, \"us\": %.3f}",
                i == 0 ? "" : ", ", perf_placements[i].name, placed->imbalance, placed->mean_rows, placed->most_rows,
                placed->most_bytes, placed->network_bytes, placed->seconds * 1e6);
    }
    return fputs("]}\n", file) < 0;
}

int perf_compare_placements(const perf_options_t *options)
{
    placements_t all = {.options = options};

    for (int i = 0; i < PERF_PLACEMENTS; i++) {
        const int ret = perf_simulate(options, &perf_placements[i], take, &all.placed[i]);
        if (ret != 0) return ret;
    }
    if (options->json == NULL || strcmp(options->json, "-")) print(options, all.placed);
    fflush(stdout);
    return perf_json_file(options, "w", write_json, &all);
}
