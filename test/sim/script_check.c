/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_check.h"

#include <stdlib.h>

#include "oracle_check.h"
#include "script_truth.h"
#include "sim_mode.h"

static void fail(sim_rank_t *rank, const script_call_t *call, const char *what, uint64_t got, uint64_t expected)
{
    sim_fail(rank->world, "rank %u, call %u: %s %llu, expected %llu", rank->index, call->number, what,
             (unsigned long long)got, (unsigned long long)expected);
}

static void report(sim_rank_t *rank, const script_call_t *call, int differs, const oracle_difference_t *difference)
{
    char text[256];
    if (!differs) return;
    oracle_difference_text(difference, text, sizeof text);
    sim_fail(rank->world, "call %u: %s", call->number, text);
}

/* ---- dispatch ---- */

/* Those that came are compared; no others are shown, not even those of an earlier handle. */
static void check_pointers(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv)
{
    uint64_t shown = 0, came = recv->expert_count == NULL ? recv->rows : 0;
    if (recv->row == NULL) return;
    for (uint64_t i = 0; i < recv->capacity; i++) shown += recv->row[i] != NULL;
    for (uint32_t e = 0; recv->expert_count != NULL && e < recv->local_experts; e++) came += recv->expert_count[e];
    if (shown != came) fail(rank, call, "rows that are shown are", shown, came);
}

void script_check_recv(sim_rank_t *rank, const script_t *script, const script_call_t *call, const xep_recv_t *recv,
                       const uint8_t *out)
{
    script_truth_t truth;
    oracle_difference_t difference;
    if (recv->size != sizeof *recv) fail(rank, call, "size of recv is", recv->size, sizeof *recv);
    if ((uintptr_t)recv->x % 64) fail(rank, call, "x is not aligned:", (uintptr_t)recv->x % 64, 0);
    script_truth_make(&truth, script, call, NULL, rank->index, NULL);
    script_truth_leave_out(&truth, out, NULL);
    report(rank, call, oracle_check_recv(&truth.shape, rank->index, recv, &difference), &difference);
    check_pointers(rank, call, recv);
}

void script_check_piece(sim_rank_t *rank, const script_t *script, const script_call_t *call, const xep_recv_t *recv,
                        oracle_pieces_t *pieces)
{
    script_truth_t truth;
    oracle_difference_t difference;
    if (recv->pieces != call->rest + 1) fail(rank, call, "pieces are", recv->pieces, call->rest + 1);
    script_truth_make(&truth, script, call, NULL, rank->index, NULL);
    report(rank, call, oracle_pieces_take(pieces, &truth.shape, rank->index, script->slot_rows, recv, &difference),
           &difference);
}

/* Of several pieces, all together: the first shows no more than itself. */
static void check_all_stats(sim_rank_t *rank, const script_flight_t *flight)
{
    script_truth_t truth;
    uint64_t rows = 0;
    for (uint32_t e = 0; e < rank->shape.local_experts; e++) rows += (uint64_t)flight->stats[e] - 1000 - e;
    script_truth_make(&truth, flight->script, flight->call, NULL, rank->index, NULL);
    truth.shape.alignment = 1;
    uint64_t expected = flight->dispatch_args.expert_stats != NULL ? oracle_rows_needed(&truth.shape, rank->index) : 0;
    if (rows != expected) fail(rank, flight->call, "statistics of all experts are", rows, expected);
}

void script_check_no_stats(sim_rank_t *rank, const script_flight_t *flight)
{
    for (uint32_t e = 0; e <= rank->shape.local_experts; e++)
        if (flight->stats[e] != (int32_t)(1000 + e))
            fail(rank, flight->call, "statistics of what failed are", (uint64_t)flight->stats[e], 1000 + e);
}

static void check_stats(sim_rank_t *rank, const script_flight_t *flight)
{
    const xep_recv_t *recv = flight->op.recv;
    if (flight->call->rest != 0 && flight->call->expect == XEP_OK) {
        check_all_stats(rank, flight);
        return;
    }
    for (uint32_t e = 0; e <= rank->shape.local_experts; e++) {
        int counted = flight->call->expect == XEP_OK && flight->dispatch_args.expert_stats != NULL;
        uint64_t rows = counted && e < rank->shape.local_experts ? recv->expert_count[e] : 0;
        if ((uint64_t)flight->stats[e] != 1000 + e + rows)
            fail(rank, flight->call, "statistics of an expert are", (uint64_t)flight->stats[e], 1000 + e + rows);
    }
}

