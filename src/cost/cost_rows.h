/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How many rows go over the network and within nodes, for each rank: of the flat path, and of the path by nodes. Pure
 * functions of who is where and of what tokens select, for the choice of a path and for jobs that do not exist
 * (xep_perf --simulate); cost_model.h makes bytes, memory and time of it.
 *
 * Flat: a row goes from its source straight to each rank that needs it: over the network to ranks of other nodes, into
 * the memory of those of its own.
 *
 * By nodes: a row goes once to each other node that needs it, to its forwarder there, the rank with the source's
 * place (modulo the ranks of that node), and from there into the memory of each rank of that node that needs it. Within
 * the source's own node it goes as in the flat path.
 *
 * A combine is the same the other way round. Flat: a row comes back from each rank. By nodes: the forwarder sums what
 * the ranks of its node have, and one row comes back.
 */
#ifndef XEP_COST_ROWS_H
#define XEP_COST_ROWS_H

#include <stddef.h>
#include <stdint.h>

typedef enum { XEP_COST_FLAT, XEP_COST_NODES, XEP_COST_PATHS } xep_cost_path_t;
typedef enum { XEP_COST_DISPATCH, XEP_COST_COMBINE, XEP_COST_OPERATIONS } xep_cost_operation_t;

/** Which ranks are where. */
typedef struct xep_cost_map {
    uint32_t nranks, nnodes;
    const uint32_t *node; /* [R] of each rank, 0 .. nnodes - 1; the caller's, as xep_shape_t has it */
    uint32_t *place;      /* [R] of each rank, among the ranks of its node */
    uint32_t *first;      /* [nnodes + 1] of each node, in ranks */
    uint32_t *ranks;      /* [R] node by node, ascending in each */
} xep_cost_map_t;

/** Numbers that a map needs room for. */
static inline size_t xep_cost_map_words(uint32_t nranks, uint32_t nnodes)
{
    return 2 * (size_t)nranks + nnodes + 1;
}

/** words: room for xep_cost_map_words(); it and node stay for as long as the map. */
void xep_cost_make_map(xep_cost_map_t *map, uint32_t nranks, uint32_t nnodes, const uint32_t *node, uint32_t *words);

/** Ranks of a node. */
static inline uint32_t xep_cost_node_ranks(const xep_cost_map_t *map, uint32_t node)
{
    return map->first[node + 1] - map->first[node];
}

/** The rank of a node that passes on what source sends there; on source's own node: source itself. */
static inline uint32_t xep_cost_forwarder(const xep_cost_map_t *map, uint32_t source, uint32_t node)
{
    return map->ranks[map->first[node] + map->place[source] % xep_cost_node_ranks(map, node)];
}

/**
 * Rows of one rank in a dispatch: whole numbers if a routing was counted, means if it was expected. In a combine they
 * go the other way: what was sent comes back, what was stored is loaded and summed.
 */
typedef struct xep_cost_flow {
    double own;    /* of its own tokens, to itself */
    double stored; /* of its own tokens, into the memory of other ranks of its node */
    double sent;   /* of its own tokens, over the network */
    double came;   /* over the network, to it: to keep, or by nodes to pass on */
    double kept;   /* by nodes: of those that came, the ones that it needs itself */
    double passed; /* by nodes: of those that came, into the memory of other ranks: one for each that needs it */
    double taken;  /* stored or passed by others, into its memory */
    double picked; /* selections of its experts, by all ranks */
    double sent_messages, came_messages; /* that carry the rows sent, and those that came */
} xep_cost_flow_t;

/** Rows that a rank receives, of all sources. */
static inline double xep_cost_received(const xep_cost_flow_t *flow, xep_cost_path_t path)
{
    return flow->own + flow->taken + (path == XEP_COST_FLAT ? flow->came : flow->kept);
}

/** Counts a routing: for each source all of its tokens, then xep_cost_count_end(). */
typedef struct xep_cost_count {
    const xep_cost_map_t *map;
    xep_cost_path_t path;
    int by_selection;      /* a row for each selection; 0: one for each rank */
    double message_rows;   /* most rows of a message over the network */
    xep_cost_flow_t *flow; /* [R] zero at first */
    uint32_t *to; /* [R] rows of the current source to each rank, over the network; zero before and after each source */
} xep_cost_count_t;

/** owners: of the experts that a token of source selects. */
void xep_cost_count_token(const xep_cost_count_t *count, uint32_t source, const uint32_t *owners, uint32_t nowners);
void xep_cost_count_end(const xep_cost_count_t *count, uint32_t source);

/**
 * The means if every rank has so many tokens, each of which selects topk different experts, all equally likely.
 * first_expert: [R + 1], as in xep_shape_t. Sets flow [R].
 */
void xep_cost_expect_rows(const xep_cost_map_t *map, xep_cost_path_t path, const uint32_t *first_expert, uint32_t topk,
                          double tokens, double message_rows, xep_cost_flow_t *flow);

#endif
