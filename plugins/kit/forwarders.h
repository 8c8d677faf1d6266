/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Who forwards for whom where rows go once to each node (xep_shape_t.by_nodes): each rank has on every other node one
 * forwarder, the rank there whose place is its own, modulo the ranks of that node. It is one of that rank's upstream
 * ranks. Flat, every rank counts as a node of one: it is its own forwarder, and all others are its upstream ranks.
 */
#ifndef XEP_FORWARDERS_H
#define XEP_FORWARDERS_H

#include <xep/plugin.h>

#include "carve.h"

typedef struct xep_forwarders {
    uint32_t nodes;
    const uint32_t *node_of; /* [R] */
    uint32_t node, place;    /* this rank's */
    uint32_t locals;         /* ranks of this node, this one included */
    uint32_t upstreams;      /* of this rank */
    uint32_t *local;         /* [locals] rank, by place */
    uint32_t *upstream;      /* [upstreams] rank, ascending */
    uint32_t *feed_of;       /* [R] which upstream rank a rank is, or UINT32_MAX */
    uint32_t *forwarder;     /* [nodes] rank, or XEP_NO_RANK for the own one */
    uint32_t *line;          /* [nodes] which upstream rank this rank is there */
    uint32_t *through;       /* [R] the rank of this node through which one of another node is heard, or XEP_NO_RANK */
    uint32_t *fed;           /* [R] its number among the upstream ranks of through[r] */
} xep_forwarders_t;

/** The most upstream ranks of a rank; flat one more, as a size hint is of that: by nodes there is never more memory. */
static inline uint32_t xep_forwarders_most(const xep_shape_t *shape)
{
    return shape->by_nodes ? shape->upstreams : shape->nranks;
}

/** The most local ranks that a forwarder has. */
uint32_t xep_forwarders_most_locals(const xep_shape_t *shape);

/** Lays the arrays and, if there is memory, fills them; sets the numbers even if it only measures. */
void xep_forwarders_lay(const xep_shape_t *shape, xep_carve_t *arena, xep_forwarders_t *nodes);

/** Whether a rank is this one's forwarder on its node. */
static inline int xep_forwarders_are(const xep_forwarders_t *nodes, uint32_t rank)
{
    return nodes->forwarder[nodes->node_of[rank]] == rank;
}

/** How many of the ranks below a rank are upstream ranks of a forwarder. */
uint32_t xep_forwarders_count(const xep_shape_t *shape, uint32_t forwarder, uint32_t below);

#endif
