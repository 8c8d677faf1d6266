/* SPDX-License-Identifier: BSD-3-Clause */

#include <stdlib.h>
#include <string.h>

#include "tool_alloc.h"
#include "tool_routing.h"

void tool_experts_of(const tool_routing_t *routing, uint32_t rank, uint32_t *first_p, uint32_t *count_p)
{
    const uint32_t share = routing->params.experts / routing->params.nranks;
    const uint32_t more = routing->params.experts % routing->params.nranks;

    *first_p = rank * share + (rank < more ? rank : more);
    *count_p = share + (rank < more);
}

uint32_t tool_owner(const tool_routing_t *routing, uint32_t expert)
{
    const uint32_t share = routing->params.experts / routing->params.nranks;
    const uint32_t more = routing->params.experts % routing->params.nranks;

    if (expert < more * (share + 1)) return expert / (share + 1);
    return more + (expert - more * (share + 1)) / share;
}

uint32_t tool_destinations(const tool_routing_t *routing, const int32_t *idx, uint32_t *ranks)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = tool_owner(routing, (uint32_t)idx[k]);
        uint32_t at = n;
        while (at > 0 && ranks[at - 1] > owner) at--;
        if (at > 0 && ranks[at - 1] == owner) continue;
        memmove(ranks + at + 1, ranks + at, (n - at) * sizeof *ranks);
        ranks[at] = owner;
        n++;
    }
    return n;
}

static void count_token(const tool_routing_t *routing, uint32_t rank, const int32_t *idx, uint32_t *ranks, uint32_t *row,
                        uint64_t *selections, tool_traffic_t *traffic)
{
    const uint32_t n = tool_destinations(routing, idx, ranks);

    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = tool_owner(routing, (uint32_t)idx[k]);
        traffic->selections++;
        traffic->own_selections += owner == rank;
        if (++selections[owner] > traffic->most_selections) traffic->most_selections = selections[owner];
    }
    for (uint32_t i = 0; i < n; i++) row[ranks[i]]++;
    traffic->rows += n;
}

void tool_routing_count(const tool_routing_t *routing, uint32_t *rank_rows, tool_traffic_t *traffic_p)
{
    const uint32_t nranks = routing->params.nranks, topk = routing->params.topk;
    uint32_t *rows = tool_alloc((size_t)nranks * nranks * sizeof *rows);
    uint32_t *ranks = tool_alloc(topk * sizeof *ranks);
    uint64_t *selections = tool_alloc(nranks * sizeof *selections);
    int32_t *idx = tool_alloc(topk * sizeof *idx);
    float *weights = tool_alloc(topk * sizeof *weights);
    tool_traffic_t traffic = {0};

    for (uint32_t rank = 0; rank < nranks; rank++)
        for (uint64_t token = 0; token < routing->tokens_of[rank]; token++) {
            tool_route(routing, rank, token, idx, weights);
            count_token(routing, rank, idx, ranks, rows + (size_t)rank * nranks, selections, &traffic);
        }
    for (uint32_t to = 0; to < nranks; to++) {
        uint64_t received = 0;
        for (uint32_t from = 0; from < nranks; from++) received += rows[(size_t)from * nranks + to];
        if (received > traffic.most_rows) traffic.most_rows = received;
        traffic.own_rows += rows[(size_t)to * nranks + to];
    }
    if (rank_rows) memcpy(rank_rows, rows, (size_t)nranks * nranks * sizeof *rows);
    *traffic_p = traffic;
    free(rows);
    free(ranks);
    free(selections);
    free(idx);
    free(weights);
}
