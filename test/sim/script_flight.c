/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_flight.h"

#include <stdlib.h>
#include <string.h>

#include "script_truth.h"
#include "sim_mode.h"

static char *make_input(sim_rank_t *rank, script_flight_t *flight, uint64_t rows, size_t row, size_t align,
                        size_t *stride_p)
{
    return script_memory_make_input(&flight->inputs[flight->ninputs++], rank, rows, row, align, stride_p);
}

void script_flight_check_margins(sim_rank_t *rank, const script_flight_t *flight, const script_memory_t *memory,
                                 size_t row, size_t stride, uint64_t rows)
{
    if (!script_memory_has_margins(memory, row, stride, rows))
        sim_fail(rank->world, "rank %u, call %u: bytes written beside an output", rank->index, flight->call->number);
}

static void seal_inputs(script_flight_t *flight)
{
    for (uint32_t i = 0; i < flight->ninputs; i++)
        flight->inputs[i].checksum = script_memory_checksum(&flight->inputs[i]);
}

/* ---- rows that come while an operation goes on, as those of device memory do ---- */

/* The next ones that are coming, of the first input: as they are, or poison. */
static void set_rows(script_flight_t *flight, uint64_t begin, uint64_t rows, int are_there)
{
    for (uint64_t row = begin; row < begin + rows; row++) {
        const size_t at = row * flight->held_stride;
        if (are_there) memcpy(flight->inputs[0].data + at, flight->held + at, flight->held_row);
        else memset(flight->inputs[0].data + at, SCRIPT_POISON, flight->held_row);
    }
}

/*
 * Of rows that are the first input some are there when the operation begins. A mode that reads others sends poison. Not
 * for what device memory does not have: ranks that all map one another, masks, pieces, rows in place.
 */
static void hold_rows(sim_rank_t *rank, script_flight_t *flight, const void *x, size_t row, size_t stride,
                      uint64_t rows)
{
    const script_call_t *dispatch = flight->dispatch;
    if (!rank->world->plugin->begins_early || rank->shape.nodes == 1 || rank->world->around != NULL) return;
    if (x == NULL || rows == 0 || dispatch->in_place || dispatch->in_pieces || sim_chance(&rank->dice, 50)) return;
    flight->held = malloc(flight->inputs[0].bytes);
    if (flight->held == NULL) abort();
    memcpy(flight->held, flight->inputs[0].data, flight->inputs[0].bytes);
    flight->held_row = row;
    flight->held_stride = stride;
    flight->op.coming = 1 + sim_below(&rank->dice, (uint32_t)rows);
    set_rows(flight, rows - flight->op.coming, flight->op.coming, 0);
}

static uint64_t held_rows(const script_flight_t *flight)
{
    return flight->call->kind == CALL_DISPATCH ? flight->dispatch_args.tokens : flight->op.recv->rows;
}

void script_flight_bring(sim_rank_t *rank, script_flight_t *flight)
{
    if (flight->op.coming == 0 || sim_chance(&rank->dice, 60)) return;
    const uint64_t come = 1 + sim_below(&rank->dice, (uint32_t)flight->op.coming);
    set_rows(flight, held_rows(flight) - flight->op.coming, come, 1);
    flight->op.coming -= come;
}

void script_flight_free(sim_rank_t *rank, script_flight_t *flight)
{
    if (flight->held != NULL) memcpy(flight->inputs[0].data, flight->held, flight->inputs[0].bytes);
    free(flight->held);
    for (uint32_t i = 0; i < flight->ninputs; i++) {
        if (script_memory_checksum(&flight->inputs[i]) != flight->inputs[i].checksum)
            sim_fail(rank->world, "rank %u, call %u: input %u was changed", rank->index, flight->call->number, i);
        free(flight->inputs[i].allocated);
    }
    free(flight->out.allocated);
    free(flight->out_weights.allocated);
    free(flight->missing.allocated);
    free(flight->stats);
    free(flight->op.state);
    free(flight);
}

