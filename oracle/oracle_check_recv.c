/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The two arrangements have nothing in common but the walk over all tokens; a third would be one more of these calls.
 */
#include "oracle_check.h"

#include <stdlib.h>

#include "oracle_alloc.h"

int oracle_check_recv(const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                      oracle_difference_t *difference_p)
{
    oracle_check_t check;
    int differs;

    oracle_check_open(&check, shape, rank, recv, difference_p);
    if (shape->instances != NULL) differs = oracle_check_instances(&check);
    else differs = shape->by_expert ? oracle_check_by_expert(&check) : oracle_check_by_rank(&check);
    oracle_check_close(&check);
    return differs;
}

/* ---- room ---- */

typedef struct counts {
    uint64_t rows;     /* tokens that come here */
    uint64_t *experts; /* [experts] selections of each */
} counts_t;

static int count_token(oracle_check_t *check, void *arg, uint32_t src, uint64_t token)
{
    counts_t *counts = arg;
    int comes = 0;

    (void)src;
    (void)token;
    for (uint32_t k = 0; k < check->shape->routing->params.topk; k++) {
        const int32_t local = oracle_check_local(check, check->idx[k]);
        if (local < 0) continue;
        counts->experts[local]++;
        comes = 1;
    }
    counts->rows += (uint64_t)comes;
    return 0;
}

/* Without recv: what must arrive is known before anything has. */
uint64_t oracle_rows_needed(const oracle_shape_t *shape, uint32_t rank)
{
    oracle_difference_t unused;
    oracle_check_t check;
    counts_t counts = {0};
    uint64_t sum = 0, most = 0;

    oracle_check_open(&check, shape, rank, NULL, &unused);
    counts.experts = oracle_alloc(check.experts * sizeof *counts.experts);
    oracle_check_each(&check, count_token, &counts);
    for (uint32_t e = 0; e < check.experts; e++) {
        sum += oracle_check_align(&check, counts.experts[e]);
        if (counts.experts[e] > most) most = counts.experts[e];
    }
    free(counts.experts);
    oracle_check_close(&check);
    if (!shape->by_expert) return counts.rows;
    return shape->padded ? most : sum;
}
