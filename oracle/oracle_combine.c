/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Sums are made in the documented order and rounded once, as the library must: equality is of bits, there is no
 * tolerance.
 */
#include "oracle_combine.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_cast.h"
#include "oracle_number.h"

/* ---- sums ---- */

typedef struct sum {
    const oracle_shape_t *shape;
    uint32_t rank;
    unsigned biases;
    int32_t *idx;    /* [K] */
    float *weights;  /* [K] */
    uint32_t *ranks; /* [K] */
    float *total;    /* [H] */
    void *row;       /* a term, and then the sum rounded */
    float *partial;  /* [H] of a rank */
    void *arrived;   /* a term that was encoded */
} sum_t;

/* Scratch of one row, used again for every token. */
static void sum_open(sum_t *s)
{
    const uint32_t topk = s->shape->routing->params.topk;

    s->idx = oracle_alloc(topk * sizeof *s->idx);
    s->weights = oracle_alloc(topk * sizeof *s->weights);
    s->ranks = oracle_alloc(topk * sizeof *s->ranks);
    s->total = oracle_alloc(s->shape->hidden * sizeof *s->total);
    s->row = oracle_alloc(s->shape->hidden * oracle_element_bytes(s->shape->combine_dtype));
    s->partial = oracle_alloc(s->shape->hidden * sizeof *s->partial);
    s->arrived = oracle_alloc(s->shape->hidden * oracle_element_bytes(s->shape->combine_dtype));
}

static void sum_close(sum_t *s)
{
    free(s->idx);
    free(s->weights);
    free(s->ranks);
    free(s->total);
    free(s->row);
    free(s->partial);
    free(s->arrived);
}

static int is_encoded(const oracle_shape_t *shape, uint32_t owner)
{
    return shape->combine_quant != XEP_QUANT_NONE && shape->encoded_from != NULL && shape->encoded_from[owner];
}

/* A row of that type, encoded and decoded. */
static const void *travel(sum_t *s, const void *row, xep_dtype_t dtype)
{
    const oracle_shape_t travels = {.hidden = s->shape->hidden,
                                    .dtype = dtype,
                                    .quant = s->shape->combine_quant,
                                    .quant_scale = s->shape->combine_scale};
    oracle_cast_journey(&travels, row, s->arrived);
    return s->arrived;
}

/* A sum, which s->row has rounded to its type, as it comes here: LogFMT is made of that. */
static const void *journey(sum_t *s, const float *sum)
{
    if (s->shape->combine_quant == XEP_QUANT_LOGFMT) return travel(s, s->row, XEP_BF16);
    return travel(s, sum, XEP_FP32);
}

/* The output of an expert for a token, as it comes here. */
static const void *expert_row(sum_t *s, uint32_t expert, uint64_t token)
{
    oracle_fill_output(s->shape, expert, s->rank, token, s->row);
    return is_encoded(s->shape, oracle_owner(s->shape->routing, expert)) ? travel(s, s->row, XEP_BF16) : s->row;
}

/* The sum of what an owner's experts have, as it comes here: rounded once, but for LogFMT, which is made of bf16. */
static const void *owner_row(sum_t *s, uint32_t owner, uint64_t token)
{
    const oracle_shape_t *shape = s->shape;

    memset(s->partial, 0, shape->hidden * sizeof *s->partial);
    for (uint32_t k = 0; k < shape->routing->params.topk; k++) {
        if (s->idx[k] < 0 || oracle_owner(shape->routing, (uint32_t)s->idx[k]) != owner) continue;
        oracle_fill_output(shape, (uint32_t)s->idx[k], s->rank, token, s->row);
        oracle_row_add(s->partial, s->row, shape->combine_dtype, shape->hidden);
    }
    oracle_row_round(s->row, s->partial, shape->combine_dtype, shape->hidden);
    return is_encoded(shape, owner) ? journey(s, s->partial) : s->row;
}

/* By ascending ranks, and not by k. */
static void add_owners(sum_t *s, uint64_t token)
{
    const uint32_t n = oracle_destinations(s->shape->routing, s->idx, s->ranks);

    for (uint32_t i = 0; i < n; i++)
        oracle_row_add(s->total, owner_row(s, s->ranks[i], token), s->shape->combine_dtype, s->shape->hidden);
}