static script_flight_t *make_flight(sim_rank_t *rank, const script_t *script, const script_call_t *call,
                                    const script_call_t *dispatch, uint32_t slot, xep_recv_t *recv)
{
    script_flight_t *flight = calloc(1, sizeof *flight);
    flight->script = script;
    flight->call = call;
    flight->dispatch = dispatch;
    flight->op = (xep_op_t){
        .kind = call->kind == CALL_DISPATCH  ? XEP_OP_DISPATCH
                : call->kind == CALL_COMBINE ? XEP_OP_COMBINE
                                             : XEP_OP_NEXT,
        .slot = slot,
        .cached_slot = XEP_NO_SLOT,
        .epoch = call->epoch,
        .refused = script_is_odd(call, rank->index, ODD_REFUSED),
        .turn = call->kind == CALL_NEXT ? call->turn : dispatch->turn,
        .recv = recv,
        .state = calloc(1, rank->world->plugin->state_bytes),
        .late = sim_late(&flight->waits),
        .with = rank->everybody,
        .heard = rank->everybody,
    };
    return flight;
}

static uint64_t tokens_of(const sim_rank_t *rank, const script_flight_t *flight)
{
    return flight->dispatch->tokens[rank->index];
}

/* ---- dispatch ---- */

/* The odd rank says something else than the call. */
static void spoil_dispatch(uint32_t rank, const script_call_t *call, xep_dispatch_args_t *args)
{
    if (script_is_odd(call, rank, ODD_DTYPE)) args->dtype = call->dtype == XEP_BF16 ? XEP_FP16 : XEP_BF16;
    if (script_is_odd(call, rank, ODD_HIDDEN)) args->hidden--;
    if (script_is_odd(call, rank, ODD_TOPK)) args->topk--;
    if (script_is_odd(call, rank, ODD_SCALES)) args->nscales--;
    if (script_is_odd(call, rank, ODD_SCALES_DTYPE))
        args->scales_dtype = call->scales_dtype == XEP_FP32 ? XEP_INT32 : XEP_FP32;
    if (script_is_odd(call, rank, ODD_IDX_DTYPE))
        args->topk_idx_dtype = call->idx_dtype == XEP_INT64 ? XEP_INT32 : XEP_INT64;
    if (script_is_odd(call, rank, ODD_QUANT))
        args->quant = call->quant == XEP_QUANT_E4M3 ? XEP_QUANT_UE8M0 : XEP_QUANT_E4M3;
    if (script_is_odd(call, rank, ODD_SENT)) args->flags ^= XEP_DISPATCH_SEND_WEIGHTS;
    if (script_is_odd(call, rank, ODD_IN_PLACE)) args->flags ^= XEP_DISPATCH_IN_PLACE;
    if (script_is_odd(call, rank, ODD_PIECES)) args->flags ^= XEP_DISPATCH_PIECES;
}

/* Rows, indices and weights of all tokens. by expert a cached dispatch has the weights of its routing. */
static void make_tokens(sim_rank_t *rank, script_flight_t *flight, const oracle_shape_t *shape)
{
    xep_dispatch_args_t *args = &flight->dispatch_args;
    const script_call_t *call = flight->call;
    int cached = flight->op.cached_slot != XEP_NO_SLOT;
    int weighs = call->weights != script_is_odd(call, rank->index, ODD_WEIGHTS) && !(cached && shape->by_expert);
    size_t elem = oracle_element_bytes(call->dtype), wide = args->topk_idx_dtype == XEP_INT64 ? 8 : 4;
    uint64_t tokens = tokens_of(rank, flight);
    int32_t *experts = malloc(call->topk * sizeof *experts);
    float *of_token = malloc(call->topk * sizeof *of_token);
    char *x = make_input(rank, flight, tokens, call->hidden * elem, elem, &args->x_stride), *idx = NULL,
         *weights = NULL;
    if (!cached) idx = make_input(rank, flight, tokens, args->topk * wide, wide, &args->topk_idx_stride);
    if (weighs) weights = make_input(rank, flight, tokens, args->topk * sizeof(float), 4, &args->topk_weights_stride);
    args->x = x;
    args->topk_idx = idx;
    args->topk_weights = (float *)(void *)weights;
    for (uint64_t t = 0; t < tokens; t++) {
        oracle_fill_row(shape, rank->index, t, x + t * args->x_stride);
        oracle_route_token(shape, rank->index, t, experts, of_token);
        for (uint32_t k = 0; k < args->topk && idx != NULL; k++) {
            int64_t expert = experts[k];
            memcpy(idx + t * args->topk_idx_stride + k * wide, wide == 8 ? (void *)&expert : (void *)&experts[k], wide);
        }
        if (weights != NULL) memcpy(weights + t * args->topk_weights_stride, of_token, args->topk * sizeof *of_token);
    }
    free(experts);
    free(of_token);
}

