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

/** Who serves which selections. */
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

/** Ranks in turn, from 0; xep_plan_pick() then says who serves each of its selections. */
void perf_placer_begin(perf_placer_t *placer, uint32_t source);

/* ---- perf_simulate.c ---- */

/** What is known of one operation on one path. */
typedef struct perf_forecast {
    xep_traffic_t traffic;
    xep_cost_count_t count;     /* flow, and scratch */
    xep_cost_load_t mean, most; /* of a rank */
    double network_bytes;       /* of all ranks together */
    xep_cost_time_t time;
} perf_forecast_t;

typedef struct perf_simulation {
    const perf_options_t *options;
    oracle_routing_t *routing;
    const xep_plugin_t *mode;
    int is_placed; /* by the placer; 0: selections go to the owners */
    perf_placer_t placer;
    oracle_shape_t rows;
    xep_shape_t shape;
    xep_cost_map_t map;
    uint32_t *node, *node_ranks, *first_expert, *words; /* of shape and map */
    double mean_rows, most_rows;                        /* that a rank receives */
    perf_forecast_t forecast[XEP_COST_PATHS][XEP_COST_OPERATIONS];
    double seconds[XEP_COST_PATHS];  /* of a dispatch and its combine: a layer of a model has one of each */
    uint64_t memory[XEP_COST_PATHS]; /* bytes that the mode shares, the same of each rank */
    uint64_t pass_rows;              /* by nodes: that there is room for while they pass */
    xep_cost_path_t chosen;
} perf_simulation_t;

/** Ends the process where something is wrong. placement NULL: the owners of the options. */
void perf_simulate(const perf_options_t *options, const perf_placement_t *placement, perf_simulation_t *simulation_p);
void perf_simulation_end(perf_simulation_t *simulation);

/* ---- perf_simulate_report.c: simulates, and prints a table for people, JSON for programs ---- */

/** One job; one placement after the other. The exit status of xep_perf. */
int perf_report_simulation(const perf_options_t *options);
int perf_report_placements(const perf_options_t *options);

#endif
