/* SPDX-License-Identifier: BSD-3-Clause */

/* What a dispatch must bring to a rank: first the counts, then the rows one by one, in
 * the order guaranteed: source rank, then source token, both ascending. */

#include <stdlib.h>
#include <string.h>

#include "tool_alloc.h"
#include "tool_differ.h"
#include "tool_number.h"
#include "tool_oracle.h"

typedef struct check {
    const tool_shape_t *shape;
    const xep_recv_t *recv;
    uint32_t rank;
    uint32_t first_expert, experts; /* of this rank */
    tool_difference_t *difference;
    uint32_t *rank_rows;   /* [R][R] expected */
    uint64_t *expert_rows; /* [experts] expected, not yet aligned */
    uint64_t row;          /* next row of recv */
    int32_t *idx;          /* [K] of the token in hand */
    float *weights;        /* [K] */
    uint32_t *ranks;       /* [K] */
    void *expected;        /* a row, or scales */
} check_t;

static void check_open(check_t *c)
{
    const tool_shape_t *shape = c->shape;
    const uint32_t topk = shape->routing->params.topk;
    const size_t nranks = shape->routing->params.nranks;
    const size_t row_bytes = shape->hidden * tool_element_bytes(shape->dtype);

    tool_experts_of(shape->routing, c->rank, &c->first_expert, &c->experts);
    c->rank_rows = tool_alloc(nranks * nranks * sizeof *c->rank_rows);
    c->expert_rows = tool_alloc(c->experts * sizeof *c->expert_rows);
    c->idx = tool_alloc(topk * sizeof *c->idx);
    c->weights = tool_alloc(topk * sizeof *c->weights);
    c->ranks = tool_alloc(topk * sizeof *c->ranks);
    c->expected = tool_alloc(row_bytes > shape->nscales * 4 ? row_bytes : shape->nscales * 4);
}

static void check_close(check_t *c)
{
    free(c->rank_rows);
    free(c->expert_rows);
    free(c->idx);
    free(c->weights);
    free(c->ranks);
    free(c->expected);
}

static int number(const check_t *c, const char *array, uint64_t row, uint64_t column, uint64_t expected, uint64_t got)
{
    return tool_differ_number(c->difference, array, row, column, (int64_t)expected, (int64_t)got);
}

/* Calls visit for every token of every rank, routed, until one returns non-zero. */
static int each_token(check_t *c, int (*visit)(check_t *c, uint32_t src, uint64_t token))
{
    const tool_routing_t *routing = c->shape->routing;

    for (uint32_t src = 0; src < routing->params.nranks; src++)
        for (uint64_t token = 0; token < routing->tokens_of[src]; token++) {
            tool_route(routing, src, token, c->idx, c->weights);
            if (visit(c, src, token)) return 1;
        }
    return 0;
}

static int is_mine(const check_t *c, int32_t expert)
{
    return expert >= 0 && (uint32_t)expert >= c->first_expert && (uint32_t)expert < c->first_expert + c->experts;
}

/* ---- counts ---------------------------------------------------------------------- */

static int count_token(check_t *c, uint32_t src, uint64_t token)
{
    const uint32_t n = tool_destinations(c->shape->routing, c->idx, c->ranks);

    (void)token;
    for (uint32_t i = 0; i < n; i++) c->rank_rows[(size_t)src * c->shape->routing->params.nranks + c->ranks[i]]++;
    for (uint32_t k = 0; k < c->shape->routing->params.topk; k++)
        if (is_mine(c, c->idx[k])) c->expert_rows[(uint32_t)c->idx[k] - c->first_expert]++;
    return 0;
}

static int check_form(const check_t *c)
{
    const tool_shape_t *shape = c->shape;
    const xep_recv_t *recv = c->recv;

    return number(c, "arrangement", 0, 0, XEP_ROWS_BY_RANK, recv->arrangement) ||
           number(c, "dtype", 0, 0, shape->dtype, recv->dtype) ||
           number(c, "hidden", 0, 0, shape->hidden, recv->hidden) ||
           number(c, "topk", 0, 0, shape->routing->params.topk, recv->topk) ||
           number(c, "topk_idx_dtype", 0, 0, shape->idx_dtype, recv->topk_idx_dtype) ||
           number(c, "topk_weights present", 0, 0, shape->weights != 0, recv->topk_weights != NULL) ||
           number(c, "nscales", 0, 0, shape->nscales, recv->scales ? recv->nscales : 0) ||
           (shape->nscales && number(c, "scales_dtype", 0, 0, shape->scales_dtype, recv->scales_dtype)) ||
           number(c, "first_expert", 0, 0, c->first_expert, recv->first_expert) ||
           number(c, "local_experts", 0, 0, c->experts, recv->local_experts);
}

