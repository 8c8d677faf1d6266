/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows are what a dispatch by rank brings, selections what one by expert does. */
#include "oracle_traffic.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"

/*
 * One token of a rank. ranks: scratch [K]. row [R]: the rank's rows to each other one, and selections [R]: those of
 * each rank's experts so far, of all tokens of all ranks.
 */
static void count_token(const oracle_routing_t *routing, uint32_t rank, const int32_t *idx, uint32_t *ranks,
                        uint32_t *row, uint64_t *selections, oracle_traffic_t *traffic)
{
    const uint32_t n = oracle_destinations(routing, idx, ranks);

    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = oracle_owner(routing, (uint32_t)idx[k]);
        traffic->selections++;
        traffic->own_selections += owner == rank;
        if (++selections[owner] > traffic->most_selections) traffic->most_selections = selections[owner];
    }
    for (uint32_t i = 0; i < n; i++) row[ranks[i]]++;
    traffic->rows += n;
}

/*
 * By the routing itself, before anything runs: buffers are made for these numbers, and figures are divided by them.
 * Every rank that calls it gets the same, without a word to the others.
 */
void oracle_traffic_count(const oracle_routing_t *routing, uint32_t *rank_rows, oracle_traffic_t *traffic_p)
{
    const uint32_t nranks = routing->params.nranks, topk = routing->params.topk;
    uint32_t *rows = oracle_alloc((size_t)nranks * nranks * sizeof *rows);
    uint32_t *ranks = oracle_alloc(topk * sizeof *ranks);
    uint64_t *selections = oracle_alloc(nranks * sizeof *selections);
    int32_t *idx = oracle_alloc(topk * sizeof *idx);
    float *weights = oracle_alloc(topk * sizeof *weights);
    oracle_traffic_t traffic = {0};

    for (uint32_t rank = 0; rank < nranks; rank++)
        for (uint64_t token = 0; token < routing->params.tokens_of[rank]; token++) {
            oracle_route(routing, rank, token, idx, weights);
            count_token(routing, rank, idx, ranks, rows + (size_t)rank * nranks, selections, &traffic);
        }
    for (uint32_t to = 0; to < nranks; to++) {
        uint64_t received = 0;
        for (uint32_t from = 0; from < nranks; from++) received += rows[(size_t)from * nranks + to];
        if (received > traffic.most_rows) traffic.most_rows = received;
        traffic.own_rows += rows[(size_t)to * nranks + to];
    }
    if (rank_rows != NULL) memcpy(rank_rows, rows, (size_t)nranks * nranks * sizeof *rows);
    *traffic_p = traffic;
    free(rows);
    free(ranks);
    free(selections);
    free(idx);
    free(weights);
}