void script_check_dispatch(sim_rank_t *rank, const script_flight_t *flight)
{
    const script_call_t *call = flight->call;
    const xep_recv_t *recv = flight->op.recv;
    const int whole = call->rest == 0;
    if (call->expect == XEP_OK && whole) script_check_recv(rank, flight->script, call, recv, flight->op.out);
    check_stats(rank, flight);
    if (call->expect == XEP_ERR_MISMATCH) return;
    uint64_t all = call->expect == XEP_OK ? recv->all_rows : recv->rows;
    if (flight->op.out == NULL && flight->rows != all) fail(rank, call, "recv_rows_p says", flight->rows, all);
    if (whole && call->expect == XEP_OK && (recv->pieces != 1 || recv->piece != 0 || recv->first_row != 0))
        fail(rank, call, "pieces of one are", recv->pieces, 1);
    if (call->expect == XEP_OK || call->arrangement[rank->index] == XEP_ROWS_BY_EXPERT_PADDED) return;
    uint64_t rows = script_rows_needed(flight->script, call, rank->index);
    if (recv->rows != rows) fail(rank, call, "rows after an overflow are", recv->rows, rows);
}

/* ---- combine ---- */

/* The selections of experts whose rank the combine is without, and no other. */
static void check_missing(sim_rank_t *rank, const script_flight_t *flight, const script_truth_t *truth)
{
    const xep_combine_args_t *args = &flight->combine_args;
    uint32_t topk = flight->dispatch->topk;
    int32_t *experts = malloc(topk * sizeof *experts);
    float *weights = malloc(topk * sizeof *weights);
    for (uint64_t t = 0; args->missing != NULL && t < flight->dispatch->tokens[rank->index]; t++) {
        oracle_route_token(&truth->shape, rank->index, t, experts, weights);
        for (uint32_t k = 0; k < topk; k++) {
            uint8_t told = args->missing[t * args->missing_stride + k];
            int is_lost = experts[k] >= 0 && flight->op.out != NULL &&
                          flight->op.out[oracle_owner(&truth->routing, (uint32_t)experts[k])];
            if (told != is_lost) fail(rank, flight->call, "missing says", told, (uint64_t)is_lost);
        }
    }
    free(weights);
    free(experts);
}

void script_check_combine(sim_rank_t *rank, const script_flight_t *flight)
{
    const xep_combine_args_t *args = &flight->combine_args;
    const script_call_t *call = flight->call, *dispatch = flight->dispatch;
    unsigned biases = (args->bias[0] != NULL) | (args->bias[1] != NULL) << 1;
    uint64_t tokens = dispatch->tokens[rank->index];
    oracle_difference_t difference;
    script_truth_t truth;
    script_truth_make(&truth, flight->script, dispatch, call, rank->index, &rank->world->options);
    if (rank->shape.by_nodes) truth.shape.node = rank->shape.node;
    check_missing(rank, flight, &truth);
    script_truth_leave_out(&truth, flight->dispatch_out, flight->op.out);
    report(rank, call,
           oracle_check_combine(&truth.shape, rank->index, biases, args->out, args->out_stride, &difference),
           &difference);
    script_flight_check_margins(rank, flight, &flight->out, call->hidden * oracle_element_bytes(call->dtype),
                                args->out_stride, tokens);
    if (args->out_weights == NULL) return;
    report(rank, call,
           oracle_check_weights(&truth.shape, rank->index, args->out_weights, args->out_weights_stride, &difference),
           &difference);
    script_flight_check_margins(rank, flight, &flight->out_weights, dispatch->topk * sizeof(float),
                                args->out_weights_stride, tokens);
}

static int64_t product(xep_dtype_t a_dtype, const void *a, xep_dtype_t b_dtype, const void *b, uint32_t hidden)
{
    double sum = 0;
    for (uint32_t h = 0; h < hidden; h++)
        sum += (double)oracle_element(a, a_dtype, h) * (double)oracle_element(b, b_dtype, h);
    return (int64_t)sum;
}

int64_t script_check_pairing(const sim_rank_t *rank, const script_flight_t *flight)
{
    const script_call_t *call = flight->call, *dispatch = flight->dispatch;
    const xep_recv_t *recv = flight->op.recv;
    char *row = malloc(call->hidden * sizeof(double));
    script_truth_t sent, returned;
    int64_t sum = 0;
    script_truth_make(&sent, flight->script, dispatch, NULL, rank->index, NULL);
    script_truth_make(&returned, flight->script, dispatch, call, rank->index, &rank->world->options);
    for (uint32_t from = 0; from < rank->shape.nranks; from++)
        for (uint64_t i = recv->src_begin[from]; i < recv->src_begin[from + 1]; i++) {
            oracle_fill_output(&returned.shape, rank->index, from, (uint64_t)recv->src_token[i], row);
            sum += product(dispatch->dtype, oracle_row_at(recv, i), call->dtype, row, call->hidden);
        }
    for (uint64_t t = 0; t < dispatch->tokens[rank->index]; t++) {
        const char *out = (const char *)flight->combine_args.out + t * flight->combine_args.out_stride;
        oracle_fill_row(&sent.shape, rank->index, t, row);
        sum -= product(dispatch->dtype, row, call->dtype, out, call->hidden);
    }
    free(row);
    return sum;
}
