/* SPDX-License-Identifier: BSD-3-Clause */

#include <string.h>

#include "tool_alloc.h"
#include "tool_number.h"
#include "tool_oracle.h"
#include "tool_random.h"

/* A word of the stream becomes elements by (word & keep) | set in every lane. Floats of the
 * types that are summed are finite, of both signs, 0.125 <= |v| < 2; all else is any bits. */
typedef struct lanes {
    uint64_t keep, set;
} lanes_t;

static lanes_t lanes_of(xep_dtype_t dtype)
{
    switch (dtype) {
    case XEP_BF16:
        return (lanes_t){0x81ff81ff81ff81ff, 0x3e003e003e003e00};
    case XEP_FP16:
        return (lanes_t){0x8fff8fff8fff8fff, 0x3000300030003000};
    case XEP_FP32:
        return (lanes_t){0x81ffffff81ffffff, 0x3e0000003e000000};
    default:
        return (lanes_t){UINT64_MAX, 0};
    }
}

static void fill(uint64_t state, lanes_t lanes, void *row, size_t bytes)
{
    uint64_t word;
    size_t at = 0;

    for (; at + sizeof word <= bytes; at += sizeof word) {
        word = (tool_next(&state) & lanes.keep) | lanes.set;
        memcpy((char *)row + at, &word, sizeof word);
    }
    word = (tool_next(&state) & lanes.keep) | lanes.set;
    memcpy((char *)row + at, &word, bytes - at);
}

void tool_fill_row(const tool_shape_t *shape, uint32_t rank, uint64_t token, void *row)
{
    fill(tool_stream(shape->payload, TOOL_KIND_ROW, rank, token), lanes_of(shape->dtype), row,
         shape->hidden * tool_element_bytes(shape->dtype));
}

void tool_fill_scales(const tool_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales)
{
    fill(tool_stream(shape->payload, TOOL_KIND_SCALES, rank, token), lanes_of(XEP_INT32), scales,
         shape->nscales * sizeof *scales);
}

void tool_fill_bias(const tool_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row)
{
    fill(tool_stream(shape->payload, TOOL_KIND_BIAS + which, rank, token), lanes_of(shape->combine_dtype), row,
         shape->hidden * tool_element_bytes(shape->combine_dtype));
}

void tool_fill_expert(const tool_shape_t *shape, uint32_t expert_rank, uint32_t rank, uint64_t token, void *row)
{
    static const lanes_t coded = {0x81ff81ff81ff81ff, 0x3c003c003c003c00}; /* LogFMT leaves what is not below 1 as it is */
    const uint64_t seed = tool_stream(shape->payload, TOOL_KIND_PAYLOAD, expert_rank, 0);

    fill(tool_stream(seed, TOOL_KIND_EXPERT, rank, token), shape->logfmt_from ? coded : lanes_of(shape->combine_dtype), row,
         shape->hidden * tool_element_bytes(shape->combine_dtype));
}

/* streams of experts lie behind those of ranks */
void tool_fill_expert_row(const tool_shape_t *shape, uint32_t expert, uint32_t rank, uint64_t token, void *row)
{
    tool_fill_expert(shape, shape->routing->params.nranks + expert, rank, token, row);
}

static void store_idx(const tool_shape_t *shape, const int32_t *from, void *idx, uint64_t token)
{
    const uint32_t topk = shape->routing->params.topk;

    if (shape->idx_dtype == XEP_INT32)
        memcpy((int32_t *)idx + token * topk, from, topk * sizeof *from);
    else
        for (uint32_t k = 0; k < topk; k++) ((int64_t *)idx)[token * topk + k] = from[k];
}

