/* SPDX-License-Identifier: BSD-3-Clause */

/* The user's memory of one call of the mode "ll": inputs of exact length and odd strides, outputs between margins. */
#include <stdlib.h>
#include <string.h>

#include "ll_script.h"

enum { MARGIN = 128 };

static uint64_t checksum(const script_memory_t *memory)
{
    uint64_t sum = memory->bytes;
    for (size_t i = 0; i < memory->bytes; i++) sum = (sum ^ (unsigned char)memory->data[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* Memory for rows a stride apart, not longer than the last row, not more aligned than it must be. */
static char *input_make(sim_rank_t *rank, ll_flight_t *flight, uint64_t rows, size_t row, size_t align, size_t *stride_p)
{
    script_memory_t *memory = &flight->inputs[flight->ninputs++];
    size_t skew = sim_below(rank->world, 3) * align;
    *stride_p = row + sim_below(rank->world, 3) * align;
    memory->bytes = rows ? (rows - 1) * *stride_p + row : 0;
    memory->allocated = calloc(1, memory->bytes + skew + 1);
    memory->data = memory->allocated + skew;
    return rows ? memory->data : NULL;
}

static void output_make(sim_rank_t *rank, ll_flight_t *flight, uint64_t rows, size_t row, size_t align)
{
    script_memory_t *memory = &flight->out;
    size_t skew = sim_chance(rank->world, 50) ? 0 : sim_below(rank->world, 3) * align, stride = row + sim_below(rank->world, 3) * align;
    void *allocated;
    memory->bytes = 2 * MARGIN + skew + (rows ? (rows - 1) * stride + row : 0);
    if (posix_memalign(&allocated, 64, memory->bytes) != 0) abort();
    memory->allocated = allocated;
    memory->data = memory->allocated + MARGIN + skew;
    memset(memory->allocated, 0xa5, memory->bytes);
    flight->combine.out = memory->data;
    flight->combine.out_stride = stride;
}

static void seal(ll_flight_t *flight)
{
    for (uint32_t i = 0; i < flight->ninputs; i++) flight->inputs[i].checksum = checksum(&flight->inputs[i]);
}

void ll_flight_free(sim_rank_t *rank, ll_flight_t *flight)
{
    for (uint32_t i = 0; i < flight->ninputs; i++) {
        if (checksum(&flight->inputs[i]) != flight->inputs[i].checksum)
            sim_fail(rank->world, "rank %u, call %u: input %u was changed", rank->index, flight->call->number, i);
        free(flight->inputs[i].allocated);
    }
    free(flight->out.allocated);
    free(flight->stats);
    free(flight->op.state);
    free(flight);
}

/* ---- dispatch ---- */

static void idx_make(sim_rank_t *rank, ll_flight_t *flight, uint64_t tokens)
{
    xep_dispatch_args_t *args = &flight->dispatch;
    size_t bytes = args->topk_idx_dtype == XEP_INT64 ? 8 : 4;
    char *idx = input_make(rank, flight, tokens, args->topk * bytes, bytes, &args->topk_idx_stride);
    args->topk_idx = idx;
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < args->topk; k++) {
            int64_t expert = ll_expert(ll_script_of(rank), flight->call, rank->index, t, k);
            int32_t narrow = (int32_t)expert;
            memcpy(idx + t * args->topk_idx_stride + k * bytes, bytes == 8 ? (void *)&expert : (void *)&narrow, bytes);
        }
}

static const float *weights_make(sim_rank_t *rank, ll_flight_t *flight, uint64_t tokens, uint32_t topk, size_t *stride_p)
{
    char *weights = input_make(rank, flight, tokens, topk * sizeof(float), sizeof(float), stride_p);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < topk; k++) {
            float weight = ll_weight(ll_script_of(rank), flight->call, rank->index, t, k);
            memcpy(weights + t * *stride_p + k * sizeof weight, &weight, sizeof weight);
        }
    return (const float *)(const void *)weights;
}

static void scales_make(sim_rank_t *rank, ll_flight_t *flight, uint64_t tokens)
{
    xep_dispatch_args_t *args = &flight->dispatch;
    size_t stride, n = args->nscales;
    char *scales = input_make(rank, flight, tokens, n * 4, 4, &stride);
    int backwards = sim_chance(rank->world, 30);
    args->scales_token_stride = (ptrdiff_t)stride;
    args->scales_stride = backwards ? -4 : 4;
    if (scales && backwards) scales += (n - 1) * 4;
    args->scales = scales;
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t s = 0; s < n; s++) {
            uint32_t scale = ll_scale(ll_script_of(rank), flight->call, rank->index, t, s);
            memcpy(scales + (ptrdiff_t)t * args->scales_token_stride + (ptrdiff_t)s * args->scales_stride, &scale, 4);
        }
}

/* The odd rank says something else than the call. */
static void spoil(sim_rank_t *rank, const ll_call_t *call, xep_dispatch_args_t *args)
{
    if (call->odd == LL_ODD_NONE || call->odd_rank != rank->index) return;
    if (call->odd == LL_ODD_DTYPE) args->dtype = call->dtype == XEP_BF16 ? XEP_FP16 : XEP_BF16;
    if (call->odd == LL_ODD_HIDDEN) args->hidden--;
    if (call->odd == LL_ODD_TOPK) args->topk--;
    if (call->odd == LL_ODD_QUANT) args->quant = call->quant == XEP_QUANT_E4M3 ? XEP_QUANT_UE8M0 : XEP_QUANT_E4M3;
    if (call->odd == LL_ODD_SCALES) args->nscales--;
    if (call->odd == LL_ODD_SENT) args->flags ^= XEP_DISPATCH_SEND_WEIGHTS;
}

