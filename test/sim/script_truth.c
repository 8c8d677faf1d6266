/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_truth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim_mode.h"

/* What a number of hash() is for. */
typedef enum { OF_ROUTE, OF_WEIGHT, OF_RETURNED, OF_SCALE, OF_ROW, OF_BIAS, OF_OUTPUT } purpose_t;

static const script_truth_t *truth_of(const oracle_shape_t *shape)
{
    return shape->source_arg;
}

/* Of a token: known by (rank, token), or by one number where tokens are global. */
static uint64_t hash(const script_t *script, const script_call_t *call, purpose_t purpose, uint32_t rank,
                     uint64_t token, uint64_t more)
{
    uint64_t what = call->payload * UINT64_C(16) + purpose;
    if (script->global_tokens) return sim_hash(script->seed, what, 0, token * script->shape.nranks + rank, more);
    return sim_hash(script->seed, what, rank, token, more);
}

/* ---- routing ---- */

static int32_t expert_of(const script_truth_t *truth, uint32_t rank, uint64_t token, uint32_t k)
{
    const script_t *script = truth->script;
    const script_call_t *origin = &script->calls[truth->dispatch->origin];
    uint32_t experts = script->shape.experts, topk = truth->dispatch->topk;
    uint64_t h = hash(script, origin, OF_ROUTE, rank, token, k), e = h / 7 % experts;
    switch (truth->dispatch->route) {
    case ROUTE_NOWHERE: return -1;
    case ROUTE_ONE_EXPERT: return (int32_t)(experts / 2);
    case ROUTE_SELF: return oracle_owner(&truth->routing, (uint32_t)e) == rank ? (int32_t)e : -1;
    case ROUTE_ALL: return (int32_t)((token + k * (experts / topk)) % experts);
    case ROUTE_DUPLICATES:
        return h % 5 == 0 ? -1 : (int32_t)(hash(script, origin, OF_ROUTE, rank, token, 1000 + k / 2) % experts);
    default: return h % 7 == 0 ? -1 : (int32_t)e;
    }
}

static float weight_of(const script_t *script, const script_call_t *call, purpose_t purpose, uint32_t rank,
                       uint64_t token, uint64_t more)
{
    return (float)((double)(hash(script, call, purpose, rank, token, more) >> 11) * 0x1p-53 - 0.25);
}

/* The call whose weights a dispatch has: by expert they belong to the routing, and a cached one has them again. */
static const script_call_t *weigher(const script_truth_t *truth)
{
    return truth->script->mode->by_expert ? &truth->script->calls[truth->dispatch->origin] : truth->dispatch;
}

static void make_route(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    const script_truth_t *truth = truth_of(shape);
    for (uint32_t k = 0; k < truth->dispatch->topk; k++) {
        idx[k] = expert_of(truth, rank, token, k);
        if (truth->lost != NULL && idx[k] >= 0 && truth->lost[oracle_owner(&truth->routing, (uint32_t)idx[k])])
            idx[k] = -1;
        weights[k] = weight_of(truth->script, weigher(truth), OF_WEIGHT, rank, token, k);
    }
}

static void make_returned(const oracle_shape_t *shape, uint32_t from, uint32_t rank, uint64_t token, float *weights)
{
    const script_truth_t *truth = truth_of(shape);
    int anew = truth->combine->weights;
    for (uint32_t k = 0; k < truth->dispatch->topk; k++)
        weights[k] = anew ? weight_of(truth->script, truth->combine, OF_RETURNED, rank, token, from * UINT64_C(64) + k)
                          : weight_of(truth->script, weigher(truth), OF_WEIGHT, rank, token, k);
}

/* ---- contents ---- */

/* Of many magnitudes, some of them 0. */
static float ordinary(uint64_t h)
{
    return h % 37 == 0 ? 0 : (float)(((double)(h >> 40) * 0x1p-23 - 1) * (1 << h % 14) * 0x1p-7);
}

/* Any bits, NaN and Inf and denormals among them; or numbers, that are cast or summed. */
static void fill(const script_t *script, uint64_t key, int any_bits, xep_dtype_t dtype, uint32_t hidden, void *row)
{
    size_t bytes = oracle_element_bytes(dtype);
    float *values = any_bits ? NULL : malloc(hidden * sizeof *values);
    for (uint32_t i = 0; i < hidden; i++) {
        uint64_t h = (key + i) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
        if (any_bits) memcpy((char *)row + i * bytes, &h, bytes);
        else values[i] = script->integers ? (float)(h % 9) - 4 : ordinary(h);
    }
    if (!any_bits) oracle_row_round(row, values, dtype, hidden);
    free(values);
}

static void make_row(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *row)
{
    const script_truth_t *truth = truth_of(shape);
    uint64_t key = hash(truth->script, truth->dispatch, OF_ROW, rank, token, 0);
    int any_bits = !truth->script->integers && (shape->quant == XEP_QUANT_NONE || key % 3 == 0);
    fill(truth->script, key, any_bits, shape->dtype, shape->hidden, row);
}

