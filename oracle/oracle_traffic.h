/* SPDX-License-Identifier: BSD-3-Clause */

/** How many rows and selections a routing moves. */
#ifndef ORACLE_TRAFFIC_H
#define ORACLE_TRAFFIC_H

#include "oracle_routing.h"

typedef struct oracle_traffic {
    uint64_t selections;      /* that are not -1 */
    uint64_t rows;            /* distinct (token, rank) pairs */
    uint64_t own_rows;        /* of these, to the token's own rank */
    uint64_t most_rows;       /* received by any one rank */
    uint64_t own_selections;  /* of selections, those of experts of the token's own rank */
    uint64_t most_selections; /* of any one rank's experts */
} oracle_traffic_t;

/** Routes every token of every rank. rank_rows [R][R]: rows from rank i to rank j; may be NULL. */
void oracle_traffic_count(const oracle_routing_t *routing, uint32_t *rank_rows, oracle_traffic_t *traffic_p);

#endif