static void stats_make(sim_rank_t *rank, ll_flight_t *flight)
{
    uint32_t experts = rank->shape.local_experts;
    flight->stats = calloc(experts + 1, sizeof *flight->stats);
    for (uint32_t e = 0; e <= experts; e++) flight->stats[e] = (int32_t)(1000 + e);
    if (experts && sim_chance(rank->world, 70)) flight->dispatch.expert_stats = flight->stats;
}

void ll_flight_dispatch(sim_rank_t *rank, ll_flight_t *flight)
{
    const ll_call_t *call = flight->call;
    uint32_t me = rank->index, alignment = call->alignment[me];
    uint64_t tokens = call->tokens[me];
    size_t elem = script_bytes(call->dtype), bytes = call->hidden * elem;
    xep_dispatch_args_t *args = &flight->dispatch;
    *args = (xep_dispatch_args_t){.size = sizeof *args, .tokens = tokens, .dtype = call->dtype, .hidden = call->hidden, .topk = call->topk,
                                  .topk_idx_dtype = call->idx_dtype, .nscales = call->nscales, .scales_dtype = call->scales_dtype,
                                  .expert_alignment = alignment ? alignment : 1, .capacity = call->capacity[me], .quant = call->quant,
                                  .arrangement = call->arrangement[me], .recv_rows_p = &flight->rows};
    args->flags = (call->by_column[me] ? XEP_DISPATCH_SCALES_BY_COLUMN : 0u) | (call->sent ? XEP_DISPATCH_SEND_WEIGHTS : 0u);
    spoil(rank, call, args);
    char *x = input_make(rank, flight, tokens, bytes, elem, &args->x_stride);
    args->x = x;
    for (uint64_t t = 0; t < tokens; t++) ll_row(ll_script_of(rank), call, -1, me, t, x + t * args->x_stride);
    if (flight->op.cached_slot == XEP_NO_SLOT) {
        idx_make(rank, flight, tokens);
        if (call->weights) args->topk_weights = weights_make(rank, flight, tokens, args->topk, &args->topk_weights_stride);
    }
    if (args->nscales) scales_make(rank, flight, tokens);
    stats_make(rank, flight);
    seal(flight);
}

/* ---- combine ---- */

/* Expert outputs for all rows received, where the received views say the rows are. */
static void outputs_fill(sim_rank_t *rank, const ll_flight_t *flight, const ll_handle_t *handle, char *x, size_t stride)
{
    const ll_script_t *script = ll_script_of(rank);
    const xep_recv_t *recv = &handle->recv;
    uint32_t nranks = script->shape.nranks;
    for (uint32_t pair = 0; pair < recv->local_experts * nranks; pair++)
        for (uint64_t i = 0; i < recv->pair_count[pair]; i++) {
            uint64_t row = recv->pair_begin[pair] + i;
            ll_row(script, flight->call, (int64_t)recv->first_expert + pair / nranks, pair % nranks, (uint64_t)recv->src_token[row], x + row * stride);
        }
}

static void biases_make(sim_rank_t *rank, ll_flight_t *flight, uint64_t tokens, size_t bytes, size_t align)
{
    for (int b = 0; b < 2; b++) {
        if (ll_script_of(rank)->global_tokens || sim_chance(rank->world, 60)) continue;
        char *bias = input_make(rank, flight, tokens, bytes, align, &flight->combine.bias_stride[b]);
        for (uint64_t t = 0; t < tokens; t++) ll_row(ll_script_of(rank), flight->call, -2 - b, rank->index, t, bias + t * flight->combine.bias_stride[b]);
        flight->combine.bias[b] = bias;
    }
}

void ll_flight_combine(sim_rank_t *rank, ll_flight_t *flight, const ll_handle_t *handle, void *input, size_t stride)
{
    const ll_call_t *call = flight->call;
    size_t align = script_bytes(call->dtype), bytes = call->hidden * align;
    int padded = handle->recv.arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    uint64_t rows = padded ? handle->recv.capacity : handle->recv.rows, tokens = handle->call->tokens[rank->index];
    xep_combine_args_t *args = &flight->combine;
    *args = (xep_combine_args_t){.size = sizeof *args, .dtype = call->dtype, .hidden = call->hidden, .flags = call->logfmt ? XEP_COMBINE_LOGFMT : 0u};
    if (input) {
        outputs_fill(rank, flight, handle, input, stride);
    } else {
        char *x = input_make(rank, flight, rows, bytes, align, &args->x_stride);
        outputs_fill(rank, flight, handle, x, args->x_stride);
        args->x = x;
    }
    if (call->weights) args->weights = weights_make(rank, flight, tokens, handle->call->topk, &args->weights_stride);
    biases_make(rank, flight, tokens, bytes, align);
    output_make(rank, flight, tokens, bytes, align);
    if (call->odd_rank == rank->index && call->odd == LL_ODD_DTYPE) args->dtype = call->dtype == XEP_BF16 ? XEP_FP16 : XEP_BF16;
    if (call->odd_rank == rank->index && call->odd == LL_ODD_HIDDEN) args->hidden--;
    seal(flight);
}
