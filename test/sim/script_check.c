/* SPDX-License-Identifier: BSD-3-Clause */

/* The oracle: plain loops over all ranks and tokens that say what a rank must see. */
#include <stdlib.h>
#include <string.h>

#include "script.h"

static void fail(sim_rank_t *rank, const script_call_t *call, const char *what, uint64_t a, uint64_t b)
{
    sim_fail(rank->world, "rank %u, call %u: %s (%llu, %llu)", rank->index, call->number, what, (unsigned long long)a,
             (unsigned long long)b);
}

/* ---- dispatch ---- */

static int64_t idx_at(const xep_recv_t *recv, uint64_t row, uint32_t k)
{
    uint64_t at = row * recv->topk + k;
    return recv->topk_idx_dtype == XEP_INT64 ? ((const int64_t *)recv->topk_idx)[at] : ((const int32_t *)recv->topk_idx)[at];
}

static void check_metadata(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv, uint32_t from,
                           uint64_t token, uint64_t row)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    if (recv->src_token[row] != (int64_t)token) fail(rank, call, "source token of row", row, token);
    for (uint32_t k = 0; k < call->topk; k++) {
        int64_t expert = script_expert(script, call, from, token, k), want = -1;
        float weight = 0;
        if (expert >= 0 && script_owner(script, expert) == rank->index) {
            want = expert - script_first_expert(script, rank->index);
            weight = script_weight(script, call, FROM_SOURCE, from, token, k);
        }
        if (idx_at(recv, row, k) != want) fail(rank, call, "index of row, selection", row, k);
        if (call->weights && memcmp(&recv->topk_weights[row * call->topk + k], &weight, sizeof weight))
            fail(rank, call, "weight of row, selection", row, k);
    }
    for (uint32_t s = 0; s < call->nscales; s++) {
        uint32_t scale = script_scale(script, call, from, token, s);
        if (memcmp((char *)recv->scales + (row * call->nscales + s) * 4, &scale, 4))
            fail(rank, call, "scale of row, number", row, s);
    }
}

static void check_rows(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    size_t bytes = call->hidden * script_bytes(call->dtype);
    char *want = malloc(bytes);
    uint64_t row = 0;
    for (uint32_t from = 0; from < script->shape.nranks; from++) {
        if (recv->src_begin[from] != row) fail(rank, call, "first row of source", from, recv->src_begin[from]);
        for (uint64_t t = 0; t < call->tokens[from]; t++) {
            if (!script_goes(script, call, from, t, rank->index)) continue;
            if (row >= recv->rows) break;
            script_row(script, call, FROM_SOURCE, from, t, want);
            if (memcmp(want, (char *)recv->x + row * recv->x_stride, bytes)) fail(rank, call, "bytes of row, token", row, t);
            check_metadata(rank, call, recv, from, t, row++);
        }
    }
    if (row != recv->rows || recv->src_begin[script->shape.nranks] != row) fail(rank, call, "rows", recv->rows, row);
    for (; row < recv->capacity; row++)
        for (uint32_t k = 0; k < call->topk; k++)
            if (idx_at(recv, row, k) != -1) fail(rank, call, "index beyond the rows", row, k);
    free(want);
}

static void check_counts(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    uint32_t nranks = script->shape.nranks;
    for (uint32_t i = 0; i < nranks * nranks; i++)
        if (recv->rank_rows[i] != script_rows_to(script, call, i / nranks, i % nranks)) fail(rank, call, "rank_rows", i, recv->rank_rows[i]);
    for (uint32_t e = 0; e < recv->local_experts; e++) {
        uint64_t count = 0, alignment = call->alignment ? call->alignment : 1;
        for (uint32_t r = 0; r < nranks; r++)
            for (uint64_t t = 0; t < call->tokens[r]; t++)
                for (uint32_t k = 0; k < call->topk; k++)
                    count += script_expert(script, call, r, t, k) == (int64_t)(recv->first_expert + e);
        if (recv->expert_rows[e] != (count + alignment - 1) / alignment * alignment) fail(rank, call, "expert_rows", e, recv->expert_rows[e]);
    }
}

static void check_fields(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    size_t bytes = call->hidden * script_bytes(call->dtype), stride = bytes % 64 ? bytes + 64 - bytes % 64 : bytes;
    uint64_t capacity = call->capacity[rank->index];
    uint32_t first = script_first_expert(script, rank->index);
    int weights = call->weights, tokens = 0;
    for (uint32_t r = 0; r < script->shape.nranks; r++) tokens |= call->tokens[r] != 0;
    if (recv->size != sizeof *recv || recv->arrangement != XEP_ROWS_BY_RANK) fail(rank, call, "size, arrangement", recv->size, recv->arrangement);
    if (recv->capacity != (capacity ? capacity : recv->rows)) fail(rank, call, "capacity", recv->capacity, capacity);
    if (recv->x_stride != stride) fail(rank, call, "x_stride", recv->x_stride, stride);
    if ((uintptr_t)recv->x % 64) fail(rank, call, "alignment of x", (uintptr_t)recv->x, 64);
    if (recv->dtype != call->dtype || recv->hidden != call->hidden) fail(rank, call, "dtype, hidden", recv->dtype, recv->hidden);
    if (recv->topk != call->topk || recv->topk_idx_dtype != call->idx_dtype) fail(rank, call, "topk", recv->topk, recv->topk_idx_dtype);
    if (recv->nscales != call->nscales || !recv->scales != !call->nscales) fail(rank, call, "nscales", recv->nscales, call->nscales);
    if (call->nscales && recv->scales_dtype != call->scales_dtype) fail(rank, call, "scales_dtype", recv->scales_dtype, call->scales_dtype);
    if (tokens && !recv->topk_weights != !weights) fail(rank, call, "whether there are weights", recv->topk_weights != NULL, (uint64_t)weights);
    if (recv->first_expert != first || recv->local_experts != script_first_expert(script, rank->index + 1) - first)
        fail(rank, call, "local experts", recv->first_expert, recv->local_experts);
}

