/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What rows and messages cost in bytes and time, on the flat path and on the path by nodes. Pure functions of the rows
 * that cost_rows.h counts or expects, of what a mode says of its traffic (xep_traffic_t), and of a few constants of the
 * machine.
 *
 * A path takes as long as the rank, or the node, that takes longest: its bytes over the network in the direction that
 * has more of them, at the rate it has there, and the messages that its processor handles; its bytes in memory, at the
 * rate at which it copies and sums. A dispatch stores rows while others travel, or copies them when all are there. A
 * combine sums a token when all of its rows are there; by nodes forwarders sum while others travel.
 */
#ifndef XEP_COST_MODEL_H
#define XEP_COST_MODEL_H

#include <xep/plugin.h>

#include "cost_rows.h"

/** How the rows of an operation go. */
static inline xep_cost_path_t xep_cost_way(const xep_traffic_t *traffic)
{
    return traffic->by_nodes ? XEP_COST_NODES : XEP_COST_FLAT;
}

/** Whether some node has two ranks: else nobody forwards for anybody. */
int xep_cost_has_locals(const xep_shape_t *shape);

/** The same shape on another path; that by nodes is the flat one where there is one node. */
xep_shape_t xep_cost_shape_on(const xep_shape_t *shape, xep_cost_path_t path);

/** Rows that a message of so many bytes carries over the network: one at least. */
double xep_cost_message_rows(const xep_traffic_t *traffic, double message_bytes);

/** Expects the rows of an operation where tokens select evenly: flow [R]. */
void xep_cost_expect_flow(const xep_cost_map_t *map, const xep_shape_t *shape, const xep_traffic_t *traffic,
                          double message_bytes, xep_cost_flow_t *flow);

/** Constants of the machine. A rate of 0: no bound; a time of 0: none. */
typedef struct xep_cost_rates {
    double node_network; /* bytes/s of a node over the network, in each direction; without headers of packets */
    double rank_network; /* bytes/s of one rank, likewise */
    double rank_memory;  /* bytes/s that one rank stores or loads in memory, when it copies or sums */
    double node_memory;  /* bytes/s of all ranks of a node together */
    double latency;      /* s until a signal over the network is seen */
    double message;      /* s of a rank's processor, for each message over the network, sent or received */
} xep_cost_rates_t;

/** What a rank does in an operation, by level: within its node (other ranks' memory), and over the network. */
typedef struct xep_cost_load {
    double near_rows, near_bytes, near_messages; /* it stores into the memory of others, or loads from there */
    double sent_rows, sent_bytes, sent_messages; /* over the network: rows, words and all */
    double came_rows, came_bytes, came_messages; /* likewise, to it */
    double copied;                               /* bytes it stores, or loads to sum, wherever they are */
    double passed;                               /* of these, those that it does as a forwarder */
} xep_cost_load_t;

void xep_cost_find_load(const xep_cost_map_t *map, xep_cost_operation_t operation, const xep_traffic_t *traffic,
                        const xep_cost_flow_t *flow, uint32_t rank, xep_cost_load_t *load_p);

/** How long an operation takes, in s. */
typedef struct xep_cost_time {
    double seconds;
    double network;        /* of these: the rank, or the node, that takes longest over it */
    double memory, passed; /* and in memory: for its own tokens, and as a forwarder */
    double rounds;         /* and until signals are seen */
    uint32_t node;         /* whose network, or one of whose ranks', takes longest */
} xep_cost_time_t;

/** flow: [R] of all ranks. */
void xep_cost_find_time(const xep_cost_map_t *map, xep_cost_operation_t operation, const xep_traffic_t *traffic,
                        const xep_cost_rates_t *rates, const xep_cost_flow_t *flow, xep_cost_time_t *time_p);

#endif
