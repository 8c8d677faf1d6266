/* SPDX-License-Identifier: BSD-3-Clause */

#include "tool_oracle.h"

#include <stdlib.h>
#include <string.h>

#include "tool_alloc.h"
#include "tool_differ.h"
#include "tool_logfmt.h"
#include "tool_number.h"

/* ---- combine ----------------------------------------------------------------------- */

typedef struct sum {
    const tool_shape_t *shape;
    uint32_t rank;
    unsigned biases;
    int32_t *idx;    /* [K] */
    float *weights;  /* [K] */
    uint32_t *ranks; /* [K] */
    float *total;    /* [H] */
    void *row;       /* a term, and then the sum rounded */
    void *arrived;   /* a term that went as LogFMT */
} sum_t;

static void sum_open(sum_t *s)
{
    const uint32_t topk = s->shape->routing->params.topk;

    s->idx = tool_alloc(topk * sizeof *s->idx);
    s->weights = tool_alloc(topk * sizeof *s->weights);
    s->ranks = tool_alloc(topk * sizeof *s->ranks);
    s->total = tool_alloc(s->shape->hidden * sizeof *s->total);
    s->row = tool_alloc(s->shape->hidden * tool_element_bytes(s->shape->combine_dtype));
    s->arrived = tool_alloc(s->shape->hidden * tool_element_bytes(s->shape->combine_dtype));
}

static void sum_close(sum_t *s)
{
    free(s->idx);
    free(s->weights);
    free(s->ranks);
    free(s->total);
    free(s->row);
    free(s->arrived);
}

/* The output of an expert for a token, as it comes here. */
static const void *expert_row(sum_t *s, uint32_t expert, uint64_t token)
{
    const tool_shape_t *shape = s->shape;
    int code = 0;

    tool_fill_expert_row(shape, expert, s->rank, token, s->row);
    if (!shape->logfmt_from || !shape->logfmt_from[tool_owner(shape->routing, expert)]) return s->row;
    tool_logfmt_journey(s->row, shape->hidden, s->arrived, &code);
    return s->arrived;
}

/* By expert: each selection with its weight, in order. */
static void add_experts(sum_t *s, uint64_t token)
{
    const tool_shape_t *shape = s->shape;

    for (uint32_t k = 0; k < shape->routing->params.topk; k++) {
        if (s->idx[k] < 0) continue;
        const void *row = expert_row(s, (uint32_t)s->idx[k], token);
        tool_row_add_weighted(s->total, s->weights[k], row, shape->combine_dtype, shape->hidden);
    }
}

static void add_ranks(sum_t *s, uint64_t token)
{
    const tool_shape_t *shape = s->shape;
    const uint32_t n = tool_destinations(shape->routing, s->idx, s->ranks);

    for (uint32_t i = 0; i < n; i++) {
        tool_fill_expert(shape, s->ranks[i], s->rank, token, s->row);
        tool_row_add(s->total, s->row, shape->combine_dtype, shape->hidden);
    }
}

/* The row a token must combine to, in s->row. */
static void sum_token(sum_t *s, uint64_t token)
{
    const tool_shape_t *shape = s->shape;

    tool_route(shape->routing, s->rank, token, s->idx, s->weights);
    memset(s->total, 0, shape->hidden * sizeof *s->total);
    for (uint32_t which = 0; which < 2; which++) {
        if (!(s->biases >> which & 1)) continue;
        tool_fill_bias(shape, which, s->rank, token, s->row);
        tool_row_add(s->total, s->row, shape->combine_dtype, shape->hidden);
    }
    if (shape->by_expert) add_experts(s, token);
    else add_ranks(s, token);
    tool_row_round(s->row, s->total, shape->combine_dtype, shape->hidden);
}

int tool_check_combine(const tool_shape_t *shape, uint32_t rank, unsigned biases, const void *out, size_t out_stride,
                       tool_difference_t *difference_p)
{
    sum_t s = {.shape = shape, .rank = rank, .biases = biases};
    int differs = 0;

    *difference_p = (tool_difference_t){.rank = rank};
    sum_open(&s);
    for (uint64_t token = 0; token < shape->routing->tokens_of[rank] && !differs; token++) {
        sum_token(&s, token);
        differs = tool_differ_row(difference_p, "out", token, shape->combine_dtype, shape->hidden, s.row,
                                  (const char *)out + token * out_stride);
    }
    sum_close(&s);
    return differs;
}