void script_check_recv(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv)
{
    check_fields(rank, call, recv);
    if (rank->world->failure[0]) return;
    check_counts(rank, call, recv);
    check_rows(rank, call, recv);
}

/* ---- combine ---- */

static void sum_row(const script_t *script, const script_flight_t *flight, const script_call_t *dispatch, uint32_t rank,
                    uint64_t token, void *row, void *want)
{
    const script_call_t *call = flight->call;
    float sums[8192] = {0};
    for (uint32_t b = 0; b < 2; b++) {
        if (!flight->combine.bias[b]) continue;
        script_row(script, call, FROM_BIAS + b, rank, token, row);
        for (uint32_t i = 0; i < call->hidden; i++) sums[i] += (float)script_value(call->dtype, row, i);
    }
    for (uint32_t from = 0; from < script->shape.nranks; from++) {
        if (!script_goes(script, dispatch, rank, token, from)) continue;
        script_row(script, call, from, rank, token, row);
        for (uint32_t i = 0; i < call->hidden; i++) sums[i] += (float)script_value(call->dtype, row, i);
    }
    for (uint32_t i = 0; i < call->hidden; i++) script_round(call->dtype, sums[i], want, i);
}

static int is_poison(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)data[i] != 0xa5) return 0;
    return 1;
}

/* Margins, and gaps between rows, must be as they were. */
static void check_margins(sim_rank_t *rank, const script_call_t *call, const script_memory_t *memory, size_t row,
                          size_t stride, uint64_t rows)
{
    size_t before = (size_t)(memory->data - memory->allocated), used = rows ? (rows - 1) * stride + row : 0;
    int good = is_poison(memory->allocated, before) && is_poison(memory->data + used, memory->bytes - before - used);
    for (uint64_t r = 0; r + 1 < rows; r++) good &= is_poison(memory->data + r * stride + row, stride - row);
    if (!good) fail(rank, call, "bytes written beside an output of rows, stride", rows, stride);
}

static void check_weights(sim_rank_t *rank, const script_flight_t *flight, const script_call_t *dispatch)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    const script_call_t *call = flight->call;
    for (uint64_t t = 0; t < dispatch->tokens[rank->index]; t++)
        for (uint32_t k = 0; k < dispatch->topk; k++) {
            float sum = 0;
            for (uint32_t from = 0; from < script->shape.nranks; from++)
                if (script_goes(script, dispatch, rank->index, t, from))
                    sum += script_weight(script, call, from, rank->index, t, k);
            if (memcmp(flight->out_weights.data + t * flight->combine.out_weights_stride + k * sizeof sum, &sum, sizeof sum))
                fail(rank, call, "combined weight of token, selection", t, k);
        }
    check_margins(rank, call, &flight->out_weights, dispatch->topk * sizeof(float), flight->combine.out_weights_stride,
                  dispatch->tokens[rank->index]);
}

void script_check_combined(sim_rank_t *rank, const script_flight_t *flight, const script_call_t *dispatch)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    const script_call_t *call = flight->call;
    size_t bytes = call->hidden * script_bytes(call->dtype);
    char *row = malloc(bytes), *want = malloc(bytes);
    for (uint64_t t = 0; t < dispatch->tokens[rank->index]; t++) {
        sum_row(script, flight, dispatch, rank->index, t, row, want);
        if (memcmp(want, flight->out.data + t * flight->combine.out_stride, bytes)) fail(rank, call, "sum of token", t, 0);
    }
    check_margins(rank, call, &flight->out, bytes, flight->combine.out_stride, dispatch->tokens[rank->index]);
    if (flight->combine.out_weights) check_weights(rank, flight, dispatch);
    free(row);
    free(want);
}

static int64_t product(const script_call_t *a, const void *x, const script_call_t *b, const void *y)
{
    double sum = 0;
    for (uint32_t i = 0; i < a->hidden; i++) sum += script_value(a->dtype, x, i) * script_value(b->dtype, y, i);
    return (int64_t)sum;
}

int64_t script_pairing(sim_rank_t *rank, const script_flight_t *flight, const script_handle_t *handle)
{
    const script_t *script = ((script_player_t *)rank->driver)->script;
    const script_call_t *call = flight->call, *dispatch = handle->call;
    const xep_recv_t *recv = &handle->recv;
    char *row = malloc(call->hidden * sizeof(double));
    int64_t sum = 0;
    for (uint32_t from = 0; from < script->shape.nranks; from++)
        for (uint64_t i = recv->src_begin[from]; i < recv->src_begin[from + 1]; i++) {
            script_row(script, call, rank->index, from, (uint64_t)recv->src_token[i], row);
            sum += product(dispatch, (char *)recv->x + i * recv->x_stride, call, row);
        }
    for (uint64_t t = 0; t < dispatch->tokens[rank->index]; t++) {
        script_row(script, dispatch, FROM_SOURCE, rank->index, t, row);
        sum -= product(dispatch, row, call, flight->out.data + t * flight->combine.out_stride);
    }
    free(row);
    return sum;
}