static int check_rank_counts(const check_t *c)
{
    const uint32_t nranks = c->shape->routing->params.nranks;
    uint64_t begin = 0;

    for (uint32_t from = 0; from < nranks; from++) {
        if (number(c, "src_begin", 0, from, begin, c->recv->src_begin[from])) return 1;
        begin += c->rank_rows[(size_t)from * nranks + c->rank];
        for (uint32_t to = 0; to < nranks; to++)
            if (number(c, "rank_rows", from, to, c->rank_rows[(size_t)from * nranks + to],
                       c->recv->rank_rows[(size_t)from * nranks + to]))
                return 1;
    }
    return number(c, "src_begin", 0, nranks, begin, c->recv->src_begin[nranks]) ||
           number(c, "rows", 0, 0, begin, c->recv->rows) ||
           number(c, "capacity", 0, 0, c->shape->capacity ? c->shape->capacity : begin, c->recv->capacity);
}

static int check_expert_counts(const check_t *c)
{
    const uint64_t align = c->shape->alignment ? c->shape->alignment : 1;

    for (uint32_t e = 0; e < c->experts; e++)
        if (number(c, "expert_rows", 0, e, (c->expert_rows[e] + align - 1) / align * align, c->recv->expert_rows[e]))
            return 1;
    return 0;
}

/* ---- rows ------------------------------------------------------------------------ */

static int64_t received_idx(const check_t *c, uint64_t row, uint32_t k)
{
    const size_t at = row * c->recv->topk + k;

    return c->recv->topk_idx_dtype == XEP_INT32 ? ((const int32_t *)c->recv->topk_idx)[at]
                                                : ((const int64_t *)c->recv->topk_idx)[at];
}

static int check_selections(const check_t *c)
{
    for (uint32_t k = 0; k < c->recv->topk; k++) {
        const int mine = is_mine(c, c->idx[k]);
        const int64_t expected = mine ? c->idx[k] - (int64_t)c->first_expert : -1;
        const float weight = mine ? c->weights[k] : 0.0f;
        if (tool_differ_number(c->difference, "topk_idx", c->row, k, expected, received_idx(c, c->row, k))) return 1;
        if (!c->shape->weights) continue;
        if (!tool_differ_row(c->difference, "topk_weights", c->row, XEP_FP32, 1, &weight,
                             c->recv->topk_weights + c->row * c->recv->topk + k))
            continue;
        c->difference->column = k;
        return 1;
    }
    return 0;
}

/* One by one: the scales of a row need not be side by side. */
static int check_scales(const check_t *c, uint32_t src, uint64_t token)
{
    const char *scales = (const char *)c->recv->scales + (ptrdiff_t)c->row * c->recv->scales_token_stride;
    const uint32_t *expected = c->expected;

    tool_fill_scales(c->shape, src, token, c->expected);
    for (uint32_t i = 0; i < c->shape->nscales; i++, scales += c->recv->scales_stride) {
        if (!tool_differ_row(c->difference, "scales", c->row, XEP_INT32, 1, &expected[i], scales)) continue;
        c->difference->column = i;
        return 1;
    }
    return 0;
}

static int check_contents(const check_t *c, uint32_t src, uint64_t token)
{
    const tool_shape_t *shape = c->shape;

    tool_fill_row(shape, src, token, c->expected);
    if (tool_differ_row(c->difference, "x", c->row, shape->dtype, shape->hidden, c->expected,
                        (const char *)c->recv->x + c->row * c->recv->x_stride))
        return 1;
    return check_scales(c, src, token);
}

static int check_token(check_t *c, uint32_t src, uint64_t token)
{
    uint32_t k = 0;

    while (k < c->recv->topk && !is_mine(c, c->idx[k])) k++;
    if (k == c->recv->topk) return 0;
    c->difference->has_source = 1;
    c->difference->src_rank = src;
    c->difference->src_token = token;
    if (tool_differ_number(c->difference, "src_token", c->row, 0, (int64_t)token, c->recv->src_token[c->row]) ||
        check_selections(c) || check_contents(c, src, token))
        return 1;
    c->difference->has_source = 0;
    c->row++;
    return 0;
}

static int check_tail(const check_t *c)
{
    for (uint64_t row = c->recv->rows; row < c->recv->capacity; row++)
        for (uint32_t k = 0; k < c->recv->topk; k++)
            if (tool_differ_number(c->difference, "topk_idx", row, k, -1, received_idx(c, row, k))) return 1;
    return 0;
}

int tool_check_recv(const tool_shape_t *shape, uint32_t rank, const xep_recv_t *recv, tool_difference_t *difference_p)
{
    if (shape->by_expert) return tool_check_recv_by_expert(shape, rank, recv, difference_p);
    check_t c = {.shape = shape, .recv = recv, .rank = rank, .difference = difference_p};
    int differs;

    *difference_p = (tool_difference_t){.rank = rank};
    check_open(&c);
    each_token(&c, count_token);
    differs = check_form(&c) || check_rank_counts(&c) || check_expert_counts(&c) || each_token(&c, check_token) ||
              check_tail(&c);
    check_close(&c);
    return differs;
}
