/* SPDX-License-Identifier: BSD-3-Clause */

#include "cost_rows.h"

#include <math.h>
#include <string.h>

#include <xep/plugin.h>

/* A counting sort of the ranks by node, so that those of a node stand in a row and in ascending order: "place modulo
 * the ranks of the node" then picks the forwarder by one index. */
void xep_cost_make_map(xep_cost_map_t *map, uint32_t nranks, uint32_t nnodes, const uint32_t *node, uint32_t *words)
{
    *map = (xep_cost_map_t){.nranks = nranks,
                            .nnodes = nnodes,
                            .node = node,
                            .place = words,
                            .ranks = words + nranks,
                            .first = words + 2 * (size_t)nranks};
    memset(map->first, 0, (nnodes + (size_t)1) * sizeof *map->first);
    for (uint32_t rank = 0; rank < nranks; rank++) map->place[rank] = map->first[node[rank] + 1]++;
    for (uint32_t n = 0; n < nnodes; n++) map->first[n + 1] += map->first[n];
    for (uint32_t rank = 0; rank < nranks; rank++) map->ranks[map->first[node[rank]] + map->place[rank]] = rank;
}

/* ---- rows ---- */

/* Of a source, into the memory of a rank of its own node. */
static void add_near(xep_cost_flow_t *flow, uint32_t source, uint32_t rank, double rows)
{
    if (rank == source) {
        flow[source].own += rows;
        return;
    }
    flow[source].stored += rows;
    flow[rank].taken += rows;
}

/* The same at the other end: of rows that came to a forwarder. */
static void add_passed(xep_cost_flow_t *flow, uint32_t forwarder, uint32_t rank, double rows)
{
    if (rank == forwarder) {
        flow[forwarder].kept += rows;
        return;
    }
    flow[forwarder].passed += rows;
    flow[rank].taken += rows;
}

/* From source to another rank, over the network. */
static void add_sent(xep_cost_flow_t *flow, uint32_t source, uint32_t to, double rows, double message_rows)
{
    const double messages = ceil(rows / message_rows);
    flow[source].sent += rows;
    flow[to].came += rows;
    flow[source].sent_messages += messages;
    flow[to].came_messages += messages;
}

/* ---- a routing ---- */

/* A token has at most topk ranks, so looking back over them is cheaper than a set of ranks, or of nodes. */
static int is_first(const uint32_t *ranks, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (ranks[i] == ranks[at]) return 0;
    return 1;
}

static int is_first_of_node(const xep_cost_map_t *map, const uint32_t *ranks, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (map->node[ranks[i]] == map->node[ranks[at]]) return 0;
    return 1;
}

/* Counts the row of a token that goes to ranks[at]. */
static void count_row(const xep_cost_count_t *count, uint32_t source, const uint32_t *ranks, uint32_t at)
{
    const xep_cost_map_t *map = count->map;
    const uint32_t node = map->node[ranks[at]];
    if (node == map->node[source]) {
        add_near(count->flow, source, ranks[at], 1);
    } else if (count->path == XEP_COST_FLAT) {
        count->to[ranks[at]]++;
    } else {
        const uint32_t forwarder = xep_cost_forwarder(map, source, node);
        count->to[forwarder] += (uint32_t)is_first_of_node(map, ranks, at);
        add_passed(count->flow, forwarder, ranks[at], 1);
    }
}

/* By selection every one is as a token of its own. */
void xep_cost_count_token(const xep_cost_count_t *count, uint32_t source, const uint32_t *owners, uint32_t nowners)
{
    for (uint32_t k = 0; k < nowners; k++) {
        count->flow[owners[k]].picked++;
        if (count->by_selection) count_row(count, source, &owners[k], 0);
        else if (is_first(owners, k)) count_row(count, source, owners, k);
    }
}

/* Messages are counted here and not for each token: only now is it known how many rows there are to share one. */
void xep_cost_count_end(const xep_cost_count_t *count, uint32_t source)
{
    for (uint32_t rank = 0; rank < count->map->nranks; rank++) {
        if (count->to[rank] != 0) add_sent(count->flow, source, rank, count->to[rank], count->message_rows);
        count->to[rank] = 0;
    }
}

/* ---- what is to be expected ---- */

/* What all functions below need. They change nothing of it but the flow that it points to. */
typedef struct expectation {
    const xep_cost_map_t *map;
    const uint32_t *first_expert;
    uint32_t topk;
    double tokens;
    double message_rows;
    xep_cost_flow_t *flow;
} expectation_t;

static double rows_of_rank(const expectation_t *expected, uint32_t rank)
{
    const uint32_t *first = expected->first_expert;
    return xep_even_tokens(expected->tokens, first[rank + 1] - first[rank], first[expected->map->nranks],
                           expected->topk);
}

/* Not the sum over its ranks: a token that several of them need crosses the network once. */
static double rows_of_node(const expectation_t *expected, uint32_t node)
{
    const xep_cost_map_t *map = expected->map;
    double experts = 0;
    for (uint32_t i = map->first[node]; i < map->first[node + 1]; i++)
        experts += expected->first_expert[map->ranks[i] + 1] - expected->first_expert[map->ranks[i]];
    return xep_even_tokens(expected->tokens, experts, expected->first_expert[map->nranks], expected->topk);
}

/* From source to the ranks of a node. */
static void expect_node(const expectation_t *expected, xep_cost_path_t path, uint32_t source, uint32_t node)
{
    const xep_cost_map_t *map = expected->map;
    const uint32_t forwarder = xep_cost_forwarder(map, source, node);
    const int is_own = node == map->node[source];
    for (uint32_t i = map->first[node]; i < map->first[node + 1]; i++) {
        const uint32_t rank = map->ranks[i];
        const double rows = rows_of_rank(expected, rank);
        if (is_own) add_near(expected->flow, source, rank, rows);
        else if (path == XEP_COST_NODES) add_passed(expected->flow, forwarder, rank, rows);
        else add_sent(expected->flow, source, rank, rows, expected->message_rows);
    }
    if (path == XEP_COST_NODES && !is_own)
        add_sent(expected->flow, source, forwarder, rows_of_node(expected, node), expected->message_rows);
}

void xep_cost_expect_rows(const xep_cost_map_t *map, xep_cost_path_t path, const uint32_t *first_expert, uint32_t topk,
                          double tokens, double message_rows, xep_cost_flow_t *flow)
{
    const expectation_t expected = {map, first_expert, topk, tokens, message_rows, flow};
    memset(flow, 0, map->nranks * sizeof *flow);
    for (uint32_t source = 0; source < map->nranks; source++) {
        flow[source].picked =
            tokens * topk * map->nranks * (first_expert[source + 1] - first_expert[source]) / first_expert[map->nranks];
        for (uint32_t node = 0; node < map->nnodes; node++) expect_node(&expected, path, source, node);
    }
}
