/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_simulate.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"

static void count_selections(const oracle_routing_t *routing, perf_placer_t *placer)
{
    const uint32_t experts = routing->params.experts;

    for (uint32_t r = 0; r < routing->params.nranks; r++) {
        uint64_t *counts = oracle_alloc(experts * sizeof *counts);
        oracle_count_selections(routing, r, counts);
        placer->rows[r] = placer->counts + (size_t)r * experts;
        for (uint32_t e = 0; e < experts; e++) placer->counts[(size_t)r * experts + e] = (uint32_t)counts[e];
        free(counts);
    }
}

/* ---- replicas ---- */

typedef struct scatter {
    uint32_t experts, nranks;
    uint64_t *total;  /* [E] */
    uint32_t *copies; /* [E] instances so far */
    double *load;     /* [R] if each instance serves as much as the others */
    uint8_t *has;     /* [E][R] */
} scatter_t;

/* The expert with most selections for each of its instances, while not every rank has it. */
static uint32_t find_busiest(const scatter_t *scatter)
{
    uint32_t best = 0;
    double most = -1;

    for (uint32_t e = 0; e < scatter->experts; e++) {
        const double each = (double)scatter->total[e] / scatter->copies[e];
        if (scatter->copies[e] < scatter->nranks && each > most) most = each, best = e;
    }
    return best;
}

/* The rank with least load that has it not. */
static uint32_t find_idle(const scatter_t *scatter, uint32_t expert)
{
    uint32_t best = scatter->nranks;

    for (uint32_t r = 0; r < scatter->nranks; r++)
        if (!scatter->has[(size_t)expert * scatter->nranks + r] &&
            (best == scatter->nranks || scatter->load[r] < scatter->load[best]))
            best = r;
    return best;
}

/* One more instance shares what the expert has. */
static void add_replica(scatter_t *scatter)
{
    const uint32_t e = find_busiest(scatter), rank = find_idle(scatter, e);
    const double before = (double)scatter->total[e] / scatter->copies[e];
    const double after = (double)scatter->total[e] / (scatter->copies[e] + 1);

    if (rank == scatter->nranks) return; /* all have all */
    for (uint32_t r = 0; r < scatter->nranks; r++)
        if (scatter->has[(size_t)e * scatter->nranks + r]) scatter->load[r] -= before - after;
    scatter->has[(size_t)e * scatter->nranks + rank] = 1;
    scatter->load[rank] += after;
    scatter->copies[e]++;
}

/* Owners first, the others ascending, as xep_instances_t has them. */
static void list_instances(const oracle_routing_t *routing, const scatter_t *scatter, int is_even,
                           xep_instances_t *instances)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < scatter->experts; e++) n += is_even ? scatter->nranks : scatter->copies[e];
    instances->begin = oracle_alloc(((size_t)scatter->experts + 1 + n) * sizeof *instances->begin);
    instances->rank = instances->begin + scatter->experts + 1;
    for (uint32_t e = 0; e < scatter->experts; e++) {
        const uint32_t owner = oracle_owner(routing, e);
        instances->begin[e] = instances->count;
        instances->rank[instances->count++] = owner;
        for (uint32_t r = 0; r < scatter->nranks; r++)
            if (r != owner && (is_even || scatter->has[(size_t)e * scatter->nranks + r]))
                instances->rank[instances->count++] = r;
    }
    instances->begin[scatter->experts] = instances->count;
}

static void place(const oracle_routing_t *routing, const perf_placement_t *placement, perf_placer_t *placer)
{
    const uint32_t experts = routing->params.experts, nranks = routing->params.nranks;
    scatter_t scatter = {.experts = experts,
                         .nranks = nranks,
                         .total = oracle_alloc(experts * sizeof *scatter.total),
                         .copies = oracle_alloc(experts * sizeof *scatter.copies),
                         .load = oracle_alloc(nranks * sizeof *scatter.load),
                         .has = oracle_alloc((size_t)experts * nranks)};

    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t owner = oracle_owner(routing, e);
        for (uint32_t r = 0; r < nranks; r++) scatter.total[e] += placer->rows[r][e];
        scatter.load[owner] += (double)scatter.total[e];
        scatter.has[(size_t)e * nranks + owner] = 1;
        scatter.copies[e] = 1;
    }
    for (uint32_t i = 0; i < placement->replicas; i++) add_replica(&scatter);
    list_instances(routing, &scatter, placement->is_even, &placer->instances);
    free(scatter.has);
    free(scatter.load);
    free(scatter.copies);
    free(scatter.total);
}

/* ---- a plan ---- */

void perf_placer_open(const oracle_routing_t *routing, const perf_placement_t *placement, perf_placer_t *placer)
{
    const uint32_t experts = routing->params.experts, nranks = routing->params.nranks;

    *placer = (perf_placer_t){.counts = oracle_alloc((size_t)nranks * experts * sizeof *placer->counts),
                              .rows = oracle_alloc(nranks * sizeof *placer->rows),
                              .before = oracle_alloc(experts * sizeof *placer->before)};
    count_selections(routing, placer);
    place(routing, placement, placer);
    if (xep_planner_open(&placer->instances, experts, nranks, placement->is_even, &placer->planner) != XEP_OK)
        abort(); /* as oracle_alloc() does */
    xep_plan_count(&placer->planner, placer->rows);
    if (placement->is_even) xep_plan_even(&placer->planner);
    else xep_plan_least_loaded(&placer->planner);
}

void perf_placer_close(perf_placer_t *placer)
{
    xep_planner_close(&placer->planner);
    free(placer->instances.begin);
    free(placer->counts);
    free(placer->rows);
    free(placer->before);
}

void perf_placer_begin(perf_placer_t *placer, uint32_t source)
{
    for (uint32_t e = 0; e < placer->planner.experts; e++)
        if (placer->rows[source][e] != 0)
            placer->before[e] += xep_plan_begin(&placer->planner, placer->rows, e, source, placer->before[e]);
}
