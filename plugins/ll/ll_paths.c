/* SPDX-License-Identifier: BSD-3-Clause */

/* What travels, so that the core can choose a path, and receive rings have their size. */
#include "ll_flow.h"

#include <math.h>

/* All rows have room where the receive rings take no more. */
#define RECV_RING_BYTES (512.0 * 1024 * 1024)

/* Experts of the node that has most. */
static uint32_t most_of_node(const xep_shape_t *shape)
{
    uint32_t found = 0;
    for (uint32_t n = 0; n < shape->nodes; n++) {
        uint32_t experts = 0;
        for (uint32_t r = 0; r < shape->nranks; r++)
            if (shape->node[r] == n) experts += shape->first_expert[r + 1] - shape->first_expert[r];
        if (experts > found) found = experts;
    }
    return found;
}

/*
 * Rows of one source: all, or else what an even load brings to so many experts, and six standard deviations more, so
 * that in a hundred thousand dispatches of 1,024 ranks one is crowded.
 */
static uint64_t recv_ring_rows(const xep_shape_t *shape, uint32_t experts, uint32_t sources)
{
    const double bytes = (double)shape->hidden * shape->elem_bytes + 4.0 * shape->scales;
    const double even = xep_even_tokens((double)shape->tokens, experts, shape->experts, shape->topk);
    const double held = floor(RECV_RING_BYTES / (bytes * 2.0 * shape->slots * sources));
    double rows = ceil(even + 6 * sqrt(even) + 6);
    if (held > rows) rows = held;
    return rows < (double)shape->tokens ? (uint64_t)rows : shape->tokens;
}

/*
 * By nodes there is never more room than flat, which the size hint is of: nodes that differ in size would have it,
 * where the one with most experts is not the one whose ranks have most upstream ranks.
 */
static uint64_t pass_rows(const xep_shape_t *shape)
{
    const uint64_t flat = recv_ring_rows(shape, shape->most_experts, shape->nranks) * shape->nranks;
    if (!shape->by_nodes) return flat;
    const uint64_t rows = recv_ring_rows(shape, most_of_node(shape), shape->upstreams) * shape->upstreams;
    return rows < flat ? rows : flat;
}

/*
 * A dispatch sends rows with their scales alone, a head before them and a notice behind; receivers pull from the rank
 * of their node to which rows came. A combine brings back a row for each selection, from the rank that has it.
 */
void ll_tell_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine)
{
    const uint64_t item = xep_row_stride((size_t)shape->hidden * shape->elem_bytes + shape->scales * sizeof(float));
    const uint64_t sum = (uint64_t)shape->hidden * shape->combine_elem_bytes;
    *dispatch = (xep_traffic_t){.by_nodes = shape->by_nodes,
                                .pulled = 1,
                                .messages_by_nodes = shape->by_nodes,
                                .messages = 2,
                                .rounds = 1,
                                .message_bytes = shape->tokens * shape->topk * sizeof(int32_t) + sizeof(ll_notice_t),
                                .row_bytes = item,
                                .sent_bytes = item,
                                .pass_rows = pass_rows(shape)};
    *combine = (xep_traffic_t){.by_selection = 1,
                               .messages = 2, /* ready, with its offer, and read */
                               .rounds = 1,
                               .message_bytes = 2 * (sizeof(uint64_t) + sizeof(xep_offer_t)),
                               .row_bytes = sum,
                               .sent_bytes = sum};
}
