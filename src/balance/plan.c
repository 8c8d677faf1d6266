/* SPDX-License-Identifier: BSD-3-Clause */

#include "plan.h"

#include <stdlib.h>
#include <string.h>

static void list_instances(xep_paths_t *paths, const xep_instances_t *instances, uint32_t experts, uint32_t nranks)
{
    const uint32_t *begin = instances->begin;
    uint32_t *next = paths->from; /* nothing yet */
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = begin[e]; i < begin[e + 1] && begin[e + 1] - begin[e] > 1; i++) next[instances->rank[i]]++;
    for (uint32_t r = 0; r < nranks; r++) paths->rank_begin[r + 1] = paths->rank_begin[r] + next[r];
    memcpy(next, paths->rank_begin, nranks * sizeof *next);
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = begin[e]; i < begin[e + 1] && begin[e + 1] - begin[e] > 1; i++)
            paths->of_rank[next[instances->rank[i]]++] = (xep_sibling_t){i, begin[e], begin[e + 1]};
}

static xep_status_t open_paths(xep_planner_t *planner)
{
    xep_paths_t *paths = &planner->paths;
    const size_t nranks = planner->nranks;
    paths->of_rank = calloc(planner->instances->count, sizeof *paths->of_rank);
    paths->rank_begin = calloc(4 * nranks + 1, sizeof *paths->rank_begin);
    paths->seen = calloc(nranks, sizeof *paths->seen);
    if (paths->of_rank == NULL || paths->rank_begin == NULL || paths->seen == NULL) return XEP_ERR_NO_MEMORY;
    paths->from = paths->rank_begin + nranks + 1;
    paths->to = paths->from + nranks;
    paths->queue = paths->to + nranks;
    list_instances(paths, planner->instances, planner->experts, planner->nranks);
    return XEP_OK;
}

xep_status_t xep_planner_open(const xep_instances_t *instances, uint32_t experts, uint32_t nranks, int is_whole,
                              xep_planner_t *planner)
{
    const uint32_t room = is_whole ? 2 * experts + nranks : instances->count; /* parts: give_away() */
    *planner = (xep_planner_t){.instances = instances,
                               .experts = experts,
                               .nranks = nranks,
                               .room = room,
                               .is_whole = is_whole};
    uint64_t *wide = calloc((size_t)experts + nranks + instances->count + room, sizeof *wide);
    uint32_t *narrow = calloc(4 * (size_t)experts + nranks + 1, sizeof *narrow);
    planner->total = wide;
    planner->first = narrow;
    planner->parts = calloc(room, sizeof *planner->parts);
    if (wide == NULL || narrow == NULL || planner->parts == NULL || (!is_whole && open_paths(planner) != XEP_OK))
        return XEP_ERR_NO_MEMORY;
    planner->load = wide + experts;
    planner->rows = planner->load + nranks;
    planner->quotas = planner->rows + instances->count;
    planner->count = narrow + experts;
    planner->of_rank = planner->count + experts;
    planner->at = planner->of_rank + experts;
    planner->rank_begin = planner->at + experts;
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
    free(planner->total); /* and the others of its type, which are one allocation */
    free(planner->first); /* likewise */
    free(planner->parts);
    free(planner->paths.of_rank);
    free(planner->paths.rank_begin);
    free(planner->paths.seen);
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

enum { AT_ONCE = 4 }; /* ranks: each total is loaded and stored once for so many */

static void add_counts(uint64_t *restrict total, const uint32_t *const *counts, uint32_t experts)
{
    const uint32_t *restrict a = counts[0], *restrict b = counts[1], *restrict c = counts[2], *restrict d = counts[3];
    for (uint32_t e = 0; e < experts; e++) total[e] += (uint64_t)a[e] + b[e] + c[e] + d[e];
}

/* load is what the owners have, which plans change. */
void xep_plan_count(xep_planner_t *planner, const uint32_t *const *counts)
{
    const uint32_t experts = planner->experts, nranks = planner->nranks;
    uint64_t *total = planner->total;
    uint32_t r = 0;
    memset(total, 0, experts * sizeof *total);
    memset(planner->load, 0, nranks * sizeof *planner->load);
    for (; r + AT_ONCE <= nranks; r += AT_ONCE) add_counts(total, counts + r, experts);
    for (; r < nranks; r++)
        for (uint32_t e = 0; e < experts; e++) total[e] += counts[r][e];
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

/* ---- even, where every rank has every expert ---- */

/* The instance of an expert on a rank: the owner is first. */
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

/* Gives surplus rows of an expert to ranks from *to_p on that are in and have less than the cap. */
static void give_away(xep_planner_t *planner, uint32_t expert, uint64_t surplus, uint64_t cap, uint32_t *to_p)
{
    const uint32_t owner = owner_of(planner, expert);
    begin_parts(planner, expert);
    add_part(planner, expert, planner->instances->begin[expert], planner->total[expert] - surplus);
    planner->load[owner] -= surplus;
    while (surplus > 0) {
        uint64_t *load = &planner->load[*to_p];
        const uint64_t room = *load < cap && !xep_plan_is_out(planner, *to_p) ? cap - *load : 0;
        const uint64_t rows = least(room, surplus);
        if (rows != 0) add_part(planner, expert, find_instance(planner, expert, *to_p), rows);
        *load += rows;
        surplus -= rows;
        if (rows == room) ++*to_p;
    }
}

/*
 * A rank that is out keeps nothing. The cap times the ranks that are in is no less than all selections: there is always
 * one that has room.
 */
static void relieve(xep_planner_t *planner, uint32_t rank, uint64_t cap, uint32_t *to_p)
{
    uint32_t *experts = planner->of_rank + planner->rank_begin[rank];
    const uint32_t count = planner->rank_begin[rank + 1] - planner->rank_begin[rank];
    const uint64_t kept = xep_plan_is_out(planner, rank) ? 0 : least(planner->load[rank], cap);
    uint64_t surplus = planner->load[rank] - kept;
    if (surplus != 0) sort_by_total(planner, experts, count);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t rows = least(planner->total[experts[i]], surplus);
        if (rows == 0) leave_to_owner(planner, experts[i]);
        else give_away(planner, experts[i], rows, cap, to_p);
        surplus -= rows;
    }
}

void xep_plan_even_whole(xep_planner_t *planner)
{
    uint32_t to = 0, in = 0;
    for (uint32_t r = 0; r < planner->nranks; r++) in += !xep_plan_is_out(planner, r);
    const uint64_t cap = (planner->selections + in - 1) / in;
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

/*
 * A part whose quota is used up gives way to the next one of the expert; the last one never does, as counts in memory
 * of peers may have changed since the plan was made (a rank that was left out).
 */
const xep_part_t *xep_plan_pick(xep_planner_t *planner, uint32_t expert)
{
    uint32_t *at = &planner->at[expert];
    const uint32_t last = planner->first[expert] + planner->count[expert] - 1;
    while (planner->quotas[*at] == 0 && *at != last) ++*at;
    planner->quotas[*at]--;
    return &planner->parts[*at];
}
