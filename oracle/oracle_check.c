/* SPDX-License-Identifier: BSD-3-Clause */

/* Counts are compared before rows: after a wrong count the differences between rows explain nothing. */
#include "oracle_check.h"

#include <stdlib.h>

#include "oracle_alloc.h"
#include "oracle_cast.h"
#include "oracle_number.h"
#include "oracle_payloads.h"

static int has(const oracle_shape_t *shape, uint32_t rank, uint32_t expert)
{
    if (shape->instances != NULL) return (int)(shape->instances[expert] >> rank & 1);
    return oracle_owner(shape->routing, expert) == rank;
}

/*
 * Allocates scratch memory for one row. difference is the caller's; it is emptied and names this rank. recv may be NULL
 * if tokens are only counted.
 */
void oracle_check_open(oracle_check_t *check, const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                       oracle_difference_t *difference)
{
    const uint32_t topk = shape->routing->params.topk;

    *difference = (oracle_difference_t){.rank = rank};
    *check = (oracle_check_t){
        .shape = shape,
        .recv = recv,
        .rank = rank,
        .nranks = shape->routing->params.nranks,
        .difference = difference,
        .idx = oracle_alloc(topk * sizeof *check->idx),
        .weights = oracle_alloc(topk * sizeof *check->weights),
        .sent = oracle_alloc(shape->hidden * oracle_element_bytes(shape->dtype)),
        .cast = oracle_alloc(oracle_received_bytes(shape)),
        .scales = oracle_alloc(oracle_received_scales(shape) * UINT64_C(8)),
        .local = oracle_alloc(shape->routing->params.experts * sizeof *check->local),
    };
    for (uint32_t expert = 0; expert < shape->routing->params.experts; expert++)
        check->local[expert] = has(shape, rank, expert) ? (int32_t)check->experts++ : -1;
}

void oracle_check_close(oracle_check_t *check)
{
    free(check->idx);
    free(check->weights);
    free(check->sent);
    free(check->cast);
    free(check->scales);
    free(check->local);
}

/*
 * Visits all tokens of all ranks in the order in which rows arrive, so that visitors need only count. Returns at the
 * first difference.
 */
int oracle_check_each(oracle_check_t *check,
                      int (*visit)(oracle_check_t *check, void *arg, uint32_t src, uint64_t token), void *arg)
{
    const oracle_routing_t *routing = check->shape->routing;

    for (uint32_t src = 0; src < check->nranks; src++)
        for (uint64_t token = 0; token < routing->params.tokens_of[src]; token++) {
            oracle_route_token(check->shape, src, token, check->idx, check->weights);
            if (visit(check, arg, src, token)) return 1;
        }
    return 0;
}

int32_t oracle_check_local(const oracle_check_t *check, int32_t expert)
{
    return expert >= 0 ? check->local[expert] : -1;
}

/* An alignment of 0 means none. */
uint64_t oracle_check_align(const oracle_check_t *check, uint64_t rows)
{
    const uint64_t alignment = check->shape->alignment != 0 ? check->shape->alignment : 1;

    return (rows + alignment - 1) / alignment * alignment;
}

int oracle_check_number(const oracle_check_t *check, const char *array, uint64_t row, uint64_t column,
                        uint64_t expected, uint64_t got)
{
    return oracle_differ_number(check->difference, array, row, column, (int64_t)expected, (int64_t)got);
}

/* Rows are dense if they are multiples of 64 bytes; a row that is read in place has its own address. */
static uint64_t stride_of(const oracle_shape_t *shape, const xep_recv_t *recv)
{
    return recv->row != NULL ? 0 : (oracle_received_bytes(shape) + 63) / 64 * 64;
}

/* Whose rows these are: the numbers of this rank's experts, ascending. */
static int check_experts(const oracle_check_t *check)
{
    const xep_recv_t *recv = check->recv;

    for (uint32_t expert = 0; expert < check->shape->routing->params.experts; expert++) {
        const int32_t local = check->local[expert];
        if (local == 0 && oracle_check_number(check, "first_expert", 0, 0, expert, recv->first_expert)) return 1;
        if (local >= 0 && oracle_check_number(check, "experts", (uint64_t)local, 0, expert, recv->experts[local]))
            return 1;
    }
    return 0;
}

/* The fields that say how to read the arrays come first: rows compared in a wrong form would explain nothing. */
int oracle_check_form(const oracle_check_t *check, xep_rows_t arrangement, uint32_t topk)
{
    const oracle_shape_t *shape = check->shape;
    const xep_recv_t *recv = check->recv;
    const uint32_t nscales = oracle_received_scales(shape);
    const xep_dtype_t scales_dtype = oracle_received_scales_dtype(shape);

    return oracle_check_number(check, "arrangement", 0, 0, arrangement, recv->arrangement) ||
           oracle_check_number(check, "dtype", 0, 0, oracle_received_dtype(shape), recv->dtype) ||
           oracle_check_number(check, "hidden", 0, 0, oracle_received_hidden(shape), recv->hidden) ||
           oracle_check_number(check, "x_stride", 0, 0, stride_of(shape, recv), recv->x_stride) ||
           oracle_check_number(check, "topk", 0, 0, topk, recv->topk) ||
           oracle_check_number(check, "topk_idx_dtype", 0, 0, shape->idx_dtype, recv->topk_idx_dtype) ||
           oracle_check_number(check, "quant", 0, 0, shape->quant, recv->quant) ||
           oracle_check_number(check, "nscales", 0, 0, nscales, recv->scales != NULL ? recv->nscales : 0) ||
           (nscales != 0 && oracle_check_number(check, "scales_dtype", 0, 0, scales_dtype, recv->scales_dtype)) ||
           oracle_check_number(check, "local_experts", 0, 0, check->experts, recv->local_experts) ||
           check_experts(check);
}

