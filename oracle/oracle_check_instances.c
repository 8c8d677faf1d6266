/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Which instance has a selection is the library's choice. So rows are not counted in advance: each is compared with the
 * token that it says it is. That every selection has one row, and no more, is seen from the sums.
 */
#include "oracle_check.h"

#include <stdlib.h>

#include "oracle_alloc.h"

typedef struct found {
    uint64_t *selections; /* [experts] */
    uint64_t rows, next;  /* so far; the lowest token that may come next from its source */
} found_t;

/* By rank: selections of other ranks, also of experts that are here, are -1. */
static int check_selections(const oracle_check_t *check, found_t *found, uint64_t row)
{
    for (uint32_t k = 0; k < check->recv->topk; k++) {
        const int is_here = oracle_idx_at(check->recv, row, k) >= 0;
        const int32_t local = is_here ? oracle_check_local(check, check->idx[k]) : -1;
        if (oracle_check_selection(check, row, k, local, is_here ? check->weights[k] : 0.0f)) return 1;
        if (is_here) found->selections[local]++;
    }
    return 0;
}

/* By expert: one of the token's selections must be of it. */
static int check_expert(const oracle_check_t *check, found_t *found, uint64_t row, uint32_t expert)
{
    const uint32_t topk = check->shape->routing->params.topk;
    uint32_t k = 0;

    while (k < topk && oracle_check_local(check, check->idx[k]) != (int32_t)expert) k++;
    if (k == topk) return oracle_check_number(check, "pair_count", expert, row, 0, 1);
    found->selections[expert]++;
    return oracle_check_selection(check, row, 0, expert, check->shape->weights ? check->weights[k] : 1.0f);
}

/* Rows of a source, by expert those of one expert: tokens ascend, by rank each comes once. */
static int check_rows(oracle_check_t *check, found_t *found, uint64_t first, uint64_t count, uint32_t src,
                      uint32_t expert)
{
    const oracle_shape_t *shape = check->shape;

    found->next = 0;
    for (uint64_t row = first; row < first + count; row++, found->rows++) {
        const uint64_t token = (uint64_t)check->recv->src_token[row], tokens = shape->routing->params.tokens_of[src];
        if (token < found->next || token >= tokens)
            return oracle_check_number(check, "src_token", row, 0, token < found->next ? found->next : tokens - 1,
                                       token);
        found->next = token + !shape->by_expert;
        oracle_route_token(shape, src, token, check->idx, check->weights);
        oracle_differ_source(check->difference, src, token);
        if (shape->by_expert ? check_expert(check, found, row, expert) : check_selections(check, found, row)) return 1;
        if (oracle_check_row(check, row, src, token)) return 1;
        oracle_differ_no_source(check->difference);
    }
    return 0;
}

static int check_counts(const oracle_check_t *check, const found_t *found)
{
    uint64_t aligned = 0;

    for (uint32_t e = 0; e < check->experts; e++) {
        const uint64_t rows = oracle_check_align(check, found->selections[e]);
        if (oracle_check_number(check, "expert_rows", 0, e, rows, check->recv->expert_rows[e])) return 1;
        aligned += rows;
    }
    return oracle_check_number(check, "rows", 0, 0, check->shape->by_expert ? aligned : found->rows, check->recv->rows);
}

int oracle_check_instances(oracle_check_t *check)
{
    const xep_recv_t *recv = check->recv;
    const int by_expert = check->shape->by_expert;
    const uint32_t pairs = by_expert ? check->experts * check->nranks : check->nranks;
    const uint32_t topk = check->shape->routing->params.topk;
    found_t found = {.selections = oracle_alloc(check->experts * sizeof *found.selections)};
    int differs = by_expert ? oracle_check_form(check, XEP_ROWS_BY_EXPERT_COMPACT, 1)
                            : oracle_check_form(check, XEP_ROWS_BY_RANK, topk);

    for (uint32_t i = 0; i < pairs && !differs; i++) {
        const uint64_t first = by_expert ? recv->pair_begin[i] : recv->src_begin[i];
        const uint64_t count = by_expert ? recv->pair_count[i] : recv->src_begin[i + 1] - first;
        differs = check_rows(check, &found, first, count, i % check->nranks, i / check->nranks);
    }
    if (!differs) differs = check_counts(check, &found);
    free(found.selections);
    return differs;
}
