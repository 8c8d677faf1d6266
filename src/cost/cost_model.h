/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What rows and signals cost, in bytes, memory and time: of the flat path and of the path by nodes, by a few
 * constants of the machine. Pure functions on what cost_rows.h counts or expects.
 *
 * A path takes as long as the rank, or the node, that takes longest: its bytes over the network in the direction that
 * has more of them, at the rate it has there, and the messages that its processor handles; its bytes in memory, at the
 * rate at which it copies and sums. A dispatch stores rows while others travel; one of ll copies them when all are
 * there. A combine sums a token when all of its rows are there; by nodes forwarders sum while others travel.
 */
#ifndef XEP_COST_MODEL_H
#define XEP_COST_MODEL_H

#include "cost_rows.h"

/** The shape of a buffer and of what is sent, as far as it costs something. */
typedef struct xep_cost_sizes {
    uint32_t topk, slots;
    uint32_t scales;         /* of 4 bytes, of a token */
    uint64_t tokens;         /* most of a rank */
    uint64_t recv_rows;      /* most that a rank has room for */
    uint64_t row_bytes;      /* of a row of a dispatch, without scales */
    uint64_t sum_bytes;      /* of a row of a combine */
    uint64_t node_sum_bytes; /* by nodes: of one from another node */
    uint64_t message_bytes;  /* most of a message with rows */
    uint64_t pass_rows;      /* by nodes: that a rank has room for while they pass through it */
    /* mode ll: receivers copy rows from where they came, so that nobody passes them on, and a combine brings back a row
     * for each selection, on both paths as flat (xep_cost_way()). 0: mode normal */
    int by_selection;
    const uint32_t *first_expert; /* [R + 1] */
} xep_cost_sizes_t;

/**
 * ll: rows of one source that is not mapped, or by nodes of a feeder, for which a rank has room by default. All, where
 * its inboxes have no more than 512 MiB then; else what an even load brings, and six standard deviations more, so that
 * in a hundred thousand dispatches of 1,024 ranks one is crowded. even: tokens of the source that are expected.
 */
uint64_t xep_cost_inbox_rows(uint64_t tokens, double even, double row_bytes, double inboxes);

/** How an operation goes where dispatches take a path. */
static inline xep_cost_path_t xep_cost_way(const xep_cost_sizes_t *sizes, xep_cost_path_t path,
                                           xep_cost_operation_t operation)
{
    return sizes->by_selection && operation == XEP_COST_COMBINE ? XEP_COST_FLAT : path;
}

/**
 * Rows that a message over the network carries, of each operation: one at least. path, here and below: of the
 * operation.
 */
void xep_cost_message_rows(xep_cost_path_t path, const xep_cost_sizes_t *sizes, double rows[XEP_COST_OPERATIONS]);

/**
 * Expects the rows of an operation where dispatches take a path and tokens select evenly: flow [R] and, in ll, what is
 * picked.
 */
void xep_cost_expect_flow(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                          const xep_cost_sizes_t *sizes, xep_cost_flow_t *flow);

/** Constants of the machine; 0 of a rate: no bound, of a time: none. */
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

void xep_cost_find_load(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                        const xep_cost_sizes_t *sizes, const xep_cost_flow_t *flow, uint32_t rank,
                        xep_cost_load_t *load_p);

/** Bytes of memory that a rank shares for a buffer. */
double xep_cost_memory(const xep_cost_map_t *map, xep_cost_path_t path, const xep_cost_sizes_t *sizes, uint32_t rank);

/** How long an operation takes, in s. */
typedef struct xep_cost_time {
    double seconds;
    double network;        /* of these: the rank, or the node, that takes longest over it */
    double memory, passed; /* and in memory: for its own tokens, and as a forwarder */
    double rounds;         /* and until signals are seen */
    uint32_t node;         /* whose network, or one of whose ranks', takes longest */
} xep_cost_time_t;

/** flow: [R] of all ranks. */
void xep_cost_find_time(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                        const xep_cost_sizes_t *sizes, const xep_cost_rates_t *rates, const xep_cost_flow_t *flow,
                        xep_cost_time_t *time_p);

/**
 * The path by which a dispatch and its combine together take less: by nodes only where it does. Flat where no node
 * has two ranks, or all ranks are on one. time: of each path and operation.
 */
xep_cost_path_t xep_cost_choose_path(const xep_cost_map_t *map, const xep_cost_time_t time[][XEP_COST_OPERATIONS]);

#endif