const void *oracle_row_at(const xep_recv_t *recv, uint64_t row)
{
    return recv->row != NULL ? recv->row[row] : (const char *)recv->x + row * recv->x_stride;
}

/* A weight is compared as a row of one element, so its column is set afterwards. */
int oracle_check_selection(const oracle_check_t *check, uint64_t row, uint32_t k, int64_t expert, float weight)
{
    const xep_recv_t *recv = check->recv;

    if (oracle_differ_number(check->difference, "topk_idx", row, k, expert, oracle_idx_at(recv, row, k))) return 1;
    if (recv->topk_weights == NULL || !oracle_differ_row(check->difference, "topk_weights", row, XEP_FP32, 1, &weight,
                                                         recv->topk_weights + row * recv->topk + k))
        return 0;
    check->difference->column = k;
    return 1;
}

/*
 * Compares scales one by one, as those of a row need not be adjacent. Padded and by column, each expert has its own
 * block for R * room rows; else the strides say everything.
 */
static int check_scales(const oracle_check_t *check, uint64_t row)
{
    const oracle_shape_t *shape = check->shape;
    const xep_recv_t *recv = check->recv;
    const uint64_t of_expert = shape->padded && shape->by_column ? check->nranks * shape->room : 0;
    const xep_dtype_t dtype = oracle_received_scales_dtype(shape);
    const size_t width = oracle_element_bytes(dtype);
    const char *at = recv->scales, *expected = (const char *)check->scales;

    if (of_expert != 0) at += row / of_expert * of_expert * recv->nscales * width;
    at += (ptrdiff_t)(of_expert != 0 ? row % of_expert : row) * recv->scales_token_stride;
    for (uint32_t i = 0; i < oracle_received_scales(shape); i++, at += recv->scales_stride) {
        if (!oracle_differ_row(check->difference, "scales", row, dtype, 1, expected + i * width, at)) continue;
        check->difference->column = i;
        return 1;
    }
    return 0;
}

static int check_payloads(const oracle_check_t *check, uint64_t row, uint32_t src, uint64_t token)
{
    const oracle_shape_t *shape = check->shape;
    const xep_recv_t *recv = check->recv;
    int differs = oracle_check_number(check, "npayloads", row, 0, shape->npayloads, recv->npayloads);
    for (uint32_t i = 0; i < shape->npayloads && !differs; i++) {
        const xep_payload_t *sent = &shape->payloads[i], *got = &recv->payloads[i];
        const char *at = (const char *)got->data + row * got->stride;
        char *expected = oracle_alloc(sent->bytes);
        oracle_fill_payload(shape, i, src, token, expected);
        differs = oracle_check_number(check, "bytes of payload", row, i, sent->bytes, got->bytes) ||
                  oracle_check_number(check, "stride of payload", row, i, oracle_align_payload(sent->bytes, sent),
                                      got->stride) ||
                  oracle_check_number(check, "alignment of payload", row, i, 0,
                                      (uintptr_t)at % (sent->alignment != 0 ? sent->alignment : 1)) ||
                  oracle_differ_row(check->difference, "payload", row, XEP_U8, sent->bytes, expected, at);
        free(expected);
    }
    return differs;
}

/*
 * Compares the source first: a row of another token would differ in x, too, and say less. Each row is made again from
 * (rank, token), and cast if it was cast on its way: nothing that was sent is kept.
 */
int oracle_check_row(oracle_check_t *check, uint64_t row, uint32_t src, uint64_t token)
{
    const oracle_shape_t *shape = check->shape;
    const int cast = shape->quant != XEP_QUANT_NONE;

    if (oracle_check_number(check, "src_token", row, 0, token, (uint64_t)check->recv->src_token[row])) return 1;
    oracle_fill_row(shape, src, token, check->sent);
    if (cast) oracle_cast_row(shape, check->sent, check->cast, check->scales);
    else oracle_fill_scales(shape, src, token, check->scales);
    return oracle_differ_row(check->difference, "x", row, oracle_received_dtype(shape), oracle_received_hidden(shape),
                             cast ? check->cast : check->sent, oracle_row_at(check->recv, row)) ||
           check_scales(check, row) || check_payloads(check, row, src, token);
}

/* Checks only their experts, which must be -1: nothing else is promised of such rows. */
int oracle_check_unused(const oracle_check_t *check, uint64_t first, uint64_t end)
{
    for (uint64_t row = first; row < end; row++)
        for (uint32_t k = 0; k < check->recv->topk; k++)
            if (oracle_differ_number(check->difference, "topk_idx", row, k, -1, oracle_idx_at(check->recv, row, k)))
                return 1;
    return 0;
}
