/* SPDX-License-Identifier: BSD-3-Clause */

/* What a dispatch must bring to a rank where rows are by expert: local expert, then source rank, then source
 * token, all ascending; cast or as they were. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tool_alloc.h"
#include "tool_differ.h"
#include "tool_number.h"
#include "tool_oracle.h"

enum { GROUP = 128 };

/* ---- casting ----------------------------------------------------------------------- */

static uint32_t groups_of(const tool_shape_t *shape)
{
    return (shape->hidden + GROUP - 1) / GROUP;
}

size_t tool_received_bytes(const tool_shape_t *shape)
{
    return shape->hidden * (shape->quant == XEP_QUANT_NONE ? tool_element_bytes(shape->dtype) : 1);
}

uint32_t tool_received_scales(const tool_shape_t *shape)
{
    if (shape->quant == XEP_QUANT_NONE) return shape->nscales;
    return shape->quant == XEP_QUANT_UE8M0 ? (groups_of(shape) + 3) / 4 : groups_of(shape);
}

/* The scale of a group, and in *factor_p what its elements are multiplied by. */
static float scale_of(const tool_shape_t *shape, float amax, float *factor_p)
{
    float power = 0x1p-30f;

    *factor_p = 448.0f / amax;
    if (shape->quant == XEP_QUANT_E4M3) return amax * (1.0f / 448.0f);
    while (power * 448.0f < amax) power *= 2;
    *factor_p = 1 / power;
    return power;
}

static float cast_group(const tool_shape_t *shape, const void *row, uint32_t from, uint8_t *q)
{
    const uint32_t end = from + GROUP < shape->hidden ? from + GROUP : shape->hidden;
    float amax = 1e-4f, factor, scale;

    for (uint32_t h = from; h < end; h++) amax = fmaxf(amax, fabsf(tool_element(row, shape->dtype, h)));
    scale = scale_of(shape, amax, &factor);
    for (uint32_t h = from; h < end; h++) q[h] = tool_float_to_e4m3(tool_element(row, shape->dtype, h) * factor);
    return scale;
}

void tool_cast_row(const tool_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales)
{
    memset(scales, 0, tool_received_scales(shape) * sizeof *scales);
    for (uint32_t g = 0; g < groups_of(shape); g++) {
        const float scale = cast_group(shape, row, g * GROUP, q);
        uint32_t bits;
        memcpy(&bits, &scale, sizeof bits);
        if (shape->quant == XEP_QUANT_UE8M0) scales[g / 4] |= (bits >> 23) << 8 * (g % 4);
        else scales[g] = bits;
    }
}

/* ---- comparing --------------------------------------------------------------------- */

typedef struct check {
    const tool_shape_t *shape;
    const xep_recv_t *recv;
    uint32_t rank, nranks;
    uint32_t first_expert, experts;
    tool_difference_t *difference;
    uint32_t *count; /* [experts][R] expected */
    uint64_t *next;  /* [experts][R] row of the next selection */
    int32_t *idx;    /* [K] of the token in hand */
    float *weights;  /* [K] */
    void *row;       /* as sent */
    void *cast;      /* as received */
    uint32_t *scales;
} check_t;

static void check_open(check_t *c)
{
    const tool_shape_t *shape = c->shape;
    const uint32_t topk = shape->routing->params.topk;

    c->nranks = shape->routing->params.nranks;
    tool_experts_of(shape->routing, c->rank, &c->first_expert, &c->experts);
    c->count = tool_alloc((size_t)c->experts * c->nranks * sizeof *c->count);
    c->next = tool_alloc((size_t)c->experts * c->nranks * sizeof *c->next);
    c->idx = tool_alloc(topk * sizeof *c->idx);
    c->weights = tool_alloc(topk * sizeof *c->weights);
    c->row = tool_alloc(shape->hidden * tool_element_bytes(shape->dtype));
    c->cast = tool_alloc(shape->hidden);
    c->scales = tool_alloc((tool_received_scales(shape) + 1) * sizeof *c->scales);
}

static void check_close(check_t *c)
{
    free(c->count);
    free(c->next);
    free(c->idx);
    free(c->weights);
    free(c->row);
    free(c->cast);
    free(c->scales);
}

static int number(const check_t *c, const char *array, uint64_t row, uint64_t column, uint64_t expected, uint64_t got)
{
    return tool_differ_number(c->difference, array, row, column, (int64_t)expected, (int64_t)got);
}

/* Calls visit for every selection of this rank's experts, until one returns non-zero. */
static int each_selection(check_t *c, int (*visit)(check_t *c, uint32_t src, uint64_t token, uint32_t expert))
{
    const tool_routing_t *routing = c->shape->routing;

    for (uint32_t src = 0; src < c->nranks; src++)
        for (uint64_t token = 0; token < routing->tokens_of[src]; token++) {
            tool_route(routing, src, token, c->idx, c->weights);
            for (uint32_t k = 0; k < routing->params.topk; k++) {
                const uint32_t expert = (uint32_t)c->idx[k] - c->first_expert;
                if (c->idx[k] >= 0 && expert < c->experts && visit(c, src, token, expert)) return 1;
            }
        }
    return 0;
}

