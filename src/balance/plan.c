/* SPDX-License-Identifier: BSD-3-Clause */

#include "plan.h"

#include <stdlib.h>
#include <string.h>

xep_status_t xep_planner_open(const xep_instances_t *instances, uint32_t experts, uint32_t nranks, int is_even,
                              xep_planner_t *planner)
{
    const uint32_t room = is_even ? 2 * experts + nranks : instances->count; /* parts: give_away() */
    *planner = (xep_planner_t){.instances = instances, .experts = experts, .nranks = nranks, .room = room};
    planner->total = calloc(experts, sizeof *planner->total);
    planner->load = calloc(nranks, sizeof *planner->load);
    planner->first = calloc(experts, sizeof *planner->first);
    planner->count = calloc(experts, sizeof *planner->count);
    planner->parts = calloc(room, sizeof *planner->parts);
    planner->of_rank = calloc(experts, sizeof *planner->of_rank);
    planner->rank_begin = calloc(nranks + 1, sizeof *planner->rank_begin);
    planner->rows = calloc(instances->count, sizeof *planner->rows);
    planner->quotas = calloc(room, sizeof *planner->quotas);
    planner->at = calloc(experts, sizeof *planner->at);
    if (planner->total == NULL || planner->load == NULL || planner->first == NULL || planner->count == NULL ||
        planner->parts == NULL || planner->of_rank == NULL || planner->rank_begin == NULL || planner->rows == NULL ||
        planner->quotas == NULL || planner->at == NULL)
        return XEP_ERR_NO_MEMORY;
    for (uint32_t e = 0; e < experts; e++) planner->rank_begin[instances->rank[instances->begin[e]] + 1]++;
    for (uint32_t r = 0; r < nranks; r++) planner->rank_begin[r + 1] += planner->rank_begin[r];
    for (uint32_t e = 0; e < experts; e++)
        planner->of_rank[planner->rank_begin[instances->rank[instances->begin[e]]]++] = e;
    for (uint32_t r = nranks; r > 0; r--) planner->rank_begin[r] = planner->rank_begin[r - 1];
    planner->rank_begin[0] = 0;
    return XEP_OK;
}

void xep_planner_close(xep_planner_t *planner)
{
    free(planner->total);
    free(planner->load);
    free(planner->first);
    free(planner->count);
    free(planner->parts);
    free(planner->of_rank);
    free(planner->rank_begin);
    free(planner->rows);
    free(planner->quotas);
    free(planner->at);
}

/* ---- counts ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(const uint64_t *load, uint32_t nranks)
{
    uint64_t found = 0;
    for (uint32_t r = 0; r < nranks; r++)
        if (load[r] > found) found = load[r];
    return found;
}

static uint32_t owner_of(const xep_planner_t *planner, uint32_t expert)
{
    return planner->instances->rank[planner->instances->begin[expert]];
}

/* load is what the owners have, which plans change. */
void xep_plan_count(xep_planner_t *planner, const uint32_t *const *counts)
{
    uint64_t *restrict total = planner->total;
    const uint32_t experts = planner->experts;
    memset(total, 0, experts * sizeof *total);
    memset(planner->load, 0, planner->nranks * sizeof *planner->load);
    for (uint32_t r = 0; r < planner->nranks; r++) {
        const uint32_t *restrict theirs = counts[r];
        for (uint32_t e = 0; e < experts; e++) total[e] += theirs[e];
    }
    planner->selections = 0;
    planner->nparts = 0;
    for (uint32_t e = 0; e < experts; e++) {
        planner->selections += total[e];
        planner->load[owner_of(planner, e)] += total[e];
    }
    planner->most_before = planner->most_after = most(planner->load, planner->nranks);
}

/* ---- parts ---- */

static void begin_parts(xep_planner_t *planner, uint32_t expert)
{
    planner->first[expert] = planner->nparts;
    planner->count[expert] = 0;
}

static void add_part(xep_planner_t *planner, uint32_t expert, uint32_t instance, uint64_t rows)
{
    if (rows == 0) return;
    planner->parts[planner->nparts++] =
        (xep_part_t){.instance = instance, .rank = planner->instances->rank[instance], .rows = rows};
    planner->count[expert]++;
}

