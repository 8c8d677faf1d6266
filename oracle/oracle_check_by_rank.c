/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows by rank: a token once, however many of its experts are here; in the order of ranks and then of tokens. */
#include "oracle_check.h"

#include <stdlib.h>

#include "oracle_alloc.h"

/* First the counts, then the rows one by one. */
typedef struct expected {
    uint32_t *rank_rows;   /* [R][R] */
    uint64_t *expert_rows; /* [experts] not yet aligned */
    uint32_t *ranks;       /* [K] of the token in hand */
    uint64_t tokens;       /* of all ranks */
    uint64_t row;          /* next row of recv */
} expected_t;

static int count_token(oracle_check_t *check, void *arg, uint32_t src, uint64_t token)
{
    expected_t *expected = arg;
    const uint32_t n = oracle_destinations(check->shape->routing, check->idx, expected->ranks);

    (void)token;
    expected->tokens++;
    for (uint32_t i = 0; i < n; i++) expected->rank_rows[(size_t)src * check->nranks + expected->ranks[i]]++;
    for (uint32_t k = 0; k < check->shape->routing->params.topk; k++)
        if (oracle_check_local(check, check->idx[k]) >= 0)
            expected->expert_rows[oracle_check_local(check, check->idx[k])]++;
    return 0;
}

/* All of the matrix, not the part that concerns this rank: a mode shows it to the user, and computes places from it. */
static int check_rank_counts(const oracle_check_t *check, const expected_t *expected)
{
    const uint32_t nranks = check->nranks;
    const xep_recv_t *recv = check->recv;
    uint64_t begin = 0;

    for (uint32_t from = 0; from < nranks; from++) {
        if (oracle_check_number(check, "src_begin", 0, from, begin, recv->src_begin[from])) return 1;
        begin += expected->rank_rows[(size_t)from * nranks + check->rank];
        for (uint32_t to = 0; to < nranks; to++)
            if (oracle_check_number(check, "rank_rows", from, to, expected->rank_rows[(size_t)from * nranks + to],
                                    recv->rank_rows[(size_t)from * nranks + to]))
                return 1;
    }
    return oracle_check_number(check, "src_begin", 0, nranks, begin, recv->src_begin[nranks]) ||
           oracle_check_number(check, "rows", 0, 0, begin, recv->rows) ||
           oracle_check_number(check, "capacity", 0, 0, check->shape->capacity != 0 ? check->shape->capacity : begin,
                               recv->capacity);
}

static int check_expert_counts(const oracle_check_t *check, const expected_t *expected)
{
    for (uint32_t e = 0; e < check->experts; e++)
        if (oracle_check_number(check, "expert_rows", 0, e, oracle_check_align(check, expected->expert_rows[e]),
                                check->recv->expert_rows[e]))
            return 1;
    return 0;
}

/* Whether weights were sent is known from those that had tokens. */
static int check_weights_present(const oracle_check_t *check, const expected_t *expected)
{
    return expected->tokens != 0 && oracle_check_number(check, "topk_weights present", 0, 0, check->shape->weights != 0,
                                                        check->recv->topk_weights != NULL);
}

/* Experts of other ranks are -1 in what arrives, and their weights 0: a rank does not learn who else gets a token. */
static int check_selections(const oracle_check_t *check, uint64_t row)
{
    for (uint32_t k = 0; k < check->recv->topk; k++) {
        const int32_t local = oracle_check_local(check, check->idx[k]);
        if (oracle_check_selection(check, row, k, local, local >= 0 ? check->weights[k] : 0.0f)) return 1;
    }
    return 0;
}

/* Tokens that select nothing here have no row, and do not count. */
static int check_token(oracle_check_t *check, void *arg, uint32_t src, uint64_t token)
{
    expected_t *expected = arg;
    uint32_t k = 0;

    while (k < check->recv->topk && oracle_check_local(check, check->idx[k]) < 0) k++;
    if (k == check->recv->topk) return 0;
    oracle_differ_source(check->difference, src, token);
    if (check_selections(check, expected->row) || oracle_check_row(check, expected->row, src, token)) return 1;
    oracle_differ_no_source(check->difference);
    expected->row++;
    return 0;
}

int oracle_check_by_rank(oracle_check_t *check)
{
    const uint32_t topk = check->shape->routing->params.topk;
    expected_t expected = {
        .rank_rows = oracle_alloc((size_t)check->nranks * check->nranks * sizeof *expected.rank_rows),
        .expert_rows = oracle_alloc(check->experts * sizeof *expected.expert_rows),
        .ranks = oracle_alloc(topk * sizeof *expected.ranks),
    };
    int differs;

    oracle_check_each(check, count_token, &expected);
    differs = oracle_check_form(check, XEP_ROWS_BY_RANK, topk) || check_weights_present(check, &expected) ||
              check_rank_counts(check, &expected) || check_expert_counts(check, &expected) ||
              oracle_check_each(check, check_token, &expected) ||
              oracle_check_unused(check, check->recv->rows, check->recv->capacity);
    free(expected.rank_rows);
    free(expected.expert_rows);
    free(expected.ranks);
    return differs;
}
