/* SPDX-License-Identifier: BSD-3-Clause */

/** --placement: what other places for experts would be worth, by the plans of the library, for a simulated job. */
#ifndef PERF_PLACEMENT_H
#define PERF_PLACEMENT_H

#include "oracle.h"
#include "plan.h"

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

/** How often each rank selects each expert: adds to counts, [R][E]. */
void perf_count_selections(const oracle_routing_t *routing, uint32_t *counts);

/** Counts the routing, and makes a plan for it. */
void perf_placer_open(const oracle_routing_t *routing, const perf_placement_t *placement, perf_placer_t *placer);
void perf_placer_close(perf_placer_t *placer);

/** Ranks in turn, from 0; then of each of a rank's selections: the rank that serves it. */
void perf_placer_begin(perf_placer_t *placer, uint32_t source);
uint32_t perf_placer_pick(perf_placer_t *placer, uint32_t expert);

#endif
