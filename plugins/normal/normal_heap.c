/* SPDX-License-Identifier: BSD-3-Clause */

/* Where things are in a heap. */
#include <string.h>

#include "normal_nodes.h"

/*
 * Weights of expert outputs have areas of their own: what a dispatch brought stays as it is for later combines of its
 * handle.
 */
static void lay_slot(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t slot[XEP_REGIONS])
{
    normal_layout_t *at = (normal_layout_t *)common;
    xep_carve_t *metadata = &slot[XEP_REGION_METADATA], *rows = &slot[XEP_REGION_ROWS];
    uint64_t weights = shape->topk * sizeof(float);
    xep_carve_received(shape, common, shape->topk, shape->scales, slot);
    at->input_weights = xep_carve_area(metadata, common->recv_rows, weights);
    at->returned_weights = xep_carve_area(metadata, at->returned_rows, weights);
    common->input = xep_carve_area(rows, common->recv_rows, common->combine_stride);
    at->returned = xep_carve_area(rows, at->returned_rows, xep_most(common->combine_stride, at->coded_stride));
    if (shape->by_nodes) normal_lay_rings(shape, at, metadata, rows);
}

/* A rank tells every rank its rows to each, and the selections of its experts. */
uint64_t normal_record_bytes(const xep_shape_t *shape)
{
    if (shape->by_nodes) return normal_feed_record_bytes(shape);
    return xep_row_stride(sizeof(normal_record_t) + sizeof(uint32_t) * (shape->nranks + (uint64_t)shape->most_experts));
}

/* Rows of a token that come back to this rank's memory, at most, where there is one piece. */
uint32_t normal_returns(const xep_shape_t *shape)
{
    return xep_least(shape->topk, shape->by_nodes ? shape->nodes - 1 : xep_shape_unmapped(shape));
}

/* An even load and a quarter more, or the worst case. No rank has more experts than rank 0. */
static uint64_t even_room(const xep_shape_t *shape)
{
    uint64_t worst = shape->nranks * shape->tokens;
    if (!shape->in_pieces) return worst;
    double rows = xep_even_tokens((double)worst, shape->most_experts, shape->experts, shape->topk) * 1.25 + 1;
    return rows < (double)worst ? (uint64_t)rows : worst;
}

/*
 * A slot has room for every token of every rank, as a token goes to a rank once at most, unless the user has asked for
 * less.
 */
xep_status_t normal_lay_heap(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t region[XEP_REGIONS])
{
    normal_layout_t *at = (normal_layout_t *)common;
    uint64_t lines = (uint64_t)shape->slots * shape->nranks;
    at->max_dests = xep_least(shape->topk, shape->nranks);
    at->returned_rows = shape->tokens * (shape->in_pieces ? at->max_dests : normal_returns(shape));
    at->coded_stride = xep_row_stride(xep_codec_room(shape->hidden * shape->combine_elem_bytes / 2));
    common->in_place.stride = xep_row_stride((size_t)shape->hidden * shape->elem_bytes);
    at->record_bytes = normal_record_bytes(shape);
    common->recv_rows = shape->recv_rows != 0 ? shape->recv_rows : even_room(shape);

    at->line = xep_carve_offset(&region[XEP_REGION_CONTROL], lines, sizeof(normal_line_t));
    at->storing = xep_carve_offset(&region[XEP_REGION_CONTROL], 1, sizeof(normal_line_t));
    at->asked = xep_carve_offset(&region[XEP_REGION_CONTROL], lines, sizeof(uint64_t));
    at->records = xep_carve_offset(&region[XEP_REGION_METADATA], lines, at->record_bytes);
    if (shape->by_nodes) normal_lay_words(shape, at, &region[XEP_REGION_CONTROL]);
    xep_carve_slots(shape, common, region, lay_slot);
    return XEP_OK;
}

uint64_t normal_line_offset(const normal_t *mode, uint32_t index, uint32_t rank)
{
    return mode->layout.line + ((uint64_t)index * mode->kit.shape->nranks + rank) * sizeof(normal_line_t);
}

uint64_t normal_line_there(const normal_t *mode, const xep_op_t *op)
{
    return normal_line_offset(mode, normal_index(mode, op), mode->kit.shape->rank);
}

normal_line_t *normal_line(const normal_t *mode, uint32_t index, uint32_t rank)
{
    return (normal_line_t *)(void *)(mode->kit.hears_in[rank] + normal_line_offset(mode, index, rank));
}

/* A ring of as many turns as there are slots: normal.h says why no entry is written again before it was read. */
uint64_t normal_record_begin(const normal_t *mode, uint64_t turn, uint32_t rank)
{
    const xep_shape_t *shape = mode->kit.shape;
    return (turn % shape->slots * shape->nranks + rank) * mode->layout.record_bytes;
}

uint64_t normal_record_offset(const normal_t *mode, uint64_t turn, uint32_t rank)
{
    return mode->layout.records + normal_record_begin(mode, turn, rank);
}

/*
 * Step 3: sources in rank order, on every rank. So the first row of this rank at d lies behind those that lower ranks
 * send there.
 */
void normal_find_begins(const normal_t *mode, normal_routing_t *routing)
{
    uint32_t nranks = mode->kit.shape->nranks, self = mode->kit.shape->rank;
    routing->src_begin[0] = 0;
    memset(routing->there, 0, nranks * sizeof *routing->there);
    for (uint32_t r = 0; r < nranks; r++) {
        const uint32_t *rows = routing->rank_rows + (size_t)r * nranks;
        routing->src_begin[r + 1] = routing->src_begin[r] + rows[self];
        for (uint32_t d = 0; d < nranks && r < self; d++) routing->there[d] += rows[d];
    }
}

/*
 * Rows that are returned to reader lie owner by owner, without those that mapped owners let it pull; of several pieces
 * it pulls none.
 */
uint64_t normal_returned_begin(const normal_t *mode, const normal_slot_t *slot, uint32_t reader, uint32_t owner)
{
    const uint32_t *rows = slot->routing->rank_rows + (size_t)reader * mode->kit.shape->nranks;
    const uint32_t *node = mode->kit.shape->node;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < owner; i++)
        if (node[i] != node[reader] || slot->pieces > 1) begin += rows[i];
    return begin;
}
