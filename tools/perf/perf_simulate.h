/* SPDX-License-Identifier: BSD-3-Clause */

/** --simulate: what a dispatch and a combine cost a job that does not exist. */
#ifndef PERF_SIMULATE_H
#define PERF_SIMULATE_H

#include "oracle.h"
#include "perf_options.h"
#include "plan.h"

/* ---- perf_simulate_placer.c ---- */

/* --placement: what other places for experts would be worth, by the plans of the library. */

/** Where experts are, and who serves a selection. */
typedef struct perf_placement {
    const char *name;
    const char *owners; /* of oracle_owners_make() */
    uint32_t replicas;  /* of the busiest experts, by XEP_BALANCE_LEAST_LOADED */
    int is_even;        /* XEP_BALANCE_EVEN */
} perf_placement_t;

enum { PERF_PLACEMENTS = 9 };
extern const perf_placement_t perf_placements[PERF_PLACEMENTS];

/** Chooses the rank of each selection. */
typedef struct perf_placer {
    xep_instances_t instances;
    xep_planner_t planner;
    uint32_t *counts;      /* [R][E] selections */
    const uint32_t **rows; /* [R] of counts */
    uint64_t *before;      /* [E] selections of the ranks so far that do not stay there */
} perf_placer_t;

/** Counts the routing, and makes a plan for it. */
void perf_placer_open(const oracle_routing_t *routing, const perf_placement_t *placement, perf_placer_t *placer);
void perf_placer_close(perf_placer_t *placer);

/** Ranks in turn, from 0; then of each of a rank's selections: the rank that serves it. */
void perf_placer_begin(perf_placer_t *placer, uint32_t source);
uint32_t perf_placer_pick(perf_placer_t *placer, uint32_t expert);

/* ---- perf_simulate.c ---- */

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
    perf_placer_t *placer; /* NULL: selections go to the owners */
    oracle_shape_t rows;
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

/** Takes the result; returns the exit status of xep_perf. */
typedef int (*perf_simulated_fn)(void *arg, const perf_simulation_t *simulation);

/** What report returns; ends the process where something is wrong. placement NULL: the owners of the options. */
int perf_simulate(const perf_options_t *options, const perf_placement_t *placement, perf_simulated_fn report,
                  void *arg);

/* ---- perf_simulate_report.c ---- */

/* What --simulate prints: a table for people, JSON for programs. */

/** The exit status of xep_perf. */
int perf_forecast_report(void *arg, const perf_simulation_t *simulation);

/* ---- perf_simulate_placements.c ---- */

/** --placement: simulates one placement after the other and prints a line for each. The exit status of xep_perf. */
int perf_compare_placements(const perf_options_t *options);

#endif
