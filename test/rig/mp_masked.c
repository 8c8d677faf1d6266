/* SPDX-License-Identifier: BSD-3-Clause */

/* Only the routing differs: everything else is what the oracle has for a shape without a source of its own. */
#include "mp_masked.h"

uint32_t mp_masked_out;

static void route(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    oracle_route(shape->routing, rank, token, idx, weights);
    for (uint32_t k = 0; k < shape->routing->params.topk; k++)
        if (idx[k] >= 0 && (mp_masked_out >> oracle_owner(shape->routing, (uint32_t)idx[k]) & 1)) idx[k] = -1;
}

static oracle_shape_t plain(const oracle_shape_t *shape)
{
    oracle_shape_t copy = *shape;
    copy.source = NULL;
    return copy;
}

static void row(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_row(&copy, rank, token, to);
}

static void scales(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_scales(&copy, rank, token, to);
}

static void bias(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_bias(&copy, which, rank, token, to);
}

static void output(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, void *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_output(&copy, maker, rank, token, to);
}

static void returned(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, float *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_returned(&copy, maker, rank, token, to);
}

const oracle_source_t mp_masked =
    {.route = route, .row = row, .scales = scales, .bias = bias, .output = output, .returned = returned};
