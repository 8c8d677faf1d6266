/* SPDX-License-Identifier: BSD-3-Clause */

/* The user's memory of one call: inputs of exact length and odd strides, outputs between margins. */
#include <stdlib.h>
#include <string.h>

#include "script.h"

enum { MARGIN = 128 };

static uint64_t checksum(const script_memory_t *memory)
{
    uint64_t sum = memory->bytes;
    for (size_t i = 0; i < memory->bytes; i++) sum = (sum ^ (unsigned char)memory->data[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* Memory for rows a stride apart, not longer than the last row, not more aligned than it must be. */
static char *input_make(sim_rank_t *rank, script_flight_t *flight, uint64_t rows, size_t row, size_t align, size_t *stride_p)
{
    script_memory_t *memory = &flight->inputs[flight->ninputs++];
    size_t skew = sim_below(rank->world, 3) * align;
    *stride_p = row + sim_below(rank->world, 3) * align;
    memory->bytes = rows ? (rows - 1) * *stride_p + row : 0;
    memory->allocated = calloc(1, memory->bytes + skew + 1);
    memory->data = memory->allocated + skew;
    return rows ? memory->data : NULL;
}

static void output_make(sim_rank_t *rank, script_memory_t *memory, uint64_t rows, size_t row, size_t align, size_t *stride_p)
{
    size_t skew = sim_chance(rank->world, 50) ? 0 : sim_below(rank->world, 3) * align;
    void *allocated;
    *stride_p = row + sim_below(rank->world, 3) * align;
    memory->bytes = 2 * MARGIN + skew + (rows ? (rows - 1) * *stride_p + row : 0);
    if (posix_memalign(&allocated, 64, memory->bytes) != 0) abort();
    memory->allocated = allocated;
    memory->data = memory->allocated + MARGIN + skew;
    memset(memory->allocated, 0xa5, memory->bytes);
}

static void inputs_seal(script_flight_t *flight)
{
    for (uint32_t i = 0; i < flight->ninputs; i++) flight->inputs[i].checksum = checksum(&flight->inputs[i]);
}

static void memory_free(script_memory_t *memory)
{
    free(memory->allocated);
    *memory = (script_memory_t){0};
}

void script_flight_free(sim_rank_t *rank, script_flight_t *flight)
{
    for (uint32_t i = 0; i < flight->ninputs; i++) {
        if (checksum(&flight->inputs[i]) != flight->inputs[i].checksum)
            sim_fail(rank->world, "rank %u, call %u: input %u was changed", rank->index, flight->call->number, i);
        memory_free(&flight->inputs[i]);
    }
    memory_free(&flight->out);
    memory_free(&flight->out_weights);
    free(flight->op.state);
    free(flight);
}

/* ---- dispatch ---- */

static void idx_make(sim_rank_t *rank, script_flight_t *flight, uint64_t tokens)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    xep_dispatch_args_t *args = &flight->dispatch;
    size_t bytes = args->topk_idx_dtype == XEP_INT64 ? 8 : 4;
    char *idx = input_make(rank, flight, tokens, args->topk * bytes, bytes, &args->topk_idx_stride);
    args->topk_idx = idx;
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < args->topk; k++) {
            int64_t expert = script_expert(script, flight->call, rank->index, t, k);
            int32_t narrow = (int32_t)expert;
            memcpy(idx + t * args->topk_idx_stride + k * bytes, bytes == 8 ? (void *)&expert : (void *)&narrow, bytes);
        }
}

static void weights_make(sim_rank_t *rank, script_flight_t *flight, uint64_t tokens)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    xep_dispatch_args_t *args = &flight->dispatch;
    char *weights = input_make(rank, flight, tokens, args->topk * sizeof(float), sizeof(float), &args->topk_weights_stride);
    args->topk_weights = (float *)weights;
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < args->topk; k++) {
            float weight = script_weight(script, flight->call, FROM_SOURCE, rank->index, t, k);
            memcpy(weights + t * args->topk_weights_stride + k * sizeof weight, &weight, sizeof weight);
        }
}

/* Token-major, channel-major, or channels backwards. */
static void scales_make(sim_rank_t *rank, script_flight_t *flight, uint64_t tokens)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    xep_dispatch_args_t *args = &flight->dispatch;
    size_t stride, kind = sim_below(rank->world, 3), n = args->nscales;
    char *scales = input_make(rank, flight, tokens, n * 4, 4, &stride);
    args->scales_token_stride = kind == 1 ? 4 : (ptrdiff_t)stride;
    args->scales_stride = kind == 0 ? 4 : kind == 1 ? (ptrdiff_t)tokens * 4 : -4;
    if (scales && kind == 2) scales += (n - 1) * 4;
    args->scales = scales;
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t s = 0; s < n; s++) {
            uint32_t scale = script_scale(script, flight->call, rank->index, t, s);
            memcpy(scales + (ptrdiff_t)t * args->scales_token_stride + (ptrdiff_t)s * args->scales_stride, &scale, 4);
        }
}

/* The odd rank says something else than the call. */
static void dispatch_spoil(sim_rank_t *rank, const script_call_t *call, xep_dispatch_args_t *args, int *weights)
{
    if (call->odd == ODD_NONE || call->odd_rank != rank->index) return;
    if (call->odd == ODD_DTYPE) args->dtype = call->dtype == XEP_BF16 ? XEP_FP16 : XEP_BF16;
    if (call->odd == ODD_HIDDEN) args->hidden--;
    if (call->odd == ODD_TOPK) args->topk--;
    if (call->odd == ODD_IDX_DTYPE) args->topk_idx_dtype = call->idx_dtype == XEP_INT64 ? XEP_INT32 : XEP_INT64;
    if (call->odd == ODD_SCALES) args->nscales--;
    if (call->odd == ODD_SCALES_DTYPE) args->scales_dtype = call->scales_dtype == XEP_FP32 ? XEP_INT32 : XEP_FP32;
    if (call->odd == ODD_WEIGHTS) *weights = !*weights;
}

