/* SPDX-License-Identifier: BSD-3-Clause */

/* The oracle of the mode "ll": plain loops over all ranks, tokens and selections that say what a rank must see. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ll_script.h"
#include "logfmt.h"

static void fail(sim_rank_t *rank, const ll_call_t *call, const char *what, uint64_t a, uint64_t b)
{
    sim_fail(rank->world, "rank %u, call %u: %s (%llu, %llu)", rank->index, call->number, what, (unsigned long long)a,
             (unsigned long long)b);
}

static uint64_t align_up(uint64_t rows, uint64_t alignment)
{
    return alignment < 2 ? rows : (rows + alignment - 1) / alignment * alignment;
}

static int is_padded(const ll_call_t *call, uint32_t rank)
{
    return call->arrangement[rank] == XEP_ROWS_BY_EXPERT_PADDED;
}

uint64_t ll_needed(const ll_script_t *script, const ll_call_t *call, uint32_t rank)
{
    uint64_t sum = 0, most = 0;
    for (uint32_t e = ll_first_expert(script, rank); e < ll_first_expert(script, rank + 1); e++) {
        uint64_t rows = 0;
        for (uint32_t s = 0; s < script->shape.nranks; s++) rows += ll_count(script, call, s, e);
        sum += align_up(rows, call->alignment[rank]);
        if (rows > most) most = rows;
    }
    return is_padded(call, rank) ? most : sum;
}

/* ---- dispatch ---- */

static int64_t idx_at(const xep_recv_t *recv, uint64_t row)
{
    return recv->topk_idx_dtype == XEP_INT64 ? ((const int64_t *)recv->topk_idx)[row] : ((const int32_t *)recv->topk_idx)[row];
}

static void check_scales(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv, uint64_t row, const uint32_t *want)
{
    const ll_script_t *script = ll_script_of(rank);
    uint64_t of_expert = script->shape.nranks * script->shape.tokens, expert = 0;
    const char *scales = recv->scales;
    if (call->by_column[rank->index] && is_padded(call, rank->index)) expert = row / of_expert, row %= of_expert;
    scales += expert * of_expert * recv->nscales * 4;
    for (uint32_t s = 0; s < recv->nscales; s++) {
        const char *at = scales + (ptrdiff_t)row * recv->scales_token_stride + (ptrdiff_t)s * recv->scales_stride;
        if (memcmp(at, &want[s], 4)) fail(rank, call, "scale of row, number", row, s);
    }
}

static void check_payload(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv, uint32_t from, uint64_t token, uint64_t row)
{
    const ll_script_t *script = ll_script_of(rank);
    size_t bytes = call->hidden * script_bytes(call->dtype), got = call->quant ? call->hidden : bytes;
    char *x = malloc(bytes), *q = malloc(call->hidden);
    uint32_t *scales = malloc((call->nscales + call->hidden / 128 + 1) * sizeof *scales);
    ll_row(script, call, -1, from, token, x);
    if (call->quant) ll_cast(call, x, (uint8_t *)q, scales);
    else
        for (uint32_t s = 0; s < call->nscales; s++) scales[s] = ll_scale(script, call, from, token, s);
    if (memcmp(call->quant ? q : x, (char *)recv->x + row * recv->x_stride, got)) fail(rank, call, "bytes of row, token", row, token);
    check_scales(rank, call, recv, row, scales);
    free(x);
    free(q);
    free(scales);
}

static void check_row(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv, uint32_t from, uint64_t token, uint32_t k, uint64_t row)
{
    const ll_script_t *script = ll_script_of(rank);
    float weight = call->sent ? ll_weight(script, &script->calls[call->origin], from, token, k) : 1.0f;
    if (recv->src_token[row] != (int64_t)token) fail(rank, call, "source token of row", row, token);
    if (idx_at(recv, row) != ll_expert(script, call, from, token, k) - (int64_t)recv->first_expert) fail(rank, call, "index of row", row, 0);
    if (recv->topk_weights[row] != weight) fail(rank, call, "weight of row", row, 0);
    check_payload(rank, call, recv, from, token, row);
}

