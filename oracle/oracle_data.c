/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A row depends on its rank, token and payload alone, and is random, so that a row in the wrong place is not right by
 * chance.
 */
#include "oracle_data.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_number.h"
#include "oracle_payloads.h"
#include "oracle_random.h"

/* A word of the stream becomes elements by (word & keep) | set in every lane. Floats of the
 * types that are summed are finite, of both signs, 0.125 <= |v| < 2; all else is any bits. */
typedef struct lanes {
    uint64_t keep, set;
} lanes_t;

/*
 * Numbers of about the same size keep every term of a sum visible: beside a large one a small one could be lost, and
 * nobody would notice. Types that only travel may be any bits, NaN among them.
 */
static lanes_t lanes_of(xep_dtype_t dtype)
{
    switch (dtype) {
    case XEP_BF16: return (lanes_t){0x81ff81ff81ff81ff, 0x3e003e003e003e00};
    case XEP_FP16: return (lanes_t){0x8fff8fff8fff8fff, 0x3000300030003000};
    case XEP_FP32: return (lanes_t){0x81ffffff81ffffff, 0x3e0000003e000000};
    default: return (lanes_t){UINT64_MAX, 0};
    }
}

/* The tail is filled as well, from one word more: rows of odd lengths have no bytes that stay as they were. */
static void fill(uint64_t state, lanes_t lanes, void *row, size_t bytes)
{
    uint64_t word;
    size_t at = 0;

    for (; at + sizeof word <= bytes; at += sizeof word) {
        word = (oracle_next(&state) & lanes.keep) | lanes.set;
        memcpy((char *)row + at, &word, sizeof word);
    }
    word = (oracle_next(&state) & lanes.keep) | lanes.set;
    memcpy((char *)row + at, &word, bytes - at);
}

/* ---- the generator ---- */

/* The routing's own choice; it has a stream for each token, so any rank can ask for any. */
static void generate_route(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    oracle_route(shape->routing, rank, token, idx, weights);
}

static void generate_row(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *row)
{
    fill(oracle_stream(shape->payload, ORACLE_KIND_ROW, rank, token), lanes_of(shape->dtype), row,
         shape->hidden * oracle_element_bytes(shape->dtype));
}

static void generate_scales(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales)
{
    fill(oracle_stream(shape->payload, ORACLE_KIND_SCALES, rank, token), lanes_of(XEP_INT32), scales,
         oracle_scales_bytes(shape));
}

static void generate_bias(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row)
{
    fill(oracle_stream(shape->payload, ORACLE_KIND_BIAS + which, rank, token), lanes_of(shape->combine_dtype), row,
         shape->hidden * oracle_element_bytes(shape->combine_dtype));
}

/* Differs from maker to maker, so that swapped rows are found; the streams of experts lie behind those of ranks. */
static void generate_output(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, void *row)
{
    /* LogFMT leaves what is not below 1 as it is */
    const int is_logfmt = shape->combine_quant == XEP_QUANT_LOGFMT;
    static const lanes_t below_one = {0x81ff81ff81ff81ff, 0x3c003c003c003c00};
    /* multiples of 2^-10 below 2: sums of some thousand are exact */
    static const lanes_t exact = {0x81ff000081ff0000, 0x3e0000003e000000};
    const int is_part = shape->instances != NULL && !shape->by_expert;
    const uint32_t stream = shape->by_expert || is_part ? shape->routing->params.nranks + maker : maker;
    const uint64_t seed = oracle_stream(shape->payload, ORACLE_KIND_PAYLOAD, stream, 0);

    fill(oracle_stream(seed, ORACLE_KIND_EXPERT, rank, token),
         is_part     ? exact
         : is_logfmt ? below_one
                     : lanes_of(shape->combine_dtype),
         row, shape->hidden * oracle_element_bytes(shape->combine_dtype));
}

/* What was received is sent back: the weights of the maker's own experts. */
static void generate_returned(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token,
                              float *weights)
{
    const uint32_t topk = shape->routing->params.topk;
    int32_t *idx = oracle_alloc(topk * sizeof *idx);

    oracle_route_token(shape, rank, token, idx, weights);
    for (uint32_t k = 0; k < topk && !shape->by_expert; k++)
        if (idx[k] < 0 || oracle_owner(shape->routing, (uint32_t)idx[k]) != maker) weights[k] = 0.0f;
    free(idx);
}

const oracle_source_t oracle_generator = {
    .route = generate_route,
    .row = generate_row,
    .scales = generate_scales,
    .bias = generate_bias,
    .output = generate_output,
    .returned = generate_returned,
};

/* ---- any source ---- */

/* Whoever compares asks the same source as whoever fills, so a test that brings its own is compared with its own. */
static const oracle_source_t *source_of(const oracle_shape_t *shape)
{
    return shape->source == NULL ? &oracle_generator : shape->source;
}

void oracle_route_token(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    source_of(shape)->route(shape, rank, token, idx, weights);
    for (uint32_t k = 0; shape->without != 0 && k < shape->routing->params.topk; k++)
        if (idx[k] >= 0 && (shape->without >> oracle_owner(shape->routing, (uint32_t)idx[k]) & 1)) idx[k] = -1;
}

