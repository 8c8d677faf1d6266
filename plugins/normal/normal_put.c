/* SPDX-License-Identifier: BSD-3-Clause */

/* Steps 4 and 5 for a rank that is not mapped: its rows, the metadata once it is staged, the signal. */
#include "normal_steps.h"

/*
 * Metadata for ranks that are not mapped is put together here first: it is a few bytes a row, and a put for each would
 * cost more than the row.
 */
void normal_lay_puts(const normal_t *mode, xep_carve_t *arena, normal_target_t *to)
{
    const xep_shape_t *shape = mode->kit.shape;
    const uint64_t rows = shape->tokens * mode->layout.max_dests;
    to->tokens = xep_carve_array(arena, rows, sizeof *to->tokens);
    to->idx = xep_carve_array(arena, rows * shape->topk, sizeof(int64_t));
    to->weights = xep_carve_array(arena, rows * shape->topk, sizeof *to->weights);
    to->beside = xep_carve_array(arena, rows * shape->scales, 4);
    to->beside_rows = rows;
}

/* How many of the rows for a rank, which are in the order of tokens, are of tokens that are not there yet. */
static uint64_t count_coming(const xep_op_t *op, const uint32_t *tokens, uint64_t rows)
{
    if (op->coming == 0) return 0;
    return rows - xep_count_below(tokens, sizeof *tokens, rows, op->dispatch->tokens - op->coming);
}

/* Rows straight from the caller's memory, which is why it must not change until the operation is done. */
static void rows_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, xep_transfer_t *transfer)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    const normal_range_t range = normal_sends(mode, op, rank);
    size_t bytes = xep_dispatch_row_bytes(op->dispatch), stride = xep_row_stride(bytes);
    *transfer = (xep_transfer_t){
        .src = op->dispatch->x,
        .src_stride = op->dispatch->x_stride,
        .index = routing->tokens_to + routing->to_begin[rank] + range.first,
        .rows = range.rows,
        .bytes = bytes,
        .stride = stride,
        .offset = xep_area_at(mode->layout.common.x, slot->from[rank].slot) + range.at * stride,
    };
    transfer->coming = count_coming(op, transfer->index, transfer->rows);
}

enum { METADATA = 3 }; /* and the fields behind them */

/* An array of metadata. Blocked until the last token is staged; the rows travel meanwhile. */
static void metadata_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                              xep_transfer_t *transfer)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    const xep_heap_layout_t *at = &mode->layout.common;
    /* normal_find_places() has set it to where the first row of this rank is staged */
    const normal_target_t *from = &slot->targets[rank];
    const normal_range_t range = normal_sends(mode, op, rank);
    const struct {
        const void *src;
        xep_area_t area;
        size_t bytes;
    } arrays[METADATA] = {
        {from->tokens, at->tokens, sizeof(int32_t)},
        {from->idx, at->idx, routing->topk * xep_elem_bytes(args->topk_idx_dtype)},
        {from->weights, at->weights, args->topk_weights != NULL ? routing->topk * sizeof(float) : 0},
    };
    const xep_field_t *field = &slot->fields.of[number < METADATA ? 0 : number - METADATA];
    const size_t bytes = number < METADATA ? arrays[number].bytes : field->stride;
    *transfer = (xep_transfer_t){.src_stride = bytes,
                                 .rows = range.rows,
                                 .bytes = bytes,
                                 .stride = bytes,
                                 .blocked = normal_state(op)->moved < routing->tokens};
    if (number < METADATA) {
        transfer->src = arrays[number].src;
        transfer->offset = xep_area_at(arrays[number].area, slot->from[rank].slot) + range.at * bytes;
        return;
    }
    transfer->src = from->beside + xep_field_place(field, from->beside_rows, from->beside_row);
    transfer->offset = xep_area_at(at->beside, slot->from[rank].slot) + xep_field_place(field, at->recv_rows, range.at);
}

/* A routing that is used again has them already. */
xep_status_t normal_list_puts(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (op->cached_slot == XEP_NO_SLOT) normal_list_tokens(mode, normal_slot(mode, op->slot)->routing);
    return XEP_OK;
}

/* The digest is what the signal brings along: the wire delivers it before the word. */
void normal_done_transfer(const normal_t *mode, const xep_op_t *op, xep_transfer_t *transfer)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    uint64_t line = normal_line_there(mode, op);
    *transfer = (xep_transfer_t){.signal = 1,
                                 .src = (const char *)&slot->digest,
                                 .bytes = sizeof slot->digest,
                                 .offset = line + offsetof(normal_line_t, digest),
                                 .signal_offset = line + offsetof(normal_line_t, done),
                                 .value = op->epoch};
}

/* Rows, the arrays beside them, done. After an error all but done is left out: the others wait for it. */
int normal_dispatch_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const uint32_t rows = 1 + METADATA + normal_slot(mode, op->slot)->fields.count;
    if (xep_kit_state(op)->verdict != XEP_OK) number += rows;
    if (number == 0) rows_transfer(mode, op, rank, transfer);
    else if (number < rows) metadata_transfer(mode, op, rank, number - 1, transfer);
    else normal_done_transfer(mode, op, transfer);
    return number <= rows;
}
