/* SPDX-License-Identifier: BSD-3-Clause */

#include "tool_routing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool_alloc.h"
#include "tool_random.h"

/* ---- selections of one token --------------------------------------------------- */

static int repeated(const int32_t *idx, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (idx[i] == idx[at]) return 1;
    return 0;
}

/* The first n of idx: distinct experts of first .. first + count - 1. */
static void draw_distinct(uint64_t *state, int32_t *idx, uint32_t n, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < n; i++) {
        do {
            idx[i] = (int32_t)(first + tool_next(state) % count);
        } while (repeated(idx, i));
    }
}

static void draw_groups(const tool_routing_t *routing, uint64_t *state, int32_t *idx)
{
    const tool_route_spec_t *spec = &routing->params.spec;
    const uint32_t per = routing->params.experts / spec->groups;
    int32_t chosen[TOOL_MAX_GROUPS] = {0};

    if (spec->groups > 1) draw_distinct(state, chosen, spec->topk_groups, 0, spec->groups);
    for (uint32_t i = 0; i < routing->params.topk; i++) {
        do {
            const uint64_t u = tool_next(state);
            idx[i] = spec->groups > 1 ? (int32_t)((uint32_t)chosen[u % spec->topk_groups] * per + (u >> 32) % per)
                                      : (int32_t)(u % per);
        } while (repeated(idx, i));
    }
}

/* Walks the experts not yet selected, most popular first: no number of draws can be
 * unlucky, however steep the popularity. */
static void draw_popular(const tool_routing_t *routing, uint64_t *state, int32_t *idx)
{
    uint64_t left = routing->popularity_sum;

    for (uint32_t i = 0; i < routing->params.topk; i++) {
        uint64_t u = tool_next(state) % left;
        uint32_t n = 0;
        for (;; n++) {
            idx[i] = (int32_t)routing->popular[n];
            if (repeated(idx, i)) continue;
            if (u < routing->popularity[n]) break;
            u -= routing->popularity[n];
        }
        left -= routing->popularity[n];
    }
}

static void draw_from_rank(const tool_routing_t *routing, uint32_t rank, uint64_t *state, int32_t *idx)
{
    const uint32_t topk = routing->params.topk;
    uint32_t first, owned;

    tool_experts_of(routing, rank, &first, &owned);
    draw_distinct(state, idx, owned < topk ? owned : topk, first, owned);
    for (uint32_t i = owned; i < topk; i++) idx[i] = -1;
}

static void draw(const tool_routing_t *routing, uint32_t rank, uint64_t token, uint64_t *state, int32_t *idx)
{
    const tool_routing_params_t *params = &routing->params;

    switch (params->spec.kind) {
    case TOOL_ROUTE_UNIFORM:
        draw_distinct(state, idx, params->topk, 0, params->experts);
        break;
    case TOOL_ROUTE_GROUP:
        draw_groups(routing, state, idx);
        break;
    case TOOL_ROUTE_ZIPF:
        draw_popular(routing, state, idx);
        break;
    case TOOL_ROUTE_ONE_RANK:
        draw_from_rank(routing, 0, state, idx);
        break;
    case TOOL_ROUTE_SELF:
        draw_from_rank(routing, rank, state, idx);
        break;
    case TOOL_ROUTE_FILE:
        memcpy(idx, routing->table + (routing->table_begin[rank] + token) * params->topk, params->topk * sizeof *idx);
        break;
    }
}

void tool_route(const tool_routing_t *routing, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    const tool_routing_params_t *params = &routing->params;
    uint64_t state = tool_stream(params->seed, TOOL_KIND_ROUTING, rank, token);

    draw(routing, rank, token, &state, idx);
    for (uint32_t i = 0; i < params->topk; i++) weights[i] = (float)((tool_next(&state) >> 40) + 1) * 0x1p-24f;
    if (!params->mask) return;
    for (uint32_t i = 0; i < params->topk; i++)
        if (tool_next(&state) % 1000 < params->mask) idx[i] = -1;
}

/* ---- making one ------------------------------------------------------------------ */

static int check_shape(const tool_routing_params_t *params, char *why, size_t why_bytes)
{
    const tool_route_spec_t *spec = &params->spec;

    if (params->topk < 1 || params->topk > params->experts) {
        snprintf(why, why_bytes, "top %" PRIu32 " of %" PRIu32 " experts cannot be", params->topk, params->experts);
        return -1;
    }
    if (spec->kind != TOOL_ROUTE_GROUP) return 0;
    if (params->experts % spec->groups) {
        snprintf(why, why_bytes, "%" PRIu32 " experts do not divide into %" PRIu32 " groups", params->experts, spec->groups);
        return -1;
    }
    if ((uint64_t)params->experts / spec->groups * (spec->groups > 1 ? spec->topk_groups : 1) < params->topk) {
        snprintf(why, why_bytes, "%" PRIu32 " of %" PRIu32 " groups have fewer than %" PRIu32 " experts",
                 spec->topk_groups, spec->groups, params->topk);
        return -1;
    }
    return 0;
}

/* Whole numbers, so that every machine draws the same; never 0, so that any K can be drawn. */
static void make_popularity(tool_routing_t *routing)
{
    const uint32_t experts = routing->params.experts;
    uint64_t state = tool_stream(routing->params.seed, TOOL_KIND_POPULARITY, 0, 0);

    routing->popular = tool_alloc(experts * sizeof *routing->popular);
    routing->popularity = tool_alloc(experts * sizeof *routing->popularity);
    for (uint32_t i = 0; i < experts; i++) {
        const uint32_t j = (uint32_t)(tool_next(&state) % (i + 1));
        routing->popular[i] = routing->popular[j];
        routing->popular[j] = i;
        routing->popularity[i] = (uint64_t)(0x1p32 * pow(i + 1, -routing->params.spec.exponent)) + 1;
        routing->popularity_sum += routing->popularity[i];
    }
}

static void set_tokens(tool_routing_t *routing)
{
    for (uint32_t rank = 0; rank < routing->params.nranks; rank++) {
        if (routing->params.spec.kind != TOOL_ROUTE_FILE)
            routing->tokens_of[rank] =
                routing->params.tokens_of ? routing->params.tokens_of[rank] : routing->params.tokens;
        if (routing->tokens_of[rank] > routing->tokens) routing->tokens = routing->tokens_of[rank];
    }
    routing->params.tokens_of = routing->tokens_of;
}

int tool_routing_create(const tool_routing_params_t *params, tool_routing_t **routing_p, char *why, size_t why_bytes)
{
    tool_routing_t *routing;

    if (check_shape(params, why, why_bytes)) return -1;
    routing = tool_alloc(sizeof *routing);
    routing->params = *params;
    routing->tokens_of = tool_alloc(params->nranks * sizeof *routing->tokens_of);
    if (params->spec.kind == TOOL_ROUTE_ZIPF) make_popularity(routing);
    if (params->spec.kind == TOOL_ROUTE_FILE && tool_route_file_read(routing, why, why_bytes)) {
        tool_routing_destroy(routing);
        return -1;
    }
    set_tokens(routing);
    *routing_p = routing;
    return 0;
}

void tool_routing_destroy(tool_routing_t *routing)
{
    if (!routing) return;
    free(routing->tokens_of);
    free(routing->popular);
    free(routing->popularity);
    free(routing->table);
    free(routing->table_begin);
    free(routing);
}
