/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows by expert: for each local expert those of rank 0, then of rank 1, .., in the order of tokens and then of k.
 * Every row is found by counting alone, twice over all tokens of all ranks: slow, and plain enough to be believed.
 */
#include "oracle_check.h"

#include <stdlib.h>

#include "oracle_alloc.h"
#include "oracle_number.h"

/* First the places, then the rows one by one. */
typedef struct expected {
    uint32_t *count; /* [experts][R] */
    uint64_t *next;  /* [experts][R] row of the next selection */
} expected_t;

static int count_token(oracle_check_t *check, void *arg, uint32_t src, uint64_t token)
{
    expected_t *expected = arg;

    (void)token;
    for (uint32_t k = 0; k < check->shape->routing->params.topk; k++)
        if (oracle_check_local(check, check->idx[k]) >= 0)
            expected->count[(size_t)oracle_check_local(check, check->idx[k]) * check->nranks + src]++;
    return 0;
}

/* Of one local expert that begins at a row; *rows_p: how many it has. */
/* Leaves in next the row at which the selections of each source begin, for check_token() to count on from. */
static int check_pairs(const oracle_check_t *check, expected_t *expected, uint32_t e, uint64_t begin, uint64_t *rows_p)
{
    const xep_recv_t *recv = check->recv;
    uint64_t row = begin;

    for (uint32_t src = 0; src < check->nranks; src++) {
        const size_t pair = (size_t)e * check->nranks + src;
        expected->next[pair] = row;
        if (oracle_check_number(check, "pair_begin", e, src, row, recv->pair_begin[pair]) ||
            oracle_check_number(check, "pair_count", e, src, expected->count[pair], recv->pair_count[pair]))
            return 1;
        row += expected->count[pair];
    }
    *rows_p = row - begin;
    return 0;
}

/*
 * Experts one after the other, each rounded up to the alignment; padded, each at its own multiple of what all ranks can
 * send it at most. Rows that alignment leaves unused must say so; what is between padded experts says nothing.
 */
static int check_places(const oracle_check_t *check, expected_t *expected)
{
    const oracle_shape_t *shape = check->shape;
    const xep_recv_t *recv = check->recv;
    const uint64_t most = check->nranks * shape->room;
    uint64_t end = 0, received = 0;

    for (uint32_t e = 0; e < check->experts; e++) {
        const uint64_t begin = shape->padded ? e * most : end;
        uint64_t rows;
        if (check_pairs(check, expected, e, begin, &rows)) return 1;
        end = begin + oracle_check_align(check, rows);
        received += rows;
        if (oracle_check_number(check, "expert_begin", e, 0, begin, recv->expert_begin[e]) ||
            oracle_check_number(check, "expert_count", e, 0, rows, recv->expert_count[e]) ||
            oracle_check_number(check, "expert_rows", e, 0, end - begin, recv->expert_rows[e]) ||
            (!shape->padded && oracle_check_unused(check, begin + rows, end)))
            return 1;
    }
    if (shape->padded)
        return oracle_check_number(check, "rows", 0, 0, received, recv->rows) ||
               oracle_check_number(check, "capacity", 0, 0, check->experts * most, recv->capacity);
    return oracle_check_number(check, "rows", 0, 0, end, recv->rows) ||
           oracle_check_number(check, "capacity", 0, 0, shape->capacity != 0 ? shape->capacity : end, recv->capacity) ||
           oracle_check_unused(check, end, recv->capacity);
}

/*
 * Column by column a scale of the next row lies next to that of this one; a column is as long as an expert's rows when
 * these are padded, else as all.
 */
static int check_columns(const oracle_check_t *check)
{
    const oracle_shape_t *shape = check->shape;
    const xep_recv_t *recv = check->recv;
    const uint64_t column = shape->padded ? check->nranks * shape->room : recv->capacity;

    if (!shape->by_column || recv->nscales == 0) return 0;
    const size_t width = oracle_element_bytes(recv->scales_dtype);
    return oracle_check_number(check, "scales_token_stride", 0, 0, width, (uint64_t)recv->scales_token_stride) ||
           oracle_check_number(check, "scales_stride", 0, 0, column * width, (uint64_t)recv->scales_stride);
}

/* A token has a row for each of its selections here. Where weights do not travel they are 1. */
static int check_token(oracle_check_t *check, void *arg, uint32_t src, uint64_t token)
{
    expected_t *expected = arg;

    oracle_differ_source(check->difference, src, token);
    for (uint32_t k = 0; k < check->shape->routing->params.topk; k++) {
        const int32_t local = oracle_check_local(check, check->idx[k]);
        if (local < 0) continue;
        const uint64_t row = expected->next[(size_t)local * check->nranks + src]++;
        if (oracle_check_selection(check, row, 0, local, check->shape->weights ? check->weights[k] : 1.0f) ||
            oracle_check_row(check, row, src, token))
            return 1;
    }
    oracle_differ_no_source(check->difference);
    return 0;
}

int oracle_check_by_expert(oracle_check_t *check)
{
    const size_t pairs = (size_t)check->experts * check->nranks;
    expected_t expected = {.count = oracle_alloc(pairs * sizeof *expected.count),
                           .next = oracle_alloc(pairs * sizeof *expected.next)};
    const xep_rows_t arrangement = check->shape->padded ? XEP_ROWS_BY_EXPERT_PADDED : XEP_ROWS_BY_EXPERT_COMPACT;
    int differs;

    oracle_check_each(check, count_token, &expected);
    differs = oracle_check_form(check, arrangement, 1) || check_places(check, &expected) || check_columns(check) ||
              oracle_check_each(check, check_token, &expected);
    free(expected.count);
    free(expected.next);
    return differs;
}
