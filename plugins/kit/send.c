/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The cursor makes a send resumable: the wire may refuse any put, and the operation goes on where it stopped, without
 * sending anything twice.
 */
#include "send.h"

void xep_send_mapped(xep_kit_t *kit, xep_op_t *op, xep_store_fn store)
{
    if (xep_kit_state(op)->told) return;
    for (uint32_t i = 0; i < kit->shape->nranks; i++) {
        uint32_t rank = xep_kit_peer(kit, i);
        if (kit->base[rank] != NULL) store(kit, op, rank);
    }
    xep_kit_state(op)->told = 1;
}

/* Rows from "row" on that lie one behind the other on both sides. */
static uint64_t find_run(const xep_part_t *part, uint64_t row)
{
    uint64_t most = part->bytes < XEP_PIECE_BYTES ? XEP_PIECE_BYTES / part->bytes : 1, run = 1;
    if (part->src_stride != part->bytes || part->stride != part->bytes) return 1;
    if (most > part->rows - row) most = part->rows - row;
    if (part->index == NULL) return most;
    while (run < most && part->index[row + run] == part->index[row] + run) run++;
    return run;
}

static int cut_run(const xep_part_t *part, uint64_t row, xep_piece_t *piece)
{
    if (part->bytes == 0 || row >= part->rows) return 0;
    piece->rows = find_run(part, row);
    piece->src = part->src + (part->index != NULL ? part->index[row] : row) * part->src_stride;
    piece->offset = part->offset + row * part->stride;
    piece->bytes = piece->rows * part->bytes;
    return 1;
}

/* All of a part that is left, from op's cursor on. */
static xep_status_t put_rows(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const xep_part_t *part)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    xep_wire_t *wire = kit->env->wire;
    xep_piece_t piece;
    while (part->cut != NULL ? part->cut(kit, op, rank, cursor->part, &cursor->row, &piece)
                             : cut_run(part, cursor->row, &piece)) {
        xep_status_t status = wire->ops->put(wire, rank, piece.offset, piece.src, piece.bytes);
        if (status != XEP_OK) return status;
        cursor->row += piece.rows;
    }
    return XEP_OK;
}

static xep_status_t put_part(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const xep_part_t *part)
{
    xep_wire_t *wire = kit->env->wire;
    if (part->blocked) return XEP_INPROGRESS;
    if (!part->signal) return put_rows(kit, op, rank, part);
    return wire->ops->put_signal(wire, rank, part->offset, part->src, part->bytes, part->signal_offset, part->value);
}

static xep_status_t send_parts(xep_kit_t *kit, xep_op_t *op, xep_part_fn describe, int to_mapped)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    xep_part_t part;
    for (; cursor->peer < kit->shape->nranks; *cursor = (xep_cursor_t){.peer = cursor->peer + 1}) {
        uint32_t rank = xep_kit_peer(kit, cursor->peer);
        if (kit->base[rank] != NULL && !to_mapped) continue;
        for (; describe(kit, op, rank, cursor->part, &part); cursor->part++, cursor->row = 0) {
            xep_status_t status = put_part(kit, op, rank, &part);
            if (status != XEP_OK) return status;
        }
    }
    return XEP_OK;
}

xep_status_t xep_send_parts(xep_kit_t *kit, xep_op_t *op, xep_part_fn describe)
{
    return kit->all_mapped ? XEP_OK : send_parts(kit, op, describe, 0);
}

xep_status_t xep_send_all(xep_kit_t *kit, xep_op_t *op, xep_part_fn describe)
{
    return send_parts(kit, op, describe, 1);
}

xep_status_t xep_send(xep_kit_t *kit, xep_op_t *op, xep_store_fn store, xep_part_fn describe)
{
    xep_send_mapped(kit, op, store);
    return xep_send_parts(kit, op, describe);
}