void oracle_fill_row(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *row)
{
    source_of(shape)->row(shape, rank, token, row);
}

void oracle_fill_scales(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales)
{
    source_of(shape)->scales(shape, rank, token, scales);
}

void oracle_fill_bias(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row)
{
    source_of(shape)->bias(shape, which, rank, token, row);
}

void oracle_fill_output(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, void *row)
{
    source_of(shape)->output(shape, maker, rank, token, row);
}

void oracle_fill_returned(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, float *weights)
{
    source_of(shape)->returned(shape, maker, rank, token, weights);
}

/* ---- a whole rank ---- */

static void store_idx(const oracle_shape_t *shape, const int32_t *from, void *idx, uint64_t token)
{
    const uint32_t topk = shape->routing->params.topk;

    if (shape->idx_dtype == XEP_INT32) memcpy((int32_t *)idx + token * topk, from, topk * sizeof *from);
    else
        for (uint32_t k = 0; k < topk; k++) ((int64_t *)idx)[token * topk + k] = from[k];
}

void oracle_fill_inputs(const oracle_shape_t *shape, uint32_t rank, void *x, void *idx, float *weights,
                        uint32_t *scales)
{
    const uint32_t topk = shape->routing->params.topk;
    const size_t row_bytes = shape->hidden * oracle_element_bytes(shape->dtype);
    int32_t *token_idx = oracle_alloc(topk * sizeof *token_idx);
    float *token_weights = oracle_alloc(topk * sizeof *token_weights);

    for (uint64_t token = 0; token < shape->routing->params.tokens_of[rank]; token++) {
        oracle_route_token(shape, rank, token, token_idx, token_weights);
        if (x != NULL) oracle_fill_row(shape, rank, token, (char *)x + token * row_bytes);
        if (idx != NULL) store_idx(shape, token_idx, idx, token);
        if (weights != NULL) memcpy(weights + token * topk, token_weights, topk * sizeof *weights);
        if (scales != NULL) {
            char *to = (char *)scales + token * oracle_scales_bytes(shape);
            oracle_fill_scales(shape, rank, token, (uint32_t *)(void *)to);
        }
    }
    free(token_idx);
    free(token_weights);
}

void oracle_fill_biases(const oracle_shape_t *shape, uint32_t which, uint32_t rank, void *bias)
{
    const size_t row_bytes = shape->hidden * oracle_element_bytes(shape->combine_dtype);

    for (uint64_t token = 0; token < shape->routing->params.tokens_of[rank]; token++)
        oracle_fill_bias(shape, which, rank, token, (char *)bias + token * row_bytes);
}

/*
 * By the places that the rank was told, and not by those that are right: wrong ones show as rows that come back to the
 * wrong token.
 */
static void fill_outputs_by_expert(const oracle_shape_t *shape, const xep_recv_t *recv, void *y, size_t y_stride)
{
    const uint32_t nranks = shape->routing->params.nranks;

    for (uint32_t pair = 0; pair < recv->local_experts * nranks; pair++)
        for (uint64_t row = recv->pair_begin[pair], end = row + recv->pair_count[pair]; row < end; row++)
            oracle_fill_output(shape, recv->experts[pair / nranks], pair % nranks, (uint64_t)recv->src_token[row],
                               (char *)y + row * y_stride);
}

int64_t oracle_idx_at(const xep_recv_t *recv, uint64_t row, uint32_t k)
{
    const size_t at = row * recv->topk + k;

    return recv->topk_idx_dtype == XEP_INT32 ? ((const int32_t *)recv->topk_idx)[at]
                                             : ((const int64_t *)recv->topk_idx)[at];
}

/* The sum of what those experts have that the row says are here. */
static void fill_sum(const oracle_shape_t *shape, const xep_recv_t *recv, uint64_t row, uint32_t src, void *y)
{
    float *sum = oracle_alloc(shape->hidden * sizeof *sum);

    for (uint32_t k = 0; k < recv->topk; k++) {
        const int64_t local = oracle_idx_at(recv, row, k);
        if (local < 0 || local >= (int64_t)recv->local_experts) continue;
        oracle_fill_output(shape, recv->experts[local], src, (uint64_t)recv->src_token[row], y);
        oracle_row_add(sum, y, shape->combine_dtype, shape->hidden);
    }
    oracle_row_round(y, sum, shape->combine_dtype, shape->hidden);
    free(sum);
}

void oracle_fill_outputs(const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv, void *y, size_t y_stride)
{
    if (shape->by_expert) {
        fill_outputs_by_expert(shape, recv, y, y_stride);
        return;
    }
    for (uint32_t src = 0; src < shape->routing->params.nranks; src++)
        for (uint64_t row = recv->src_begin[src]; row < recv->src_begin[src + 1]; row++) {
            void *to = (char *)y + row * y_stride;
            if (shape->instances != NULL) fill_sum(shape, recv, row, src, to);
            else oracle_fill_output(shape, rank, src, (uint64_t)recv->src_token[row], to);
        }
}
