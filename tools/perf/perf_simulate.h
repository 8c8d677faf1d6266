/* SPDX-License-Identifier: BSD-3-Clause */

/** --simulate: what a dispatch and a combine cost a job that does not exist. */
#ifndef PERF_SIMULATE_H
#define PERF_SIMULATE_H

#include "oracle.h"
#include "perf_options.h"

/** What is known of one operation on one path. */
typedef struct perf_forecast {
    xep_traffic_t traffic;
    xep_cost_count_t count;     /* flow, and scratch */
    xep_cost_load_t mean, most; /* of a rank */
    double network_bytes;       /* of all ranks together */
    xep_cost_time_t time;
} perf_forecast_t;

enum { PERF_FORECASTS = XEP_COST_PATHS * XEP_COST_OPERATIONS };

typedef struct perf_simulation {
    const perf_options_t *options;
    const oracle_routing_t *routing;
    const xep_plugin_t *mode;
    xep_shape_t shape;
    xep_cost_map_t map;
    double mean_rows, most_rows;              /* that a rank receives */
    perf_forecast_t forecast[PERF_FORECASTS]; /* perf_forecast() */
    double seconds[XEP_COST_PATHS];           /* of a dispatch and its combine: a layer of a model has one of each */
    uint64_t memory[XEP_COST_PATHS];          /* bytes that the mode shares, the same of each rank */
    uint64_t pass_rows;                       /* by nodes: that there is room for while they pass */
    xep_cost_path_t chosen;
} perf_simulation_t;

static inline const perf_forecast_t *perf_forecast(const perf_simulation_t *simulation, xep_cost_path_t path,
                                                   xep_cost_operation_t operation)
{
    return &simulation->forecast[path * XEP_COST_OPERATIONS + operation];
}

/** Prints the result; returns the exit status of xep_perf. */
typedef int (*perf_simulated_fn)(const perf_simulation_t *simulation);

/** The exit status of xep_perf: what report returns, or after it has printed what is wrong. */
int perf_simulate(const perf_options_t *options, perf_simulated_fn report);

/* ---- perf_simulate_report.c ---- */

/* What --simulate prints: a table for people, JSON for programs. */

/** The exit status of xep_perf. */
int perf_forecast_report(const perf_simulation_t *simulation);

#endif
