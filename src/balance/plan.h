/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Which ranks serve how many selections of each expert: all compute it alike, from the counts of all. Pure functions,
 * for dispatches and for jobs that do not exist (xep_perf --simulate).
 */
#ifndef XEP_BALANCE_PLAN_H
#define XEP_BALANCE_PLAN_H

#include <xep/xep.h>

/** The ranks that serve each expert: its owner, and others. */
typedef struct xep_instances {
    uint32_t count;
    uint32_t *begin; /* [E + 1] first instance of each expert; the arrays are one allocation */
    uint32_t *rank;  /* [count] of an expert: its owner, then the others ascending */
} xep_instances_t;

/** A rank's part of the selections of an expert. */
typedef struct xep_part {
    uint32_t instance, rank;
    uint64_t rows;
} xep_part_t;

/** An instance of a rank, and all those of its expert. */
typedef struct xep_sibling {
    uint32_t instance, begin, end;
} xep_sibling_t;

/** How rows can move from rank to rank, where not every rank has every expert. */
typedef struct xep_paths {
    xep_sibling_t *of_rank; /* [rank_begin[R]] instances of each rank, of experts that have several */
    uint32_t *rank_begin;   /* [R + 1]; this array and the next ones are one allocation */
    uint32_t *from, *to;    /* [R] rows of this instance could move to that one, which is the rank's */
    uint32_t *queue, found; /* [R] ranks that were found */
    uint8_t *seen;          /* [R] */
} xep_paths_t;

typedef struct xep_planner {
    const xep_instances_t *instances;
    uint32_t experts, nranks;
    int is_whole;       /* every rank has every expert */
    const uint8_t *out; /* [R] 1: the rank is out, and is given nothing; NULL: none is */
    /* of one plan */
    uint64_t *total;         /* [E] selections of all ranks */
    uint64_t *load;          /* [R] of each rank, by the plan */
    uint32_t *first, *count; /* [E] parts of each expert */
    xep_part_t *parts;
    uint32_t nparts, room;
    uint64_t selections, most_before, most_after;
    /* for the plans */
    uint32_t *of_rank, *rank_begin; /* [E] experts by owner, [R + 1] */
    uint64_t *rows;                 /* [instances] what each serves; not with is_whole */
    xep_paths_t paths;              /* likewise */
    /* of the rank whose selections are shared out */
    uint64_t *quotas; /* [room] how many of them each part still gets */
    uint32_t *at;     /* [E] the part that gets the next one */
} xep_planner_t;

/** instances stay; is_whole: each expert has all ranks. XEP_ERR_NO_MEMORY; free what it made with close. */
xep_status_t xep_planner_open(const xep_instances_t *instances, uint32_t experts, uint32_t nranks, int is_whole,
                              xep_planner_t *planner);
void xep_planner_close(xep_planner_t *planner);

/** Begins a plan: totals. counts: [R] pointers to [E]. */
void xep_plan_count(xep_planner_t *planner, const uint32_t *const *counts);

static inline int xep_plan_is_out(const xep_planner_t *planner, uint32_t rank)
{
    return planner->out != NULL && planner->out[rank];
}

/** From planner->rows. Returns the first expert whose rows do not add up to its selections; E: all do. */
uint32_t xep_plan_take(xep_planner_t *planner);

/**
 * How a rank's selections of an expert go to its parts: rows [planner->count[expert]]. First come those that stay on
 * their rank; the rest goes to what is left of the parts in order, ranks ascending. before: selections of lower ranks
 * that do not stay. Returns this rank's that do not.
 */
uint64_t xep_plan_share(const xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank,
                        uint64_t before, uint64_t *rows);

/** Begins with a rank's selections of an expert, as xep_plan_share(), whose result it returns. */
uint64_t xep_plan_begin(xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank,
                        uint64_t before);

/** The part that serves the next one of them; at most as often as there are any. */
const xep_part_t *xep_plan_pick(xep_planner_t *planner, uint32_t expert);

/** The selections of an expert of ranks below rank that do not stay. */
uint64_t xep_plan_before(const xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank);

/** xep_plan_even() with is_whole. */
void xep_plan_even_whole(xep_planner_t *planner);

/* ---- plan_spread.c ---- */

/**
 * least loaded: not with is_whole. even: the busiest rank has as little as any plan can leave it. A rank's selections
 * are zeros in counts if it is out. An expert whose instances are all out stays with its owner.
 */
void xep_plan_least_loaded(xep_planner_t *planner);
void xep_plan_even(xep_planner_t *planner);

#endif
