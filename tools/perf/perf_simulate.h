/* SPDX-License-Identifier: BSD-3-Clause */

/** --simulate: what a dispatch and a combine cost a job that does not exist. */
#ifndef PERF_SIMULATE_H
#define PERF_SIMULATE_H

#include "oracle.h"
#include "perf_options.h"

/** What is known of one path. */
typedef struct perf_forecast {
    xep_cost_flow_t *flow;                                                /* [R] of a dispatch, in normal of both */
    xep_cost_load_t mean[XEP_COST_OPERATIONS], most[XEP_COST_OPERATIONS]; /* of a rank */
    double network_bytes[XEP_COST_OPERATIONS];                            /* of all ranks together */
    double mean_memory, most_memory;                                      /* bytes that a rank shares */
} perf_forecast_t;

typedef struct perf_simulation {
    const perf_options_t *options;
    const oracle_routing_t *routing;
    xep_cost_map_t map;
    xep_cost_sizes_t sizes;
    double mean_rows, most_rows; /* that a rank receives */
    perf_forecast_t path[XEP_COST_PATHS];
    xep_cost_flow_t *selections; /* [R] mode ll: of a combine, which has a row for each; else NULL */
    xep_cost_time_t time[XEP_COST_PATHS][XEP_COST_OPERATIONS];
    xep_cost_path_t chosen;
} perf_simulation_t;

/** Prints the result; returns the exit status of xep_perf. */
typedef int (*perf_simulated_fn)(const perf_simulation_t *simulation);

/** The exit status of xep_perf: what report returns, or after it has printed what is wrong. */
int perf_simulate(const perf_options_t *options, perf_simulated_fn report);

#endif
