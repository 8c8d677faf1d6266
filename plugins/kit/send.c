/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The cursor makes a send resumable: the wire may refuse any put, and the operation goes on where it stopped, without
 * sending anything twice.
 */
#include "send.h"

#include "kit.h"

void xep_send_stores(xep_kit_t *kit, const xep_op_t *op, xep_store_fn store)
{
    const xep_ranks_t *with = &op->with;
    for (uint32_t i = 0, at = with->self; i < with->count; i++) {
        at = at + 1 < with->count ? at + 1 : 0; /* in the order of xep_kit_peer(), without a division for each */
        const uint32_t rank = with->rank[at];
        if (kit->base[rank] != NULL) store(kit, op, rank);
    }
}

/*
 * A run goes on while rows are consecutive on both sides, up to the size of a put: between two puts the wire makes
 * progress. Indices that happen to be consecutive count, too, as after a dispatch of dense batches.
 */
static uint64_t find_run(const xep_transfer_t *transfer, uint64_t row)
{
    uint64_t most = transfer->bytes < XEP_PUT_BYTES ? XEP_PUT_BYTES / transfer->bytes : 1, run = 1;
    if (transfer->src_stride != transfer->bytes || transfer->stride != transfer->bytes) return 1;
    if (most > transfer->rows - row) most = transfer->rows - row;
    if (transfer->index == NULL) return most;
    while (run < most && transfer->index[row + run] == transfer->index[row] + run) run++;
    return run;
}

/* bytes 0: there is nothing to send, however many rows there are, as for weights that were not given. */
static int cut_run(const xep_transfer_t *transfer, uint64_t row, xep_put_t *put)
{
    if (transfer->bytes == 0 || row >= transfer->rows) return 0;
    put->rows = find_run(transfer, row);
    put->src = transfer->src + (transfer->index != NULL ? transfer->index[row] : row) * transfer->src_stride;
    put->offset = transfer->offset + row * transfer->stride;
    put->bytes = put->rows * transfer->bytes;
    return 1;
}

/* Puts the rows of a transfer that are there, from the cursor on. */
static xep_status_t put_rows(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const xep_transfer_t *transfer,
                             xep_cursor_t *cursor)
{
    xep_wire_t *wire = kit->env->wire;
    xep_transfer_t now = *transfer;
    xep_put_t put;
    now.rows -= transfer->coming;
    while (transfer->cut != NULL ? transfer->cut(kit, op, rank, cursor->transfer, &cursor->row, &put)
                                 : cut_run(&now, cursor->row, &put)) {
        xep_status_t status = wire->ops->put(wire, rank, put.offset, put.src, put.bytes);
        if (status != XEP_OK) return status;
        cursor->row += put.rows;
    }
    return transfer->coming == 0 ? XEP_OK : XEP_INPROGRESS;
}

/* A signal goes behind all puts before it to this rank, which is what the wire promises. */
static xep_status_t put_transfer(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank,
                                 const xep_transfer_t *transfer, xep_cursor_t *cursor)
{
    xep_wire_t *wire = kit->env->wire;
    if (transfer->blocked) return XEP_INPROGRESS;
    if (!transfer->signal) return put_rows(kit, op, rank, transfer, cursor);
    if (transfer->later) return wire->ops->signal_later(wire, rank, transfer->signal_offset, transfer->value);
    return wire->ops->put_signal(wire, rank, transfer->offset, transfer->src, transfer->bytes, transfer->signal_offset,
                                 transfer->value);
}

/*
 * From the cursor on until a transfer is blocked, or the wire refuses it. The cursor moves only after a put was taken:
 * refused puts are tried again, and nothing is sent twice.
 */
static xep_status_t put_open(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, xep_transfer_fn transfers,
                             xep_cursor_t *cursor, int *blocked_p)
{
    xep_transfer_t transfer;
    for (; transfers(kit, op, rank, cursor->transfer, &transfer); cursor->transfer++, cursor->row = 0) {
        xep_status_t status = put_transfer(kit, op, rank, &transfer, cursor);
        *blocked_p = transfer.blocked;
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

xep_status_t xep_send_to(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, xep_transfer_fn transfers)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    int blocked;
    xep_status_t status = put_open(kit, op, rank, transfers, cursor, &blocked);
    if (status == XEP_OK) *cursor = (xep_cursor_t){0};
    return status;
}

/* Sends rank by rank, beginning after this one, so that not all ranks send to the same one at a time. */
static xep_status_t put_all(xep_kit_t *kit, xep_op_t *op, xep_transfer_fn transfers, int to_mapped)
{
    xep_cursor_t *cursor = &xep_kit_state(op)->cursor;
    int blocked;
    for (; cursor->peer < kit->shape->nranks; *cursor = (xep_cursor_t){.peer = cursor->peer + 1}) {
        uint32_t rank = xep_kit_peer(kit, cursor->peer);
        if ((kit->base[rank] != NULL && !to_mapped) || xep_op_is_without(op, rank)) continue;
        xep_status_t status = put_open(kit, op, rank, transfers, cursor, &blocked);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

xep_status_t xep_send_transfers(xep_kit_t *kit, xep_op_t *op, xep_transfer_fn transfers)
{
    return kit->all_mapped ? XEP_OK : put_all(kit, op, transfers, 0);
}

/* A blocked transfer does not hold up those to other ranks; a refusal by the wire does. */
xep_status_t xep_send_each(xep_kit_t *kit, xep_op_t *op, xep_transfer_fn transfers, xep_cursor_t *at)
{
    const uint32_t nranks = kit->shape->nranks;
    xep_status_t all = XEP_OK;
    for (uint32_t i = 0; i < nranks; i++) {
        uint32_t rank = xep_kit_peer(kit, i);
        int blocked = 0;
        if (kit->base[rank] != NULL || xep_op_is_without(op, rank)) continue;
        xep_status_t status = put_open(kit, op, rank, transfers, &at[rank], &blocked);
        if (status != XEP_OK) all = status;
        if (status < 0 || (status != XEP_OK && !blocked)) break;
    }
    return all;
}

xep_status_t xep_send(xep_kit_t *kit, xep_op_t *op, xep_store_fn store, xep_transfer_fn transfers)
{
    if (store == NULL) return put_all(kit, op, transfers, 1);
    /* once: after a wire that was busy the step runs again, and a word must not be stored again behind later ones */
    if (!xep_kit_state(op)->told) xep_send_stores(kit, op, store);
    xep_kit_state(op)->told = 1;
    return xep_send_transfers(kit, op, transfers);
}