static void make_scales(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *scales)
{
    const script_truth_t *truth = truth_of(shape);
    for (uint32_t s = 0; s < shape->nscales; s++)
        scales[s] = (uint32_t)hash(truth->script, truth->dispatch, OF_SCALE, rank, token, s);
}

static void fill_combined(const oracle_shape_t *shape, uint64_t key, void *row)
{
    const script_truth_t *truth = truth_of(shape);
    fill(truth->script, key, truth->combine->special && !truth->script->integers, shape->combine_dtype,
         truth->combine->hidden, row);
}

static void make_bias(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *row)
{
    const script_truth_t *truth = truth_of(shape);
    fill_combined(shape, hash(truth->script, truth->combine, OF_BIAS, rank, token, which), row);
}

static void make_output(const oracle_shape_t *shape, uint32_t from, uint32_t rank, uint64_t token, void *row)
{
    const script_truth_t *truth = truth_of(shape);
    fill_combined(shape, hash(truth->script, truth->combine, OF_OUTPUT, rank, token, from), row);
}

static const oracle_source_t source = {
    .route = make_route,
    .row = make_row,
    .scales = make_scales,
    .bias = make_bias,
    .output = make_output,
    .returned = make_returned,
};

/* ---- the shape ---- */

/* Where combine gives no weights: those of the dispatch, unless there are none or the receiver has applied them. */
static int is_unweighted(const script_truth_t *truth)
{
    const script_call_t *dispatch = truth->dispatch;
    if (truth->combine->weights) return 0;
    return dispatch->sent || !truth->script->calls[dispatch->origin].weights;
}

static void add_combine(script_truth_t *truth, uint32_t rank, const sim_options_t *options)
{
    const script_call_t *combine = truth->combine;
    truth->shape.hidden = combine->hidden;
    truth->shape.combine_dtype = combine->dtype;
    truth->shape.unweighted = is_unweighted(truth);
    truth->shape.sum_at_owner = combine->at_owner;
    truth->shape.combine_quant = combine->quant;
    truth->shape.combine_scale = script_quant_scale(combine);
    for (uint32_t r = 0; r < options->nranks; r++) truth->encoded_from[r] = options->node[r] != options->node[rank];
    truth->shape.encoded_from = truth->encoded_from;
}

void script_truth_make(script_truth_t *truth, const script_t *script, const script_call_t *dispatch,
                       const script_call_t *combine, uint32_t rank, const sim_options_t *options)
{
    *truth = (script_truth_t){.script = script, .dispatch = dispatch, .combine = combine};
    truth->routing.params = (oracle_routing_params_t){
        .nranks = script->shape.nranks,
        .experts = script->shape.experts,
        .topk = dispatch->topk,
        .tokens_of = dispatch->tokens,
    };
    truth->shape = (oracle_shape_t){
        .routing = &truth->routing,
        .source = &source,
        .source_arg = truth,
        .hidden = dispatch->hidden,
        .nscales = dispatch->nscales,
        .dtype = dispatch->dtype,
        .idx_dtype = dispatch->idx_dtype,
        .scales_dtype = dispatch->scales_dtype,
        .weights = script->mode->by_expert ? dispatch->sent : dispatch->weights,
        .by_expert = script->mode->by_expert,
        .padded = dispatch->arrangement[rank] == XEP_ROWS_BY_EXPERT_PADDED,
        .by_column = dispatch->by_column[rank],
        .room = script->shape.tokens,
        .quant = dispatch->quant,
        .quant_scale = script_quant_scale(dispatch),
        .alignment = dispatch->alignment[rank],
        .alignments = dispatch->alignment,
        .capacity = dispatch->capacity[rank],
    };
    if (combine != NULL) add_combine(truth, rank, options);
}

void script_truth_leave_out(script_truth_t *truth, const uint8_t *dispatch_out, const uint8_t *combine_out)
{
    truth->lost = combine_out;
    if (dispatch_out == NULL) return;
    for (uint32_t r = 0; r < truth->script->shape.nranks; r++)
        truth->tokens[r] = dispatch_out[r] ? 0 : truth->dispatch->tokens[r];
    truth->routing.params.tokens_of = truth->tokens;
}

uint64_t script_rows_needed(const script_t *script, const script_call_t *dispatch, uint32_t rank)
{
    script_truth_t truth;
    script_truth_make(&truth, script, dispatch, NULL, rank, NULL);
    return oracle_rows_needed(&truth.shape, rank);
}

uint64_t script_pieces(const script_t *script, const script_call_t *dispatch)
{
    script_truth_t truth;
    script_truth_make(&truth, script, dispatch, NULL, 0, NULL);
    return oracle_count_pieces(&truth.shape, script->slot_rows);
}