static void leave_to_owner(xep_planner_t *planner, uint32_t expert)
{
    begin_parts(planner, expert);
    add_part(planner, expert, planner->instances->begin[expert], planner->total[expert]);
}

/* ---- by rows of instances ---- */

uint32_t xep_plan_take(xep_planner_t *planner)
{
    const xep_instances_t *instances = planner->instances;
    memset(planner->load, 0, planner->nranks * sizeof *planner->load);
    for (uint32_t e = 0; e < planner->experts; e++) {
        uint64_t left = planner->total[e];
        begin_parts(planner, e);
        for (uint32_t i = instances->begin[e]; i < instances->begin[e + 1]; i++) {
            if (planner->rows[i] > left) return e;
            add_part(planner, e, i, planner->rows[i]);
            planner->load[instances->rank[i]] += planner->rows[i];
            left -= planner->rows[i];
        }
        if (left != 0) return e;
    }
    planner->most_after = most(planner->load, planner->nranks);
    return planner->experts;
}

/* ---- least loaded ---- */

enum { PASSES = 3 };

/* How high the rows of an expert fill up its ranks, if those with least load come first. */
static uint64_t find_level(const xep_planner_t *planner, uint32_t expert)
{
    const xep_instances_t *instances = planner->instances;
    const uint32_t begin = instances->begin[expert], end = instances->begin[expert + 1];
    uint64_t low = UINT64_MAX, high;
    for (uint32_t i = begin; i < end; i++) low = least(low, planner->load[instances->rank[i]]);
    high = low + planner->total[expert];
    while (low < high) {
        const uint64_t level = low + (high - low) / 2;
        uint64_t room = 0;
        for (uint32_t i = begin; i < end; i++) {
            const uint64_t load = planner->load[instances->rank[i]];
            if (load < level) room += level - load;
        }
        if (room >= planner->total[expert]) high = level;
        else low = level + 1;
    }
    return low;
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
        planner->rows[i] = *load < level ? least(level - *load, left) : 0;
        *load += planner->rows[i];
        left -= planner->rows[i];
    }
}

/* From what the owners have: each expert in turn, a few times, as those behind it have moved since. */
void xep_plan_least_loaded(xep_planner_t *planner)
{
    const uint32_t *begin = planner->instances->begin;
    memset(planner->rows, 0, planner->instances->count * sizeof *planner->rows);
    for (uint32_t e = 0; e < planner->experts; e++) planner->rows[begin[e]] = planner->total[e];
    for (int pass = 0; pass < PASSES; pass++)
        for (uint32_t e = 0; e < planner->experts; e++)
            if (begin[e + 1] - begin[e] != 1 && planner->total[e] != 0) fill_up(planner, e);
    (void)xep_plan_take(planner); /* they add up */
}

/* ---- even ---- */

/* The instance of an expert on a rank, where every rank has one: the owner is first. */
static uint32_t find_instance(const xep_planner_t *planner, uint32_t expert, uint32_t rank)
{
    const uint32_t begin = planner->instances->begin[expert], owner = owner_of(planner, expert);
    return rank == owner ? begin : begin + rank + (rank < owner);
}

/* By falling totals, so that a rank gives few experts away; of the same, the lower first. */
static void sort_by_total(const xep_planner_t *planner, uint32_t *experts, uint32_t count)
{
    const uint64_t *total = planner->total;
    for (uint32_t gap = count / 2; gap > 0; gap /= 2) /* shell's: nothing is allocated, and no order is lost */
        for (uint32_t i = gap; i < count; i++) {
            const uint32_t e = experts[i];
            uint32_t j = i;
            for (; j >= gap && (total[experts[j - gap]] < total[e] ||
                                (total[experts[j - gap]] == total[e] && experts[j - gap] > e));
                 j -= gap)
                experts[j] = experts[j - gap];
            experts[j] = e;
        }
}

