/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The cursor makes a send resumable: the wire may refuse any put, and the operation goes on where it stopped, without
 * sending anything twice.
 */
#include "send.h"

#include "kit.h"

/*
 * Once in a step: after a wire that was busy the step runs again, and a word must not be stored again behind later
 * ones.
 */
static void store_all(xep_kit_t *kit, xep_op_t *op, xep_store_fn store)
{
    if (xep_kit_state(op)->told) return;
    for (uint32_t i = 0; i < kit->shape->nranks; i++) {
        uint32_t rank = xep_kit_peer(kit, i);
        if (kit->base[rank] != NULL && !xep_op_is_without(op, rank)) store(kit, op, rank);
    }
    xep_kit_state(op)->told = 1;
}

/*
 * A run is as long as source rows and places follow one another on both sides, and no longer than a piece: between two
 * puts the wire makes progress. Indices that happen to be neighbours count too, as after a dispatch of dense batches.
 */
static uint64_t find_run(const xep_part_t *part, uint64_t row)
{
    uint64_t most = part->bytes < XEP_PIECE_BYTES ? XEP_PIECE_BYTES / part->bytes : 1, run = 1;
    if (part->src_stride != part->bytes || part->stride != part->bytes) return 1;
    if (most > part->rows - row) most = part->rows - row;
    if (part->index == NULL) return most;
    while (run < most && part->index[row + run] == part->index[row] + run) run++;
    return run;
}

/* bytes 0: there is nothing to send, whatever the number of rows is, as of weights that were not given. */
static int cut_run(const xep_part_t *part, uint64_t row, xep_piece_t *piece)
{
    if (part->bytes == 0 || row >= part->rows) return 0;
    piece->rows = find_run(part, row);
    piece->src = part->src + (part->index != NULL ? part->index[row] : row) * part->src_stride;
    piece->offset = part->offset + row * part->stride;
    piece->bytes = piece->rows * part->bytes;
    return 1;
}

/* All of a part that is left, from op's cursor on, and is there. */
static xep_status_t put_rows(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const xep_part_t *part)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    xep_wire_t *wire = kit->env->wire;
    xep_part_t now = *part;
    xep_piece_t piece;
    now.rows -= part->coming;
    while (part->cut != NULL ? part->cut(kit, op, rank, cursor->part, &cursor->row, &piece)
                             : cut_run(&now, cursor->row, &piece)) {
        xep_status_t status = wire->ops->put(wire, rank, piece.offset, piece.src, piece.bytes);
        if (status != XEP_OK) return status;
        cursor->row += piece.rows;
    }
    return part->coming == 0 ? XEP_OK : XEP_INPROGRESS;
}

/* A signal goes behind all puts before it to this rank, which is what the wire promises. */
static xep_status_t put_part(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const xep_part_t *part)
{
    xep_wire_t *wire = kit->env->wire;
    if (part->blocked) return XEP_INPROGRESS;
    if (!part->signal) return put_rows(kit, op, rank, part);
    return wire->ops->put_signal(wire, rank, part->offset, part->src, part->bytes, part->signal_offset, part->value);
}

/*
 * Rank by rank, beginning behind the own one, so that not all ranks feed the same one at the same time. The cursor
 * moves only after a put was taken: what the wire refuses is asked for again, and nothing is sent twice.
 */
static xep_status_t put_all(xep_kit_t *kit, xep_op_t *op, xep_part_fn parts, int to_mapped)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    xep_part_t part;
    for (; cursor->peer < kit->shape->nranks; *cursor = (xep_cursor_t){.peer = cursor->peer + 1}) {
        uint32_t rank = xep_kit_peer(kit, cursor->peer);
        if ((kit->base[rank] != NULL && !to_mapped) || xep_op_is_without(op, rank)) continue;
        for (; parts(kit, op, rank, cursor->part, &part); cursor->part++, cursor->row = 0) {
            xep_status_t status = put_part(kit, op, rank, &part);
            if (status != XEP_OK) return status;
        }
    }
    return XEP_OK;
}

xep_status_t xep_send_parts(xep_kit_t *kit, xep_op_t *op, xep_part_fn parts)
{
    return kit->all_mapped ? XEP_OK : put_all(kit, op, parts, 0);
}

/* From the cursor on until a part is blocked, or refused by the wire. */
static xep_status_t put_open(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, xep_part_fn parts, int *blocked_p)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    xep_part_t part;
    while (parts(kit, op, rank, cursor->part, &part)) {
        xep_status_t status = put_part(kit, op, rank, &part);
        *blocked_p = part.blocked;
        if (status != XEP_OK) return status;
        *cursor = (xep_cursor_t){.part = cursor->part + 1};
    }
    return XEP_OK;
}

/* A part that is blocked keeps no other rank's from going out; what the wire refuses does. */
xep_status_t xep_send_each(xep_kit_t *kit, xep_op_t *op, xep_part_fn parts, xep_cursor_t *at)
{
    const uint32_t nranks = kit->shape->nranks;
    xep_status_t all = XEP_OK;
    for (uint32_t i = 0; i < nranks; i++) {
        uint32_t rank = xep_kit_peer(kit, i);
        int blocked = 0;
        if (kit->base[rank] != NULL || xep_op_is_without(op, rank)) continue;
        xep_kit_state(op)->cursor = at[rank];
        xep_status_t status = put_open(kit, op, rank, parts, &blocked);
        at[rank] = xep_kit_state(op)->cursor;
        if (status != XEP_OK) all = status;
        if (status < 0 || (status != XEP_OK && !blocked)) break;
    }
    return all;
}

xep_status_t xep_send(xep_kit_t *kit, xep_op_t *op, xep_store_fn store, xep_part_fn parts)
{
    if (store == NULL) return put_all(kit, op, parts, 1);
    store_all(kit, op, store);
    return xep_send_parts(kit, op, parts);
}
