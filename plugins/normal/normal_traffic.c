/* SPDX-License-Identifier: BSD-3-Clause */

/* What the mode tells of its traffic, so that a path can be chosen and rows in passing have room. */
#include "normal_nodes.h"

/* The metadata of a row: its token, its scales, and for each selection an expert of so many bytes and a weight. */
static uint64_t metadata_bytes(const xep_shape_t *shape, size_t index_bytes)
{
    return sizeof(int32_t) + shape->scales * sizeof(float) + shape->topk * (index_bytes + sizeof(float));
}

/* Flat, a rank tells every rank its rows to each, and the selections of its experts; to a forwarder, of all experts. */
static uint64_t record_bytes(const xep_shape_t *shape)
{
    const uint64_t experts = shape->by_nodes ? shape->experts : shape->most_experts;
    return xep_row_stride(sizeof(normal_record_t) + sizeof(uint32_t) * (shape->nranks + experts) +
                          (shape->by_nodes ? sizeof(normal_feed_tail_t) : 0));
}

/*
 * Forwarders tell their local ranks what came, so that a dispatch has messages with them alone; a combine has with all.
 */
void normal_tell_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine)
{
    const uint64_t row = (uint64_t)shape->hidden * shape->elem_bytes;
    const uint64_t sum = (uint64_t)shape->hidden * shape->combine_elem_bytes;
    const uint64_t words = 2 * (sizeof(uint64_t) + sizeof(xep_offer_t)); /* each with what it publishes */
    const uint64_t flat = row + metadata_bytes(shape, sizeof(int64_t));
    *dispatch = (xep_traffic_t){.by_nodes = shape->by_nodes,
                                .messages_by_nodes = shape->by_nodes,
                                .messages = 2, /* record and done */
                                .rounds = 2,   /* records, then rows */
                                .message_bytes = words + record_bytes(shape),
                                .row_bytes = flat,
                                .sent_bytes = shape->by_nodes ? row + metadata_bytes(shape, sizeof(int32_t)) : flat,
                                .pass_rows = shape->by_nodes ? 2 * shape->tokens : 0};
    *combine = (xep_traffic_t){.by_nodes = shape->by_nodes,
                               .messages = 2, /* ready and read */
                               .rounds = 1,
                               .message_bytes = words,
                               .row_bytes = sum,
                               .sent_bytes = shape->by_nodes && shape->wide_sums ? shape->hidden * sizeof(float) : sum};
}
