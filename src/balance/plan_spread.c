/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Plans where ranks have some experts: the owners' loads, then each expert's rows among its instances, then, for EVEN,
 * rows along paths from ranks with more than a cap to ranks with less. If no path is left, the ranks that were found
 * have all instances of what they serve: no plan leaves each of them less than their mean, which is the next cap.
 *
 * A search goes on behind a rank that it has filled up, as one begun anew would come to the same place: the rank where
 * the path begins has still more than the cap, the instances along it still have rows, and those that have got some are
 * of experts whose ranks had been found before.
 */
#include "plan.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- least loaded ---- */

enum { PASSES = 3 };

/*
 * How high the rows of an expert fill up its ranks, if those with least load come first: the mean of these, rounded up.
 * Ranks above the mean of all are not among them, and their mean is lower without those.
 */
static uint64_t find_level(const xep_planner_t *planner, uint32_t expert)
{
    const xep_instances_t *instances = planner->instances;
    uint64_t level = UINT64_MAX, highest;
    do {
        const uint64_t below = level;
        uint64_t sum = planner->total[expert], ranks = 0;
        highest = 0;
        for (uint32_t i = instances->begin[expert]; i < instances->begin[expert + 1]; i++) {
            const uint64_t load = planner->load[instances->rank[i]];
            if (load >= below || xep_plan_is_out(planner, instances->rank[i])) continue;
            if (load > highest) highest = load;
            sum += load;
            ranks++;
        }
        level = (sum + ranks - 1) / ranks;
    } while (highest >= level);
    return level;
}

/* Places the rows of an expert anew, among what all others have: no rank gets more than the most of them had. */
static void fill_up(xep_planner_t *planner, uint32_t expert)
{
    const xep_instances_t *instances = planner->instances;
    const uint32_t begin = instances->begin[expert], end = instances->begin[expert + 1];
    uint64_t left = planner->total[expert];
    for (uint32_t i = begin; i < end; i++) planner->load[instances->rank[i]] -= planner->rows[i];
    const uint64_t level = find_level(planner, expert);
    for (uint32_t i = begin; i < end; i++) {
        uint64_t *load = &planner->load[instances->rank[i]];
        const int has_room = *load < level && !xep_plan_is_out(planner, instances->rank[i]);
        planner->rows[i] = has_room ? least(level - *load, left) : 0;
        *load += planner->rows[i];
        left -= planner->rows[i];
    }
}

/* The first instance of an expert on a rank that is not out; the owner's, if all are out. */
static uint32_t first_in(const xep_planner_t *planner, uint32_t expert)
{
    const xep_instances_t *instances = planner->instances;
    for (uint32_t i = instances->begin[expert]; i < instances->begin[expert + 1]; i++)
        if (!xep_plan_is_out(planner, instances->rank[i])) return i;
    return instances->begin[expert];
}

/* All rows of an expert to one instance, the owner. */
static void begin_rows(xep_planner_t *planner)
{
    const xep_instances_t *instances = planner->instances;
    memset(planner->rows, 0, instances->count * sizeof *planner->rows);
    for (uint32_t e = 0; e < planner->experts; e++) planner->rows[instances->begin[e]] = planner->total[e];
    for (uint32_t e = 0; e < planner->experts && planner->out != NULL; e++) {
        const uint32_t owner = instances->begin[e], i = first_in(planner, e);
        planner->rows[owner] = 0;
        planner->rows[i] = planner->total[e];
        planner->load[instances->rank[owner]] -= planner->total[e];
        planner->load[instances->rank[i]] += planner->total[e];
    }
}

/* Each expert in turn, a few times, as those behind it have moved since. */
static void fill_all(xep_planner_t *planner)
{
    const xep_instances_t *instances = planner->instances;
    const uint32_t *begin = instances->begin;
    begin_rows(planner);
    for (int pass = 0; pass < PASSES; pass++)
        for (uint32_t e = 0; e < planner->experts; e++)
            if (begin[e + 1] - begin[e] != 1 && planner->total[e] != 0 &&
                !xep_plan_is_out(planner, instances->rank[first_in(planner, e)]))
                fill_up(planner, e);
}