static int count_selection(check_t *c, uint32_t src, uint64_t token, uint32_t expert)
{
    (void)token;
    c->count[(size_t)expert * c->nranks + src]++;
    return 0;
}

static uint64_t align_up(const check_t *c, uint64_t rows)
{
    const uint64_t alignment = c->shape->alignment ? c->shape->alignment : 1;

    return (rows + alignment - 1) / alignment * alignment;
}

static int check_places(check_t *c)
{
    const xep_recv_t *recv = c->recv;
    uint64_t row = 0, received = 0;
    int differs = 0;

    for (uint32_t e = 0; e < c->experts && !differs; e++) {
        const uint64_t begin = c->shape->padded ? e * c->nranks * c->shape->room : row;
        row = begin;
        for (uint32_t src = 0; src < c->nranks && !differs; src++) {
            const size_t pair = (size_t)e * c->nranks + src;
            c->next[pair] = row;
            differs = number(c, "pair_begin", e, src, row, recv->pair_begin[pair]) ||
                      number(c, "pair_count", e, src, c->count[pair], recv->pair_count[pair]);
            row += c->count[pair];
        }
        if (!differs)
            differs = number(c, "expert_begin", e, 0, begin, recv->expert_begin[e]) ||
                      number(c, "expert_count", e, 0, row - begin, recv->expert_count[e]) ||
                      number(c, "expert_rows", e, 0, align_up(c, row - begin), recv->expert_rows[e]);
        received += row - begin;
        row = begin + align_up(c, row - begin);
    }
    return differs || number(c, "rows", 0, 0, c->shape->padded ? received : row, recv->rows);
}

static int check_fields(check_t *c)
{
    const xep_recv_t *recv = c->recv;
    const int cast = c->shape->quant != XEP_QUANT_NONE;

    return number(c, "arrangement", 0, 0, c->shape->padded ? XEP_ROWS_BY_EXPERT_PADDED : XEP_ROWS_BY_EXPERT_COMPACT,
                  recv->arrangement) ||
           number(c, "dtype", 0, 0, cast ? XEP_E4M3 : c->shape->dtype, recv->dtype) ||
           number(c, "hidden", 0, 0, c->shape->hidden, recv->hidden) || number(c, "topk", 0, 0, 1, recv->topk) ||
           number(c, "quant", 0, 0, c->shape->quant, recv->quant) ||
           number(c, "nscales", 0, 0, tool_received_scales(c->shape), recv->nscales) ||
           number(c, "first_expert", 0, 0, c->first_expert, recv->first_expert) ||
           number(c, "local_experts", 0, 0, c->experts, recv->local_experts);
}

static int64_t idx_of(const xep_recv_t *recv, uint64_t row)
{
    return recv->topk_idx_dtype == XEP_INT32 ? ((const int32_t *)recv->topk_idx)[row] : ((const int64_t *)recv->topk_idx)[row];
}

static int check_scales(check_t *c, uint64_t row)
{
    const xep_recv_t *recv = c->recv;
    const char *at = (const char *)recv->scales + (ptrdiff_t)row * recv->scales_token_stride;
    int differs = 0;

    for (uint32_t s = 0; s < recv->nscales && !differs; s++, at += recv->scales_stride) {
        uint32_t got;
        memcpy(&got, at, sizeof got);
        differs = number(c, "scales", row, s, c->scales[s], got);
    }
    return differs;
}

static int check_selection(check_t *c, uint32_t src, uint64_t token, uint32_t expert)
{
    const tool_shape_t *shape = c->shape;
    const uint64_t row = c->next[(size_t)expert * c->nranks + src]++;
    const char *got = (const char *)c->recv->x + row * c->recv->x_stride;
    const int cast = shape->quant != XEP_QUANT_NONE;

    c->difference->src_rank = src;
    c->difference->src_token = token;
    c->difference->has_source = 1;
    tool_fill_row(shape, src, token, c->row);
    if (cast) tool_cast_row(shape, c->row, c->cast, c->scales);
    else tool_fill_scales(shape, src, token, c->scales);
    return number(c, "src_token", row, 0, token, (uint64_t)c->recv->src_token[row]) ||
           tool_differ_number(c->difference, "topk_idx", row, 0, expert, idx_of(c->recv, row)) ||
           tool_differ_row(c->difference, "x", row, cast ? XEP_E4M3 : shape->dtype, shape->hidden, cast ? c->cast : c->row, got) ||
           check_scales(c, row);
}

int tool_check_recv_by_expert(const tool_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                              tool_difference_t *difference_p)
{
    check_t c = {.shape = shape, .recv = recv, .rank = rank, .difference = difference_p};
    int differs;

    *difference_p = (tool_difference_t){.rank = rank};
    check_open(&c);
    each_selection(&c, count_selection);
    differs = check_fields(&c) || check_places(&c) || each_selection(&c, check_selection);
    check_close(&c);
    return differs;
}
