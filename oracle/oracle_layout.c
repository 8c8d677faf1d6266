/* SPDX-License-Identifier: BSD-3-Clause */

/* A token counts once for a rank and once for a node, and every selection counts for its expert. */
#include "oracle.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"

typedef struct counts {
    uint32_t nranks, nodes, ranks_per_node;
    int32_t *per_rank, *per_node, *per_expert; /* [R], [nodes], [E] tokens, or selections */
    uint8_t *in_rank;                          /* [R] of the token in hand */
    uint8_t *in_node;                          /* [nodes] likewise */
} counts_t;

/* By marks and not by counters: several experts of one rank, or of one node, mark it once. */
static void count_token(const oracle_routing_t *routing, const int32_t *idx, counts_t *c)
{
    memset(c->in_rank, 0, c->nranks);
    memset(c->in_node, 0, c->nodes);
    for (uint32_t k = 0; k < routing->params.topk; k++) {
        if (idx[k] < 0) continue;
        const uint32_t owner = oracle_owner(routing, (uint32_t)idx[k]);
        c->per_expert[idx[k]]++;
        c->in_rank[owner] = 1;
        c->in_node[owner / c->ranks_per_node] = 1;
    }
    for (uint32_t i = 0; i < c->nranks; i++) c->per_rank[i] += c->in_rank[i];
    for (uint32_t i = 0; i < c->nodes; i++) c->per_node[i] += c->in_node[i];
}

/* As rows of one array each, so that a difference names the index. */
static int compare_layout(const oracle_routing_t *routing, const counts_t *c, const xep_layout_t *layout,
                          oracle_difference_t *difference)
{
    return (layout->tokens_per_rank != NULL && oracle_differ_row(difference, "tokens_per_rank", 0, XEP_INT32, c->nranks,
                                                                 c->per_rank, layout->tokens_per_rank)) ||
           (layout->tokens_per_node != NULL && oracle_differ_row(difference, "tokens_per_node", 0, XEP_INT32, c->nodes,
                                                                 c->per_node, layout->tokens_per_node)) ||
           (layout->tokens_per_expert != NULL &&
            oracle_differ_row(difference, "tokens_per_expert", 0, XEP_INT32, routing->params.experts, c->per_expert,
                              layout->tokens_per_expert));
}

/*
 * token_in_rank is compared token by token on the way; the counts only when all tokens are in. ranks_per_node 0 is one
 * node; the last node may have fewer ranks.
 */
int oracle_check_layout(const oracle_shape_t *shape, uint32_t rank, uint32_t ranks_per_node, const xep_layout_t *layout,
                        oracle_difference_t *difference_p)
{
    const oracle_routing_t *routing = shape->routing;
    counts_t c = {.nranks = routing->params.nranks};
    int32_t *idx = oracle_alloc(routing->params.topk * sizeof *idx);
    float *weights = oracle_alloc(routing->params.topk * sizeof *weights);
    int differs = 0;

    *difference_p = (oracle_difference_t){.rank = rank};
    c.ranks_per_node = ranks_per_node ? ranks_per_node : c.nranks;
    c.nodes = (c.nranks + c.ranks_per_node - 1) / c.ranks_per_node;
    c.per_rank = oracle_alloc(c.nranks * sizeof *c.per_rank);
    c.per_node = oracle_alloc(c.nodes * sizeof *c.per_node);
    c.per_expert = oracle_alloc(routing->params.experts * sizeof *c.per_expert);
    c.in_rank = oracle_alloc(c.nranks);
    c.in_node = oracle_alloc(c.nodes);
    for (uint64_t token = 0; token < routing->params.tokens_of[rank] && !differs; token++) {
        oracle_route_token(shape, rank, token, idx, weights);
        count_token(routing, idx, &c);
        differs =
            layout->token_in_rank != NULL && oracle_differ_row(difference_p, "token_in_rank", token, XEP_U8, c.nranks,
                                                               c.in_rank, layout->token_in_rank + token * c.nranks);
    }
    if (!differs) differs = compare_layout(routing, &c, layout, difference_p);
    free(idx);
    free(weights);
    free(c.per_rank);
    free(c.per_node);
    free(c.per_expert);
    free(c.in_rank);
    free(c.in_node);
    return differs;
}