/*
 * By expert: each selection with its weight, in the order of k; the weights are those of this rank's own tokens.
 * Unweighted they are 1, and not left out: fma() with 1 is the sum.
 */
static void add_experts(sum_t *s, uint64_t token)
{
    const oracle_shape_t *shape = s->shape;

    oracle_fill_returned(shape, s->rank, s->rank, token, s->weights);
    for (uint32_t k = 0; k < shape->routing->params.topk; k++) {
        if (s->idx[k] < 0) continue;
        const void *row = expert_row(s, (uint32_t)s->idx[k], token);
        oracle_row_add_weighted(s->total, shape->unweighted ? 1.0f : s->weights[k], row, shape->combine_dtype,
                                shape->hidden);
    }
}

/* Parts of sums of ranks, whichever they are. */
static void add_parts(sum_t *s, uint64_t token)
{
    for (uint32_t k = 0; k < s->shape->routing->params.topk; k++) {
        if (s->idx[k] < 0) continue;
        oracle_fill_output(s->shape, (uint32_t)s->idx[k], s->rank, token, s->row);
        oracle_row_add(s->total, s->row, s->shape->combine_dtype, s->shape->hidden);
    }
}

/* By rank: one row of each rank that the token went to, however many of its experts are there. */
static void add_ranks(sum_t *s, uint64_t token)
{
    const oracle_shape_t *shape = s->shape;
    const uint32_t n = oracle_destinations(shape->routing, s->idx, s->ranks);

    for (uint32_t i = 0; i < n; i++) {
        oracle_fill_output(shape, s->ranks[i], s->rank, token, s->row);
        const void *row = is_encoded(shape, s->ranks[i]) ? travel(s, s->row, XEP_BF16) : s->row;
        oracle_row_add(s->total, row, shape->combine_dtype, shape->hidden);
    }
}

/* Adds the row in which another node sends what its ranks have for the token, if any of them has something. */
static void add_other_node(sum_t *s, uint32_t node, uint32_t n, uint64_t token)
{
    const oracle_shape_t *shape = s->shape;
    float *sum = oracle_alloc(shape->hidden * sizeof *sum);
    int any = 0;

    memset(sum, 0, shape->hidden * sizeof *sum);
    for (uint32_t i = 0; i < n; i++) {
        if (shape->node[s->ranks[i]] != node) continue;
        oracle_fill_output(shape, s->ranks[i], s->rank, token, s->row);
        oracle_row_add(sum, s->row, shape->combine_dtype, shape->hidden);
        any = 1;
    }
    oracle_row_round(s->row, sum, shape->combine_dtype, shape->hidden);
    if (any && shape->combine_quant != XEP_QUANT_NONE)
        oracle_row_add(s->total, journey(s, sum), shape->combine_dtype, shape->hidden);
    else if (any) oracle_row_add(s->total, s->row, shape->combine_dtype, shape->hidden);
    free(sum);
}

/* By nodes, ascending: a row of each rank of the own node, and one of every other node. */
static void add_nodes(sum_t *s, uint64_t token)
{
    const oracle_shape_t *shape = s->shape;
    const uint32_t n = oracle_destinations(shape->routing, s->idx, s->ranks), nranks = shape->routing->params.nranks;

    for (uint32_t node = 0; node < nranks; node++) {
        if (node != shape->node[s->rank]) {
            add_other_node(s, node, n, token);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (shape->node[s->ranks[i]] != node) continue;
            oracle_fill_output(shape, s->ranks[i], s->rank, token, s->row);
            oracle_row_add(s->total, s->row, shape->combine_dtype, shape->hidden);
        }
    }
}

/* Its selections, but for those that the sum lacks. */
static void route(sum_t *s, uint64_t token)
{
    const uint32_t topk = s->shape->routing->params.topk;

    oracle_route_token(s->shape, s->rank, token, s->idx, s->weights);
    for (uint32_t k = 0; s->shape->missing != NULL && k < topk; k++)
        if (s->shape->missing[token * topk + k]) s->idx[k] = -1;
}

