/* SPDX-License-Identifier: BSD-3-Clause */

/** Which ranks serve how many selections of each expert: all compute it alike, from the counts of all. */
#ifndef XEP_BALANCE_PLAN_H
#define XEP_BALANCE_PLAN_H

#include "instances.h"

/** A rank's part of the selections of an expert. */
typedef struct xep_part {
    uint32_t instance, rank;
    uint64_t rows;
} xep_part_t;

typedef struct xep_planner {
    const xep_instances_t *instances;
    const uint32_t *owner; /* NULL, or [E]: an owner map */
    uint32_t experts, nranks;
    /* of one plan */
    uint64_t *total;         /* [E] selections of all ranks */
    uint64_t *load;          /* [R] of each rank, by the plan */
    uint32_t *first, *count; /* [E] parts of each expert */
    xep_part_t *parts;
    uint32_t nparts, room;
    uint64_t selections, most_before, most_after;
    /* for the plans */
    uint32_t *of_rank, *rank_begin; /* EVEN: [E] experts by owner, [R + 1] */
    uint64_t *rows;                 /* [instances] PLAN */
} xep_planner_t;

/** For checked params, whose instances stay. XEP_ERR_NO_MEMORY; free what it made with close. */
xep_status_t xep_planner_open(const xep_buffer_params_t *params, const xep_instances_t *instances, uint32_t nranks,
                              xep_planner_t *planner);
void xep_planner_close(xep_planner_t *planner);

/** Begins a plan: totals. counts: [R] pointers to [E]. */
void xep_plan_count(xep_planner_t *planner, const uint32_t *const *counts);

void xep_plan_owners(xep_planner_t *planner);
void xep_plan_least_loaded(xep_planner_t *planner);
void xep_plan_even(xep_planner_t *planner);

/** From planner->rows. XEP_ERR_INVALID: those of an expert do not add up. */
xep_status_t xep_plan_take(xep_planner_t *planner);

/**
 * The parts of expert's selections of rank: [at most planner->count[expert]] with the same instances, rows may be 0.
 * First come those that stay on their rank; the rest goes to what is left of the parts in order, ranks ascending.
 */
void xep_plan_share(const xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank,
                    uint64_t *rows);

#endif