/* Token-major, channel-major, or channels backwards. */
static void make_scales(sim_rank_t *rank, script_flight_t *flight, const oracle_shape_t *shape)
{
    xep_dispatch_args_t *args = &flight->dispatch_args;
    uint64_t tokens = tokens_of(rank, flight);
    size_t stride, kind = sim_below(&rank->dice, 3), n = args->nscales;
    uint32_t *of_token = malloc(shape->nscales * sizeof *of_token);
    char *scales = make_input(rank, flight, tokens, n * 4, 4, &stride);
    args->scales_token_stride = kind == 1 ? 4 : (ptrdiff_t)stride;
    args->scales_stride = kind == 0 ? 4 : kind == 1 ? (ptrdiff_t)tokens * 4 : -4;
    if (scales != NULL && kind == 2) scales += (n - 1) * 4;
    args->scales = scales;
    for (uint64_t t = 0; t < tokens; t++) {
        oracle_fill_scales(shape, rank->index, t, of_token);
        for (size_t s = 0; s < n; s++)
            memcpy(scales + (ptrdiff_t)t * args->scales_token_stride + (ptrdiff_t)s * args->scales_stride, &of_token[s],
                   4);
    }
    free(of_token);
}

static void make_stats(sim_rank_t *rank, script_flight_t *flight)
{
    uint32_t experts = rank->shape.local_experts;
    flight->stats = calloc(experts + 1, sizeof *flight->stats);
    for (uint32_t e = 0; e <= experts; e++) flight->stats[e] = (int32_t)(1000 + e);
    if (flight->script->mode->by_expert && experts && sim_chance(&rank->dice, 70))
        flight->dispatch_args.expert_stats = flight->stats;
}

script_flight_t *script_flight_dispatch(sim_rank_t *rank, const script_t *script, const script_call_t *call,
                                        uint32_t slot, uint32_t cached_slot, xep_recv_t *recv)
{
    uint32_t me = rank->index;
    script_flight_t *flight = make_flight(rank, script, call, call, slot, recv);
    xep_dispatch_args_t *args = &flight->dispatch_args;
    script_truth_t truth;
    script_truth_make(&truth, script, call, NULL, me, NULL);
    *args = (xep_dispatch_args_t){
        .size = sizeof *args,
        .tokens = call->tokens[me],
        .dtype = call->dtype,
        .hidden = call->hidden,
        .topk = call->topk,
        .topk_idx_dtype = call->idx_dtype,
        .nscales = call->nscales,
        .scales_dtype = call->scales_dtype,
        .expert_alignment = call->alignment[me] ? call->alignment[me] : 1,
        .capacity = call->capacity[me],
        .recv_rows_p = &flight->rows,
        .quant = call->quant,
        .quant_scale = script_quant_scale(call),
        .arrangement = call->arrangement[me],
        .flags = (call->by_column[me] ? XEP_DISPATCH_SCALES_BY_COLUMN : 0u) |
                 (call->sent ? XEP_DISPATCH_SEND_WEIGHTS : 0u) | (call->in_place ? XEP_DISPATCH_IN_PLACE : 0u) |
                 (call->in_pieces ? XEP_DISPATCH_PIECES : 0u),
    };
    spoil_dispatch(me, call, args);
    flight->op.dispatch = args;
    flight->op.cached_slot = cached_slot;
    make_tokens(rank, flight, &truth.shape);
    if (args->nscales) make_scales(rank, flight, &truth.shape);
    make_stats(rank, flight);
    seal_inputs(flight);
    hold_rows(rank, flight, args->x, args->hidden * oracle_element_bytes(args->dtype), args->x_stride, args->tokens);
    return flight;
}