/* The row a token must combine to, in s->row. */
static void sum_token(sum_t *s, uint64_t token)
{
    const oracle_shape_t *shape = s->shape;

    route(s, token);
    memset(s->total, 0, shape->hidden * sizeof *s->total);
    for (uint32_t which = 0; which < 2; which++) {
        if (!(s->biases >> which & 1)) continue;
        oracle_fill_bias(shape, which, s->rank, token, s->row);
        oracle_row_add(s->total, s->row, shape->combine_dtype, shape->hidden);
    }
    if (shape->by_expert && shape->sum_at_owner) add_owners(s, token);
    else if (shape->by_expert) add_experts(s, token);
    else if (shape->instances != NULL) add_parts(s, token);
    else if (shape->node != NULL) add_nodes(s, token);
    else add_ranks(s, token);
    oracle_row_round(s->row, s->total, shape->combine_dtype, shape->hidden);
}

int oracle_check_combine(const oracle_shape_t *shape, uint32_t rank, unsigned biases, const void *out,
                         size_t out_stride, oracle_difference_t *difference_p)
{
    sum_t s = {.shape = shape, .rank = rank, .biases = biases};
    int differs = 0;

    *difference_p = (oracle_difference_t){.rank = rank};
    sum_open(&s);
    for (uint64_t token = 0; token < shape->routing->params.tokens_of[rank] && !differs; token++) {
        sum_token(&s, token);
        differs = oracle_differ_row(difference_p, "out", token, shape->combine_dtype, shape->hidden, s.row,
                                    (const char *)out + token * out_stride);
    }
    sum_close(&s);
    return differs;
}

/* ---- weights ---- */

/* Of each selection what the ranks of a node send back, added to sums: one by one, or of another node as one. */
static void add_node_weights(sum_t *s, uint32_t node, uint32_t n, uint64_t token, float *sums)
{
    const oracle_shape_t *shape = s->shape;
    const uint32_t topk = shape->routing->params.topk;
    float *total = oracle_alloc(topk * sizeof *total), *to = node == shape->node[s->rank] ? sums : total;

    memset(total, 0, topk * sizeof *total);
    for (uint32_t i = 0; i < n; i++) {
        if (shape->node[s->ranks[i]] != node) continue;
        oracle_fill_returned(shape, s->ranks[i], s->rank, token, s->weights);
        for (uint32_t k = 0; k < topk; k++) to[k] += s->weights[k];
    }
    for (uint32_t k = 0; k < topk && to == total; k++) sums[k] += total[k];
    free(total);
}

/* What the ranks a token went to send back, ascending by rank, or by nodes, added in sums [K]. */
static void add_weights(sum_t *s, uint64_t token, float *sums)
{
    const uint32_t topk = s->shape->routing->params.topk, nranks = s->shape->routing->params.nranks;
    uint32_t n;

    route(s, token);
    n = oracle_destinations(s->shape->routing, s->idx, s->ranks);
    memset(sums, 0, topk * sizeof *sums);
    for (uint32_t node = 0; s->shape->node != NULL && node < nranks; node++) add_node_weights(s, node, n, token, sums);
    for (uint32_t i = 0; i < n && s->shape->node == NULL; i++) {
        oracle_fill_returned(s->shape, s->ranks[i], s->rank, token, s->weights);
        for (uint32_t k = 0; k < topk; k++) sums[k] += s->weights[k];
    }
    for (uint32_t k = 0; s->shape->missing != NULL && k < topk; k++)
        if (s->shape->missing[token * topk + k]) sums[k] = 0; /* another selection's rank has it, too */
}

int oracle_check_weights(const oracle_shape_t *shape, uint32_t rank, const float *out, size_t out_stride,
                         oracle_difference_t *difference_p)
{
    const uint32_t topk = shape->routing->params.topk;
    float *sums = oracle_alloc(topk * sizeof *sums);
    sum_t s = {.shape = shape, .rank = rank};
    int differs = 0;

    *difference_p = (oracle_difference_t){.rank = rank};
    sum_open(&s);
    for (uint64_t token = 0; token < shape->routing->params.tokens_of[rank] && !differs; token++) {
        add_weights(&s, token, sums);
        differs = oracle_differ_row(difference_p, "out_weights", token, XEP_FP32, topk, sums,
                                    (const char *)out + token * out_stride);
    }
    sum_close(&s);
    free(sums);
    return differs;
}