void script_flight_dispatch(sim_rank_t *rank, script_flight_t *flight)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    const script_call_t *call = flight->call;
    uint64_t tokens = call->tokens[rank->index];
    size_t bytes = call->hidden * script_bytes(call->dtype);
    int weights = call->weights;

    flight->dispatch = (xep_dispatch_args_t){
        .size = sizeof(xep_dispatch_args_t),
        .tokens = tokens,
        .dtype = call->dtype,
        .hidden = call->hidden,
        .topk = call->topk,
        .topk_idx_dtype = call->idx_dtype,
        .nscales = call->nscales,
        .scales_dtype = call->scales_dtype,
        .expert_alignment = call->alignment,
        .capacity = call->capacity[rank->index],
    };
    dispatch_spoil(rank, call, &flight->dispatch, &weights);
    char *x = input_make(rank, flight, tokens, bytes, script_bytes(call->dtype), &flight->dispatch.x_stride);
    flight->dispatch.x = x;
    for (uint64_t t = 0; t < tokens; t++)
        script_row(script, call, FROM_SOURCE, rank->index, t, x + t * flight->dispatch.x_stride);
    if (flight->op.cached_slot == XEP_NO_SLOT) idx_make(rank, flight, tokens);
    if (weights) weights_make(rank, flight, tokens);
    if (flight->dispatch.nscales) scales_make(rank, flight, tokens);
    inputs_seal(flight);
}

/* ---- combine ---- */

static void outputs_fill(sim_rank_t *rank, const script_flight_t *flight, const script_call_t *dispatch, char *x, size_t stride)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    uint64_t row = 0;
    for (uint32_t from = 0; from < script->shape.nranks; from++)
        for (uint64_t t = 0; t < dispatch->tokens[from]; t++)
            if (script_goes(script, dispatch, from, t, rank->index))
                script_row(script, flight->call, rank->index, from, t, x + row++ * stride);
}

static void outputs_weigh(sim_rank_t *rank, script_flight_t *flight, const script_call_t *dispatch, uint64_t rows)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    xep_combine_args_t *args = &flight->combine;
    size_t bytes = dispatch->topk * sizeof(float);
    char *weights = input_make(rank, flight, rows, bytes, sizeof(float), &args->topk_weights_stride);
    uint64_t row = 0;
    args->topk_weights = (float *)weights;
    for (uint32_t from = 0; from < script->shape.nranks; from++)
        for (uint64_t t = 0; t < dispatch->tokens[from]; t++) {
            if (!script_goes(script, dispatch, from, t, rank->index)) continue;
            for (uint32_t k = 0; k < dispatch->topk; k++) {
                float weight = script_weight(script, flight->call, rank->index, from, t, k);
                memcpy(weights + row * args->topk_weights_stride + k * sizeof weight, &weight, sizeof weight);
            }
            row++;
        }
    output_make(rank, &flight->out_weights, dispatch->tokens[rank->index], bytes, sizeof(float), &args->out_weights_stride);
    if (dispatch->tokens[rank->index]) args->out_weights = (float *)flight->out_weights.data;
}

static void biases_make(sim_rank_t *rank, script_flight_t *flight, uint64_t tokens, size_t bytes, size_t align)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    for (uint32_t b = 0; b < 2; b++) {
        if (script->integers || sim_chance(rank->world, 60)) continue;
        char *bias = input_make(rank, flight, tokens, bytes, align, &flight->combine.bias_stride[b]);
        for (uint64_t t = 0; t < tokens; t++)
            script_row(script, flight->call, FROM_BIAS + b, rank->index, t, bias + t * flight->combine.bias_stride[b]);
        flight->combine.bias[b] = bias;
    }
}

void script_flight_combine(sim_rank_t *rank, script_flight_t *flight, const script_call_t *dispatch, void *input, size_t stride)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    const script_call_t *call = flight->call;
    size_t align = script_bytes(call->dtype), bytes = call->hidden * align;
    uint64_t rows = flight->op.recv->rows, tokens = dispatch->tokens[rank->index], truth = 0;
    xep_combine_args_t *args = &flight->combine;
    for (uint32_t r = 0; r < rank->shape.nranks; r++) truth += script_rows_to(script, dispatch, r, rank->index);
    if (rows < truth) rows = truth; /* peers may have lied */

    *args = (xep_combine_args_t){.size = sizeof *args, .dtype = call->dtype, .hidden = call->hidden};
    if (input) {
        outputs_fill(rank, flight, dispatch, input, stride);
    } else {
        char *x = input_make(rank, flight, rows, bytes, align, &args->x_stride);
        outputs_fill(rank, flight, dispatch, x, args->x_stride);
        args->x = rows ? x : NULL;
    }
    if (call->weights != (call->odd == ODD_WEIGHTS && call->odd_rank == rank->index)) outputs_weigh(rank, flight, dispatch, rows);
    biases_make(rank, flight, tokens, bytes, align);
    output_make(rank, &flight->out, tokens, bytes, align, &args->out_stride);
    args->out = flight->out.data;
    if (call->odd_rank == rank->index && call->odd == ODD_DTYPE) args->dtype = call->dtype == XEP_BF16 ? XEP_FP16 : XEP_BF16;
    if (call->odd_rank == rank->index && call->odd == ODD_HIDDEN) args->hidden--;
    inputs_seal(flight);
}