/* ---- combine ---- */

/*
 * By rank: weights of all rows received go back, the sums come for all tokens sent; of a piece not yet. Those of a
 * piece often lie where they came, as those of users do.
 */
static void make_returned(sim_rank_t *rank, script_flight_t *flight, const oracle_shape_t *shape, uint64_t rows)
{
    xep_combine_args_t *args = &flight->combine_args;
    const xep_recv_t *recv = flight->op.recv;
    size_t bytes = flight->dispatch->topk * sizeof(float);
    const int came = flight->call->kind == CALL_NEXT && recv->topk_weights != NULL && sim_chance(&rank->dice, 60);
    char *weights;
    if (came) weights = (char *)recv->topk_weights;
    else weights = make_input(rank, flight, rows, bytes, sizeof(float), &args->topk_weights_stride);
    if (came) args->topk_weights_stride = bytes;
    args->topk_weights = (float *)(void *)weights;
    for (uint32_t from = 0; from < shape->routing->params.nranks; from++)
        for (uint64_t row = recv->src_begin[from]; row < recv->src_begin[from + 1]; row++)
            oracle_fill_returned(shape, rank->index, from, (uint64_t)recv->src_token[row],
                                 (float *)(void *)(weights + row * args->topk_weights_stride));
    if (flight->call->kind == CALL_NEXT) return;
    script_memory_make_output(&flight->out_weights, rank, tokens_of(rank, flight), bytes, sizeof(float),
                              &args->out_weights_stride);
    if (tokens_of(rank, flight)) args->out_weights = (float *)(void *)flight->out_weights.data;
}

/* By expert: weights of all tokens sent. */
static void make_weights(sim_rank_t *rank, script_flight_t *flight, const oracle_shape_t *shape)
{
    xep_combine_args_t *args = &flight->combine_args;
    uint64_t tokens = tokens_of(rank, flight);
    char *weights =
        make_input(rank, flight, tokens, flight->dispatch->topk * sizeof(float), sizeof(float), &args->weights_stride);
    args->weights = (float *)(void *)weights;
    for (uint64_t t = 0; t < tokens; t++)
        oracle_fill_returned(shape, rank->index, rank->index, t, (float *)(void *)(weights + t * args->weights_stride));
}

static void make_biases(sim_rank_t *rank, script_flight_t *flight, const oracle_shape_t *shape, size_t bytes,
                        size_t align)
{
    for (uint32_t b = 0; b < 2; b++) {
        xep_combine_args_t *args = &flight->combine_args;
        if (flight->script->integers || flight->script->global_tokens || sim_chance(&rank->dice, 60)) continue;
        char *bias = make_input(rank, flight, tokens_of(rank, flight), bytes, align, &args->bias_stride[b]);
        for (uint64_t t = 0; t < tokens_of(rank, flight); t++)
            oracle_fill_bias(shape, b, rank->index, t, bias + t * args->bias_stride[b]);
        args->bias[b] = bias;
    }
}

/* Expert outputs for all rows received, where the received views say the rows are. */
static void make_outputs(sim_rank_t *rank, script_flight_t *flight, const oracle_shape_t *shape, void *input,
                         size_t stride)
{
    xep_combine_args_t *args = &flight->combine_args;
    const xep_recv_t *recv = flight->op.recv;
    size_t align = oracle_element_bytes(args->dtype);
    uint64_t rows = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED ? recv->capacity : recv->rows;
    if (input == NULL) args->x = make_input(rank, flight, rows, args->hidden * align, align, &args->x_stride);
    oracle_fill_outputs(shape, rank->index, recv, input != NULL ? input : (void *)(uintptr_t)args->x,
                        input != NULL ? stride : args->x_stride);
}