int tool_check_weights(const tool_shape_t *shape, uint32_t rank, const float *out, size_t out_stride,
                       tool_difference_t *difference_p)
{
    const uint32_t topk = shape->routing->params.topk;
    int32_t *idx = tool_alloc(topk * sizeof *idx);
    float *weights = tool_alloc(topk * sizeof *weights);
    int differs = 0;

    *difference_p = (tool_difference_t){.rank = rank};
    for (uint64_t token = 0; token < shape->routing->tokens_of[rank] && !differs; token++) {
        tool_route(shape->routing, rank, token, idx, weights);
        for (uint32_t k = 0; k < topk; k++)
            if (idx[k] < 0) weights[k] = 0.0f;
        differs = tool_differ_row(difference_p, "out_weights", token, XEP_FP32, topk, weights,
                                  (const char *)out + token * out_stride);
    }
    free(idx);
    free(weights);
    return differs;
}

/* ---- layout ------------------------------------------------------------------------ */

typedef struct counts {
    uint32_t nranks, nodes, ranks_per_node;
    int32_t *per_rank, *per_node, *per_expert;
    uint8_t *in_rank; /* [R] of the token in hand */
    uint8_t *in_node;
} counts_t;

static void count_token(const tool_routing_t *routing, const int32_t *idx, counts_t *c)
{
    memset(c->in_rank, 0, c->nranks);
    memset(c->in_node, 0, c->nodes);
    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = tool_owner(routing, (uint32_t)idx[k]);
        c->per_expert[idx[k]]++;
        c->in_rank[owner] = 1;
        c->in_node[owner / c->ranks_per_node] = 1;
    }
    for (uint32_t i = 0; i < c->nranks; i++) c->per_rank[i] += c->in_rank[i];
    for (uint32_t i = 0; i < c->nodes; i++) c->per_node[i] += c->in_node[i];
}

static int compare_layout(const tool_routing_t *routing, const counts_t *c, const xep_layout_t *layout,
                          tool_difference_t *difference)
{
    return (layout->tokens_per_rank && tool_differ_row(difference, "tokens_per_rank", 0, XEP_INT32, c->nranks,
                                                       c->per_rank, layout->tokens_per_rank)) ||
           (layout->tokens_per_node && tool_differ_row(difference, "tokens_per_node", 0, XEP_INT32, c->nodes,
                                                       c->per_node, layout->tokens_per_node)) ||
           (layout->tokens_per_expert && tool_differ_row(difference, "tokens_per_expert", 0, XEP_INT32,
                                                         routing->params.experts, c->per_expert,
                                                         layout->tokens_per_expert));
}

int tool_check_layout(const tool_shape_t *shape, uint32_t rank, uint32_t ranks_per_node, const xep_layout_t *layout,
                      tool_difference_t *difference_p)
{
    const tool_routing_t *routing = shape->routing;
    counts_t c = {.nranks = routing->params.nranks};
    int32_t *idx = tool_alloc(routing->params.topk * sizeof *idx);
    float *weights = tool_alloc(routing->params.topk * sizeof *weights);
    int differs = 0;

    *difference_p = (tool_difference_t){.rank = rank};
    c.ranks_per_node = ranks_per_node ? ranks_per_node : c.nranks;
    c.nodes = (c.nranks + c.ranks_per_node - 1) / c.ranks_per_node;
    c.per_rank = tool_alloc(c.nranks * sizeof *c.per_rank);
    c.per_node = tool_alloc(c.nodes * sizeof *c.per_node);
    c.per_expert = tool_alloc(routing->params.experts * sizeof *c.per_expert);
    c.in_rank = tool_alloc(c.nranks);
    c.in_node = tool_alloc(c.nodes);
    for (uint64_t token = 0; token < routing->tokens_of[rank] && !differs; token++) {
        tool_route(routing, rank, token, idx, weights);
        count_token(routing, idx, &c);
        differs = layout->token_in_rank && tool_differ_row(difference_p, "token_in_rank", token, XEP_U8, c.nranks,
                                                           c.in_rank, layout->token_in_rank + token * c.nranks);
    }
    if (!differs) differs = compare_layout(routing, &c, layout, difference_p);
    free(idx);
    free(weights);
    free(c.per_rank);
    free(c.per_node);
    free(c.per_expert);
    free(c.in_rank);
    free(c.in_node);
    return differs;
}