static uint64_t check_pair(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv, uint32_t e, uint32_t from, uint64_t row)
{
    const ll_script_t *script = ll_script_of(rank);
    uint64_t pair = (uint64_t)e * script->shape.nranks + from, begin = row;
    for (uint64_t t = 0; t < call->tokens[from]; t++)
        for (uint32_t k = 0; k < call->topk; k++)
            if (ll_expert(script, call, from, t, k) == (int64_t)(recv->first_expert + e)) check_row(rank, call, recv, from, t, k, row++);
    if (recv->pair_begin[pair] != begin || recv->pair_count[pair] != row - begin) fail(rank, call, "place of pair", pair, recv->pair_begin[pair]);
    return row;
}

static void check_rows(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv)
{
    const ll_script_t *script = ll_script_of(rank);
    int padded = is_padded(call, rank->index);
    uint64_t row = 0, received = 0;
    for (uint32_t e = 0; e < recv->local_experts; e++) {
        if (padded) row = e * script->shape.nranks * script->shape.tokens;
        uint64_t begin = row;
        for (uint32_t s = 0; s < script->shape.nranks; s++) row = check_pair(rank, call, recv, e, s, row);
        received += row - begin;
        if (recv->expert_begin[e] != begin || recv->expert_count[e] != row - begin) fail(rank, call, "place of expert", e, recv->expert_begin[e]);
        if (recv->expert_rows[e] != align_up(row - begin, call->alignment[rank->index])) fail(rank, call, "expert_rows", e, recv->expert_rows[e]);
        for (; !padded && row < begin + recv->expert_rows[e]; row++)
            if (idx_at(recv, row) != -1) fail(rank, call, "index of an unused row", row, 0);
    }
    if (recv->rows != (padded ? received : row)) fail(rank, call, "rows", recv->rows, row);
    for (; !padded && row < recv->capacity; row++)
        if (idx_at(recv, row) != -1) fail(rank, call, "index beyond the rows", row, 0);
}

static void check_fields(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv)
{
    const ll_script_t *script = ll_script_of(rank);
    int padded = is_padded(call, rank->index);
    size_t bytes = call->quant ? call->hidden : call->hidden * script_bytes(call->dtype);
    uint32_t first = ll_first_expert(script, rank->index), count = ll_first_expert(script, rank->index + 1) - first;
    uint64_t capacity = call->capacity[rank->index] ? call->capacity[rank->index] : recv->rows;
    uint32_t groups = (call->hidden + 127) / 128, nscales = call->quant == XEP_QUANT_UE8M0 ? (groups + 3) / 4 : call->quant ? groups : call->nscales;
    if (padded) capacity = (uint64_t)count * script->shape.nranks * script->shape.tokens;
    if (recv->size != sizeof *recv || recv->arrangement != (padded ? XEP_ROWS_BY_EXPERT_PADDED : XEP_ROWS_BY_EXPERT_COMPACT))
        fail(rank, call, "size, arrangement", recv->size, recv->arrangement);
    if (recv->capacity != capacity) fail(rank, call, "capacity", recv->capacity, capacity);
    if (recv->x_stride != (bytes + 63) / 64 * 64 || (uintptr_t)recv->x % 64) fail(rank, call, "x_stride", recv->x_stride, bytes);
    if (recv->dtype != (call->quant ? XEP_E4M3 : call->dtype) || recv->hidden != call->hidden) fail(rank, call, "dtype", recv->dtype, recv->hidden);
    if (recv->topk != 1 || recv->topk_idx_dtype != call->idx_dtype) fail(rank, call, "topk", recv->topk, recv->topk_idx_dtype);
    if (recv->nscales != nscales || !recv->scales != !nscales || recv->quant != call->quant) fail(rank, call, "nscales", recv->nscales, nscales);
    uint64_t column = padded ? script->shape.nranks * script->shape.tokens : capacity;
    if (nscales && call->by_column[rank->index] && (recv->scales_token_stride != 4 || recv->scales_stride != (ptrdiff_t)column * 4))
        fail(rank, call, "scales by column", (uint64_t)recv->scales_token_stride, (uint64_t)recv->scales_stride);
    if (recv->first_expert != first || recv->local_experts != count) fail(rank, call, "local experts", recv->first_expert, recv->local_experts);
}