/* Gives surplus rows of an expert to ranks from *to_p on that have less than the cap. */
static void give_away(xep_planner_t *planner, uint32_t expert, uint64_t surplus, uint64_t cap, uint32_t *to_p)
{
    const uint32_t owner = owner_of(planner, expert);
    begin_parts(planner, expert);
    add_part(planner, expert, planner->instances->begin[expert], planner->total[expert] - surplus);
    planner->load[owner] -= surplus;
    while (surplus > 0) {
        uint64_t *load = &planner->load[*to_p];
        const uint64_t room = *load < cap ? cap - *load : 0, rows = room < surplus ? room : surplus;
        if (rows != 0) add_part(planner, expert, find_instance(planner, expert, *to_p), rows);
        *load += rows;
        surplus -= rows;
        if (rows == room) ++*to_p;
    }
}

/* The cap times R is no less than all selections: there is always a rank that has room. */
static void relieve(xep_planner_t *planner, uint32_t rank, uint64_t cap, uint32_t *to_p)
{
    uint32_t *experts = planner->of_rank + planner->rank_begin[rank];
    const uint32_t count = planner->rank_begin[rank + 1] - planner->rank_begin[rank];
    uint64_t surplus = planner->load[rank] > cap ? planner->load[rank] - cap : 0;
    if (surplus != 0) sort_by_total(planner, experts, count);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t rows = planner->total[experts[i]] < surplus ? planner->total[experts[i]] : surplus;
        if (rows == 0) leave_to_owner(planner, experts[i]);
        else give_away(planner, experts[i], rows, cap, to_p);
        surplus -= rows;
    }
}

void xep_plan_even(xep_planner_t *planner)
{
    const uint64_t cap = (planner->selections + planner->nranks - 1) / planner->nranks;
    uint32_t to = 0;
    for (uint32_t r = 0; r < planner->nranks; r++) relieve(planner, r, cap, &to);
    planner->most_after = most(planner->load, planner->nranks);
}

/* ---- a rank's share ---- */

/* Of a rank with a part. */
static uint64_t staying(const xep_part_t *part, const uint32_t *const *counts, uint32_t expert)
{
    return least(part->rows, counts[part->rank][expert]);
}

uint64_t xep_plan_before(const xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank)
{
    const xep_part_t *parts = planner->parts + planner->first[expert];
    uint64_t before = 0;
    if (planner->count[expert] < 2) return 0; /* one part gets all: nobody asks */
    for (uint32_t r = 0; r < rank; r++) before += counts[r][expert];
    for (uint32_t i = 0; i < planner->count[expert]; i++)
        if (parts[i].rank < rank) before -= staying(&parts[i], counts, expert);
    return before;
}

uint64_t xep_plan_share(const xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank,
                        uint64_t before, uint64_t *rows)
{
    const xep_part_t *parts = planner->parts + planner->first[expert];
    const uint32_t count = planner->count[expert];
    uint64_t rest = counts[rank][expert], at = 0;
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = count == 1 ? rest : parts[i].rank == rank ? staying(&parts[i], counts, expert) : 0;
        rest -= rows[i];
    }
    const uint64_t end = before + rest;
    for (uint32_t i = 0; i < count && at < end && rest != 0; i++) {
        const uint64_t left = parts[i].rows - staying(&parts[i], counts, expert);
        const uint64_t from = at > before ? at : before, to = least(at + left, end);
        if (from < to) rows[i] += to - from;
        at += left;
    }
    return rest;
}

uint64_t xep_plan_begin(xep_planner_t *planner, const uint32_t *const *counts, uint32_t expert, uint32_t rank,
                        uint64_t before)
{
    planner->at[expert] = planner->first[expert];
    return xep_plan_share(planner, counts, expert, rank, before, planner->quotas + planner->first[expert]);
}

/* A part whose quota is used up gives way to the next one of the expert. */
const xep_part_t *xep_plan_pick(xep_planner_t *planner, uint32_t expert)
{
    uint32_t *at = &planner->at[expert];
    while (planner->quotas[*at] == 0) ++*at;
    planner->quotas[*at]--;
    return &planner->parts[*at];
}
