/* SPDX-License-Identifier: BSD-3-Clause */

/* What travels, so that the core can choose a path, and rows in passing have room. */
#include "normal_steps.h"

/* The metadata of a row: its token, its scales, and for each selection an expert of so many bytes and a weight. */
static uint64_t metadata_bytes(const xep_shape_t *shape, size_t index_bytes)
{
    return sizeof(int32_t) + shape->scales * sizeof(float) + shape->topk * (index_bytes + sizeof(float));
}

/*
 * All ranks of a node read what came to a forwarder, so that a dispatch has messages to forwarders alone; a combine has
 * them to all.
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
                                .message_bytes = words + normal_record_bytes(shape),
                                .row_bytes = flat,
                                .sent_bytes = shape->by_nodes ? row + metadata_bytes(shape, sizeof(int32_t)) : flat,
                                .pass_rows = shape->by_nodes ? 2 * shape->tokens : 0};
    *combine = (xep_traffic_t){.by_nodes = shape->by_nodes,
                               .messages = 2, /* ready and read */
                               .rounds = 1,
                               .message_bytes = words,
                               .row_bytes = sum,
                               .sent_bytes = sum};
}
