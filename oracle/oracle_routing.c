/* SPDX-License-Identifier: BSD-3-Clause */

/* Draws are whole numbers from a generator of our own: every machine, compiler and rank draws the same. */
#include "oracle_routing.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_owners.h"
#include "oracle_random.h"
#include "oracle_route_file.h"

/* ---- who owns what ---- */

/* The same blocks as xep_expert_range() gives, written once more: the oracle shares no code with the library. */
uint32_t oracle_owner(const oracle_routing_t *routing, uint32_t expert)
{
    const uint32_t share = routing->params.experts / routing->params.nranks;
    const uint32_t more = routing->params.experts % routing->params.nranks;

    if (routing->owners != NULL) return routing->owners[expert];
    if (expert < more * (share + 1)) return expert / (share + 1);
    return more + (expert - more * (share + 1)) / share;
}

/* Blocks are computed: what is drawn for each token asks for them. */
void oracle_experts_of(const oracle_routing_t *routing, uint32_t rank, uint32_t *first_p, uint32_t *count_p)
{
    const uint32_t share = routing->params.experts / routing->params.nranks;
    const uint32_t more = routing->params.experts % routing->params.nranks;

    *first_p = rank * share + (rank < more ? rank : more);
    *count_p = share + (rank < more);
    if (routing->owners == NULL) return;
    *first_p = routing->params.experts;
    *count_p = 0;
    for (uint32_t expert = routing->params.experts; expert-- > 0;) {
        if (routing->owners[expert] != rank) continue;
        *first_p = expert;
        ++*count_p;
    }
}

uint32_t oracle_expert_of(const oracle_routing_t *routing, uint32_t rank, uint32_t local)
{
    uint32_t expert, count;

    oracle_experts_of(routing, rank, &expert, &count);
    if (routing->owners == NULL) return expert + local;
    while (local > 0) local -= routing->owners[++expert] == rank;
    return expert;
}

/* Ranks ascending, each once: an insertion sort, as there are K at most. */
uint32_t oracle_destinations(const oracle_routing_t *routing, const int32_t *idx, uint32_t *ranks)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = oracle_owner(routing, (uint32_t)idx[k]);
        uint32_t at = n;
        while (at > 0 && ranks[at - 1] > owner) at--;
        if (at > 0 && ranks[at - 1] == owner) continue;
        memmove(ranks + at + 1, ranks + at, (n - at) * sizeof *ranks);
        ranks[at] = owner;
        n++;
    }
    return n;
}

/* ---- selections of one token --------------------------------------------------- */

/* K is small: a set would cost more than it saves. */
static int repeated(const int32_t *idx, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (idx[i] == idx[at]) return 1;
    return 0;
}

/* The first n of idx: distinct ones of 0 .. count - 1. */
static void draw_distinct(uint64_t *state, int32_t *idx, uint32_t n, uint32_t count)
{
    for (uint32_t i = 0; i < n; i++) {
        do {
            idx[i] = (int32_t)(oracle_next(state) % count);
        } while (repeated(idx, i));
    }
}

/* With one group nothing is drawn for it, so that group:1,1 is the same as uniform. */
static void draw_groups(const oracle_routing_t *routing, uint64_t *state, int32_t *idx)
{
    const oracle_route_spec_t *spec = &routing->params.spec;
    const uint32_t per = routing->params.experts / spec->groups;
    int32_t chosen[ORACLE_MAX_GROUPS] = {0};

    if (spec->groups > 1) draw_distinct(state, chosen, spec->topk_groups, spec->groups);
    for (uint32_t i = 0; i < routing->params.topk; i++) {
        do {
            const uint64_t u = oracle_next(state);
            idx[i] = spec->groups > 1 ? (int32_t)((uint32_t)chosen[u % spec->topk_groups] * per + (u >> 32) % per)
                                      : (int32_t)(u % per);
        } while (repeated(idx, i));
    }
}

/* Walks the experts not yet selected, most popular first: no number of draws can be
 * unlucky, however steep the popularity. */