void ll_check_recv(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv)
{
    check_fields(rank, call, recv);
    if (rank->world->failure[0] == 0) check_rows(rank, call, recv);
}

/* ---- combine ---- */

static float sum_weight(const ll_script_t *script, const ll_call_t *call, const ll_call_t *dispatch, uint32_t rank, uint64_t token, uint32_t k)
{
    if (call->weights) return ll_weight(script, call, rank, token, k);
    if (dispatch->sent || !script->calls[dispatch->origin].weights) return 1.0f;
    return ll_weight(script, &script->calls[dispatch->origin], rank, token, k);
}

/* what the codec, which has a test of its own, makes of a row */
static void through_logfmt(void *row, uint32_t hidden)
{
    void *coded = malloc(xep_logfmt_room(hidden) + 4);
    xep_logfmt_encode(coded, row, hidden);
    xep_logfmt_decode(row, coded, hidden);
    free(coded);
}

static void sum_token(const sim_rank_t *rank, const ll_flight_t *flight, const ll_call_t *dispatch, uint64_t token, void *row, void *want)
{
    const ll_script_t *script = ll_script_of(rank);
    const ll_call_t *call = flight->call;
    float *sums = calloc(call->hidden, sizeof *sums);
    for (int b = 0; b < 2; b++) {
        if (!flight->combine.bias[b]) continue;
        ll_row(script, call, -2 - b, rank->index, token, row);
        for (uint32_t i = 0; i < call->hidden; i++) sums[i] += (float)script_value(call->dtype, row, i);
    }
    for (uint32_t k = 0; k < dispatch->topk; k++) {
        int64_t expert = ll_expert(script, dispatch, rank->index, token, k);
        float weight = sum_weight(script, call, dispatch, rank->index, token, k);
        if (expert < 0) continue;
        int maps = rank->index == ll_owner(script, expert) || rank->world->options.maps[rank->index][ll_owner(script, expert)];
        ll_row(script, call, expert, rank->index, token, row);
        if (call->logfmt && !maps) through_logfmt(row, call->hidden);
        for (uint32_t i = 0; i < call->hidden; i++) sums[i] = fmaf(weight, (float)script_value(call->dtype, row, i), sums[i]);
    }
    for (uint32_t i = 0; i < call->hidden; i++) script_round(call->dtype, sums[i], want, i);
    free(sums);
}

static int is_poison(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)data[i] != 0xa5) return 0;
    return 1;
}

static void check_margins(sim_rank_t *rank, const ll_flight_t *flight, size_t row, uint64_t rows)
{
    const script_memory_t *memory = &flight->out;
    size_t stride = flight->combine.out_stride, before = (size_t)(memory->data - memory->allocated);
    size_t used = rows ? (rows - 1) * stride + row : 0;
    int good = is_poison(memory->allocated, before) && is_poison(memory->data + used, memory->bytes - before - used);
    for (uint64_t r = 0; r + 1 < rows; r++) good &= is_poison(memory->data + r * stride + row, stride - row);
    if (!good) fail(rank, flight->call, "bytes written beside an output of rows, stride", rows, stride);
}

void ll_check_combined(sim_rank_t *rank, const ll_flight_t *flight, const ll_call_t *dispatch)
{
    const ll_call_t *call = flight->call;
    size_t bytes = call->hidden * script_bytes(call->dtype);
    char *row = malloc(bytes), *want = malloc(bytes), *result = ll_player_of(rank)->result;
    for (uint64_t t = 0; t < dispatch->tokens[rank->index]; t++) {
        const char *got = flight->out.data + t * flight->combine.out_stride;
        sum_token(rank, flight, dispatch, t, row, want);
        if (memcmp(want, got, bytes)) fail(rank, call, "sum of token", t, 0);
        if (result) memcpy(result + t * bytes, got, bytes);
    }
    check_margins(rank, flight, bytes, dispatch->tokens[rank->index]);
    free(row);
    free(want);
}