void xep_plan_least_loaded(xep_planner_t *planner)
{
    fill_all(planner);
    (void)xep_plan_take(planner); /* they add up */
}

/* ---- even ---- */

enum { NOBODY = -1 };

static void find(xep_planner_t *planner, uint32_t rank, uint32_t from, uint32_t to)
{
    xep_paths_t *paths = &planner->paths;
    paths->seen[rank] = 1;
    paths->from[rank] = from;
    paths->to[rank] = to;
    paths->queue[paths->found++] = rank;
}

/* As many rows as the path to a rank lets through. 1: that fills up the rank, and nothing else has come to its end. */
static int move_rows(xep_planner_t *planner, uint32_t rank, uint64_t cap)
{
    const xep_paths_t *paths = &planner->paths;
    const uint32_t *rank_of = planner->instances->rank;
    uint64_t rows = UINT64_MAX;
    uint32_t at = rank;
    for (; paths->from[at] != (uint32_t)NOBODY; at = rank_of[paths->from[at]])
        rows = least(rows, planner->rows[paths->from[at]]);
    rows = least(rows, planner->load[at] - cap);
    const int fills = rows > cap - planner->load[rank];
    if (fills) rows = cap - planner->load[rank];
    planner->load[at] -= rows;
    planner->load[rank] += rows;
    for (at = rank; paths->from[at] != (uint32_t)NOBODY; at = rank_of[paths->from[at]]) {
        planner->rows[paths->from[at]] -= rows;
        planner->rows[paths->to[at]] += rows;
    }
    return fills;
}

/* Finds the ranks that rows of an instance could move to, and moves some. 0: the search is to begin anew. */
static int spread_from(xep_planner_t *planner, const xep_sibling_t *from, uint64_t cap)
{
    const uint32_t *rank = planner->instances->rank;
    for (uint32_t i = from->begin; i < from->end; i++) {
        if (planner->paths.seen[rank[i]]) continue;
        find(planner, rank[i], from->instance, i);
        if (planner->load[rank[i]] < cap && !move_rows(planner, rank[i], cap)) return 0;
    }
    return 1;
}

/* Over the fewest ranks first. 1: no rank that was found has room. */
static int spread_rows(xep_planner_t *planner, uint64_t cap)
{
    xep_paths_t *paths = &planner->paths;
    const uint32_t nobody = (uint32_t)NOBODY;
    if (planner->out != NULL) memcpy(paths->seen, planner->out, planner->nranks);
    else memset(paths->seen, 0, planner->nranks);
    paths->found = 0;
    for (uint32_t r = 0; r < planner->nranks; r++)
        if (planner->load[r] > cap && !paths->seen[r]) find(planner, r, nobody, nobody);
    for (uint32_t next = 0; next < paths->found; next++) {
        const uint32_t r = paths->queue[next];
        for (uint32_t i = paths->rank_begin[r]; i < paths->rank_begin[r + 1]; i++)
            if (planner->rows[paths->of_rank[i].instance] != 0 && !spread_from(planner, &paths->of_rank[i], cap))
                return 0;
    }
    return 1;
}

/* The mean of ranks, rounded up. */
static uint64_t mean_of(const xep_planner_t *planner, const uint32_t *ranks, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += planner->load[ranks[i]];
    return (sum + count - 1) / count;
}

static void spread(xep_planner_t *planner)
{
    xep_paths_t *paths = &planner->paths;
    uint32_t in = 0;
    fill_all(planner);
    for (uint32_t r = 0; r < planner->nranks; r++)
        if (!xep_plan_is_out(planner, r)) paths->queue[in++] = r;
    uint64_t cap = mean_of(planner, paths->queue, in);
    do {
        while (!spread_rows(planner, cap)) continue;
        if (paths->found != 0) cap = mean_of(planner, paths->queue, paths->found);
    } while (paths->found != 0);
    (void)xep_plan_take(planner); /* they add up */
}

void xep_plan_even(xep_planner_t *planner)
{
    if (planner->is_whole) xep_plan_even_whole(planner);
    else spread(planner);
}