static void draw_popular(const oracle_routing_t *routing, uint64_t *state, int32_t *idx)
{
    uint64_t left = routing->popularity_sum;

    for (uint32_t i = 0; i < routing->params.topk; i++) {
        uint64_t u = oracle_next(state) % left;
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

/* A rank may own fewer experts than K: the rest is -1. */
static void draw_from_rank(const oracle_routing_t *routing, uint32_t rank, uint64_t *state, int32_t *idx)
{
    const uint32_t topk = routing->params.topk;
    uint32_t first, owned;

    oracle_experts_of(routing, rank, &first, &owned);
    const uint32_t drawn = owned < topk ? owned : topk;
    draw_distinct(state, idx, drawn, owned);
    for (uint32_t i = 0; i < topk; i++)
        idx[i] = i < drawn ? (int32_t)oracle_expert_of(routing, rank, (uint32_t)idx[i]) : -1;
}

static void draw(const oracle_routing_t *routing, uint32_t rank, uint64_t token, uint64_t *state, int32_t *idx)
{
    const oracle_routing_params_t *params = &routing->params;

    switch (params->spec.kind) {
    case ORACLE_ROUTE_UNIFORM: draw_distinct(state, idx, params->topk, params->experts); break;
    case ORACLE_ROUTE_GROUP: draw_groups(routing, state, idx); break;
    case ORACLE_ROUTE_ZIPF: draw_popular(routing, state, idx); break;
    case ORACLE_ROUTE_ONE_RANK: draw_from_rank(routing, 0, state, idx); break;
    case ORACLE_ROUTE_SELF: draw_from_rank(routing, rank, state, idx); break;
    case ORACLE_ROUTE_FILE: oracle_route_file_look(routing->file, rank, token, idx); break;
    }
}

/* In this order, which oracle_routing.h promises: a mask, for example, must not change the weights of what is left. */
void oracle_route(const oracle_routing_t *routing, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    const oracle_routing_params_t *params = &routing->params;
    uint64_t state = oracle_stream(params->seed, ORACLE_KIND_ROUTING, rank, token);

    draw(routing, rank, token, &state, idx);
    for (uint32_t i = 0; i < params->topk; i++) weights[i] = (float)((oracle_next(&state) >> 40) + 1) * 0x1p-24f;
    if (!params->mask) return;
    for (uint32_t i = 0; i < params->topk; i++)
        if (oracle_next(&state) % 1000 < params->mask) idx[i] = -1;
}

/* ---- making one ------------------------------------------------------------------ */

/* What would make a draw go on for ever is refused here: fewer experts than different ones are to be drawn. */
static int check_shape(const oracle_routing_params_t *params, char *why, size_t why_bytes)
{
    const oracle_route_spec_t *spec = &params->spec;

    if (params->topk < 1 || params->topk > params->experts) {
        snprintf(why, why_bytes, "invalid top-k: %" PRIu32 " (1 to %" PRIu32 ", the number of experts)", params->topk,
                 params->experts);
        return -1;
    }
    if (spec->kind != ORACLE_ROUTE_GROUP) return 0;
    if (params->experts % spec->groups) {
        snprintf(why, why_bytes, "experts cannot be divided into %" PRIu32 " groups: %" PRIu32 " (a multiple of that)",
                 spec->groups, params->experts);
        return -1;
    }
    const uint64_t eligible = (uint64_t)params->experts / spec->groups * spec->topk_groups;
    if (eligible < params->topk) {
        snprintf(why, why_bytes,
                 "too few experts in %" PRIu32 " of %" PRIu32 " groups: %" PRIu64 " (at least the top-k, %" PRIu32 ")",
                 spec->topk_groups, spec->groups, eligible, params->topk);
        return -1;
    }
    return 0;
}

/*
 * Whole numbers, so that every machine draws the same; never 0, so that any K can be drawn. popular is shuffled while
 * it grows, each new expert going to a random place of those so far.
 */
static void make_popularity(oracle_routing_t *routing)
{
    const uint32_t experts = routing->params.experts;
    uint64_t state = oracle_stream(routing->params.seed, ORACLE_KIND_POPULARITY, 0, 0);

    routing->popular = oracle_alloc(experts * sizeof *routing->popular);
    routing->popularity = oracle_alloc(experts * sizeof *routing->popularity);
    for (uint32_t i = 0; i < experts; i++) {
        const uint32_t j = (uint32_t)(oracle_next(&state) % (i + 1));
        routing->popular[i] = routing->popular[j];
        routing->popular[j] = i;
        routing->popularity[i] = (uint64_t)(0x1p32 * pow(i + 1, -routing->params.spec.exponent)) + 1;
        routing->popularity_sum += routing->popularity[i];
    }
}

/*
 * tokens is the most of any rank, which buffers are made for; from here on params has the tokens of each rank, whatever
 * gave them.
 */
static void set_tokens(oracle_routing_t *routing)
{
    for (uint32_t rank = 0; rank < routing->params.nranks; rank++) {
        if (routing->params.spec.kind != ORACLE_ROUTE_FILE)
            routing->tokens_of[rank] =
                routing->params.tokens_of != NULL ? routing->params.tokens_of[rank] : routing->params.tokens;
        if (routing->tokens_of[rank] > routing->tokens) routing->tokens = routing->tokens_of[rank];
    }
    routing->params.tokens_of = routing->tokens_of;
}

/* Limits come from the run, so a file that does not fit it is refused by line. Sets tokens_of of every rank. */
static int read_file(oracle_routing_t *routing, char *why, size_t why_bytes)
{
    const oracle_routing_params_t *params = &routing->params;
    const oracle_route_limits_t limits = {.nranks = params->nranks,
                                          .experts = params->experts,
                                          .topk = params->topk,
                                          .tokens = params->tokens};

    return oracle_route_file_read(params->spec.path, &limits, routing->tokens_of, &routing->file, why, why_bytes);
}

void oracle_count_selections(const oracle_routing_t *routing, uint32_t rank, uint64_t *counts)
{
    const uint32_t topk = routing->params.topk;
    int32_t *idx = oracle_alloc(topk * sizeof *idx);
    float *weights = oracle_alloc(topk * sizeof *weights);

    for (uint64_t token = 0; token < routing->tokens_of[rank]; token++) {
        oracle_route(routing, rank, token, idx, weights);
        for (uint32_t k = 0; k < topk; k++)
            if (idx[k] >= 0) counts[idx[k]]++;
    }
    free(idx);
    free(weights);
}

/* The load is that of blocks: what a token selects may follow from who owns what (one-rank, self). */
static int make_owners(oracle_routing_t *routing, char *why, size_t why_bytes)
{
    const oracle_routing_params_t *params = &routing->params;
    uint64_t *load = oracle_alloc(params->experts * sizeof *load);

    for (uint32_t rank = 0; rank < params->nranks; rank++) oracle_count_selections(routing, rank, load);
    const int ret =
        oracle_owners_make(params->owners, params->nranks, params->experts, load, &routing->owners, why, why_bytes);
    free(load);
    return ret;
}

int oracle_routing_create(const oracle_routing_params_t *params, oracle_routing_t **routing_p, char *why,
                          size_t why_bytes)
{
    oracle_routing_t *routing;

    if (check_shape(params, why, why_bytes)) return -1;
    routing = oracle_alloc(sizeof *routing);
    routing->params = *params;
    routing->tokens_of = oracle_alloc(params->nranks * sizeof *routing->tokens_of);
    if (params->spec.kind == ORACLE_ROUTE_ZIPF) make_popularity(routing);
    if (params->spec.kind == ORACLE_ROUTE_FILE && read_file(routing, why, why_bytes)) goto err_destroy;
    set_tokens(routing);
    if (params->owners != NULL && make_owners(routing, why, why_bytes)) goto err_destroy;
    *routing_p = routing;
    return 0;

err_destroy:
    oracle_routing_destroy(routing);
    return -1;
}

void oracle_routing_destroy(oracle_routing_t *routing)
{
    if (routing == NULL) return;
    free(routing->tokens_of);
    free(routing->owners);
    free(routing->popular);
    free(routing->popularity);
    oracle_route_file_free(routing->file);
    free(routing);
}

/* ---- writing ---- */

/* All selections, masked ones too: that a token has none is known by its line alone. */
static void write_rank(FILE *file, const oracle_routing_t *routing, uint32_t rank, int32_t *idx, float *weights)
{
    for (uint64_t token = 0; token < routing->tokens_of[rank]; token++) {
        oracle_route(routing, rank, token, idx, weights);
        fprintf(file, "%" PRIu32 " %" PRIu64, rank, token);
        for (uint32_t k = 0; k < routing->params.topk; k++) fprintf(file, " %" PRId32, idx[k]);
        fputc('\n', file);
    }
}

int oracle_routing_write(const oracle_routing_t *routing, const char *path, char *why, size_t why_bytes)
{
    const oracle_routing_params_t *params = &routing->params;
    FILE *file = fopen(path, "w");
    int failed = file == NULL;

    if (file != NULL) {
        int32_t *idx = oracle_alloc(params->topk * sizeof *idx);
        float *weights = oracle_alloc(params->topk * sizeof *weights);
        fprintf(file, "# %" PRIu32 " ranks, %" PRIu32 " of %" PRIu32 " experts\n", params->nranks, params->topk,
                params->experts);
        for (uint32_t rank = 0; rank < params->nranks; rank++) write_rank(file, routing, rank, idx, weights);
        free(idx);
        free(weights);
        failed = ferror(file);
        failed |= fclose(file) != 0;
    }
    if (failed) snprintf(why, why_bytes, "cannot write %s: %s", path, strerror(errno));
    return failed ? -1 : 0;
}