static void spoil_combine(uint32_t rank, const script_call_t *call, xep_combine_args_t *args)
{
    if (script_is_odd(call, rank, ODD_DTYPE)) args->dtype = call->dtype == XEP_BF16 ? XEP_FP16 : XEP_BF16;
    if (script_is_odd(call, rank, ODD_HIDDEN)) args->hidden--;
    if (script_is_odd(call, rank, ODD_AT_OWNER)) args->flags ^= XEP_COMBINE_SUM_AT_OWNER;
    if (script_is_odd(call, rank, ODD_QUANT)) args->quant = XEP_QUANT_NONE;
}

script_flight_t *script_flight_combine(sim_rank_t *rank, const script_t *script, const script_call_t *call,
                                       const script_call_t *dispatch, uint32_t slot, xep_recv_t *recv, void *input,
                                       size_t stride)
{
    script_flight_t *flight = make_flight(rank, script, call, dispatch, slot, recv);
    xep_combine_args_t *args = &flight->combine_args;
    size_t align = oracle_element_bytes(call->dtype), bytes = call->hidden * align;
    script_truth_t truth;
    script_truth_make(&truth, script, dispatch, call, rank->index, &rank->world->options);
    *args = (xep_combine_args_t){
        .size = sizeof *args,
        .dtype = call->dtype,
        .hidden = call->hidden,
        .flags = call->at_owner ? XEP_COMBINE_SUM_AT_OWNER : 0u,
        .quant = call->quant,
        .quant_scale = script_quant_scale(call),
    };
    flight->op.combine = args;
    make_outputs(rank, flight, &truth.shape, input, stride);
    if (script->mode->by_expert) {
        if (call->weights) make_weights(rank, flight, &truth.shape);
    } else if (call->weights != script_is_odd(call, rank->index, ODD_WEIGHTS)) {
        make_returned(rank, flight, &truth.shape, recv->rows);
    }
    make_biases(rank, flight, &truth.shape, bytes, align);
    script_memory_make_output(&flight->out, rank, dispatch->tokens[rank->index], bytes, align, &args->out_stride);
    args->out = flight->out.data;
    if (rank->world->around != NULL) {
        script_memory_make_output(&flight->missing, rank, dispatch->tokens[rank->index], dispatch->topk, 1,
                                  &args->missing_stride);
        args->missing = (uint8_t *)flight->missing.data;
    }
    spoil_combine(rank->index, call, args);
    seal_inputs(flight);
    if (recv->arrangement != XEP_ROWS_BY_EXPERT_PADDED)
        hold_rows(rank, flight, args->x, bytes, args->x_stride, recv->rows);
    return flight;
}

/* What a combine of this piece alone would be given. */
script_flight_t *script_flight_next(sim_rank_t *rank, const script_call_t *call, const script_flight_t *sent,
                                    uint32_t slot, xep_recv_t *recv, void *input, size_t stride)
{
    const script_t *script = sent->script;
    script_flight_t *flight = make_flight(rank, script, call, sent->dispatch, slot, recv);
    script_truth_t truth;
    flight->op.dispatch = &sent->dispatch_args;
    if (!call->kept) return flight;
    script_truth_make(&truth, script, sent->dispatch, call, rank->index, &rank->world->options);
    flight->combine_args =
        (xep_combine_args_t){.size = sizeof flight->combine_args, .dtype = call->dtype, .hidden = call->hidden};
    flight->op.combine = &flight->combine_args;
    make_outputs(rank, flight, &truth.shape, input, stride);
    if (call->weights && !script->mode->by_expert) make_returned(rank, flight, &truth.shape, recv->rows);
    spoil_combine(rank->index, call, &flight->combine_args);
    seal_inputs(flight);
    return flight;
}