void tool_fill_inputs(const tool_shape_t *shape, uint32_t rank, void *x, void *idx, float *weights, uint32_t *scales)
{
    const uint32_t topk = shape->routing->params.topk;
    const size_t row_bytes = shape->hidden * tool_element_bytes(shape->dtype);
    int32_t *token_idx = tool_alloc(topk * sizeof *token_idx);
    float *token_weights = tool_alloc(topk * sizeof *token_weights);

    for (uint64_t token = 0; token < shape->routing->tokens_of[rank]; token++) {
        tool_route(shape->routing, rank, token, token_idx, token_weights);
        if (x) tool_fill_row(shape, rank, token, (char *)x + token * row_bytes);
        if (idx) store_idx(shape, token_idx, idx, token);
        if (weights) memcpy(weights + token * topk, token_weights, topk * sizeof *weights);
        if (scales) tool_fill_scales(shape, rank, token, scales + token * shape->nscales);
    }
    free(token_idx);
    free(token_weights);
}

void tool_fill_biases(const tool_shape_t *shape, uint32_t which, uint32_t rank, void *bias)
{
    const size_t row_bytes = shape->hidden * tool_element_bytes(shape->combine_dtype);

    for (uint64_t token = 0; token < shape->routing->tokens_of[rank]; token++)
        tool_fill_bias(shape, which, rank, token, (char *)bias + token * row_bytes);
}

static void expert_rows(const tool_shape_t *shape, const xep_recv_t *recv, void *y, size_t y_stride)
{
    const uint32_t nranks = shape->routing->params.nranks;

    for (uint32_t pair = 0; pair < recv->local_experts * nranks; pair++)
        for (uint64_t row = recv->pair_begin[pair], end = row + recv->pair_count[pair]; row < end; row++)
            tool_fill_expert_row(shape, recv->first_expert + pair / nranks, pair % nranks, (uint64_t)recv->src_token[row],
                                 (char *)y + row * y_stride);
}

void tool_expert_rows(const tool_shape_t *shape, uint32_t rank, const xep_recv_t *recv, void *y, size_t y_stride)
{
    if (shape->by_expert) {
        expert_rows(shape, recv, y, y_stride);
        return;
    }
    for (uint32_t src = 0; src < shape->routing->params.nranks; src++)
        for (uint64_t row = recv->src_begin[src]; row < recv->src_begin[src + 1]; row++)
            tool_fill_expert(shape, rank, src, (uint64_t)recv->src_token[row], (char *)y + row * y_stride);
}

uint64_t tool_hash_row(const void *row, size_t bytes, uint64_t key)
{
    uint64_t hash = tool_mix(key + bytes), word;
    size_t at = 0;

    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, (const char *)row + at, sizeof word);
        hash = tool_mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, (const char *)row + at, bytes - at);
    return tool_mix(hash ^ word);
}

static uint64_t hash_by_expert(const xep_recv_t *recv, uint32_t nranks, size_t row_bytes)
{
    uint64_t sum = 0;

    for (uint32_t pair = 0; pair < recv->local_experts * nranks; pair++)
        for (uint64_t row = recv->pair_begin[pair], end = row + recv->pair_count[pair]; row < end; row++)
            sum += tool_hash_row((const char *)recv->x + row * recv->x_stride, row_bytes,
                                 tool_stream(row, TOOL_KIND_ROW, pair, (uint64_t)recv->src_token[row]));
    return sum;
}

uint64_t tool_hash_recv(const xep_recv_t *recv, uint32_t nranks)
{
    const size_t row_bytes = recv->hidden * tool_element_bytes(recv->dtype);
    uint64_t sum = 0;

    if (recv->arrangement != XEP_ROWS_BY_RANK) return hash_by_expert(recv, nranks, row_bytes);
    for (uint32_t src = 0; src < nranks; src++)
        for (uint64_t row = recv->src_begin[src]; row < recv->src_begin[src + 1]; row++)
            sum += tool_hash_row((const char *)recv->x + row * recv->x_stride, row_bytes,
                                 tool_stream(0, TOOL_KIND_ROW, src, (uint64_t)recv->src_token[row]));
    return sum;
}

uint64_t tool_hash_rows(const void *rows, size_t stride, size_t row_bytes, uint64_t count)
{
    uint64_t sum = 0;

    for (uint64_t row = 0; row < count; row++)
        sum += tool_hash_row((const char *)rows + row * stride, row_bytes, row);
    return sum;
}
