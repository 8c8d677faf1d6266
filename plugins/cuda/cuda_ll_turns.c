/* SPDX-License-Identifier: BSD-3-Clause */

/* What dispatches and combines have in common: where things are for their kernels, and their order. */
#include "cuda_ll.h"

/*
 * Where everything of a slot lies, by value in each launch: a graph that is replayed has it in its nodes, so only what
 * does not change may be in it. Epochs and turns do, and are counted on the device.
 */
xep_cuda_ll_heaps_t cuda_ll_heaps(const cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_shape_t *shape = mode->ll.kit.shape;
    const ll_layout_t *at = &mode->layout.ll;
    const cuda_ll_slot_t *slot = &mode->slots[op->slot];
    return (xep_cuda_ll_heaps_t){
        .life = cuda_life(&mode->cuda),
        .outs = cuda_outs(&mode->cuda, shape->nranks),
        .peer = mode->cuda.peer,
        .rank = shape->rank,
        .nranks = shape->nranks,
        .experts = shape->experts,
        .slots = shape->slots,
        .ring = (uint32_t)xep_notices_ring(shape),
        .owner = mode->cuda.owner,
        .first_expert = mode->cuda.first_expert,
        .recv_rows = at->common.recv_rows,
        .tokens = shape->tokens,
        .notices = at->common.notices,
        .heads = mode->layout.heads,
        .head_bytes = mode->layout.head_bytes,
        .head_weights = mode->layout.head_weights,
        .head_counts = mode->layout.head_counts,
        .items = at->items.first,
        .items_bytes = at->items.bytes,
        .tables = at->tables,
        .table_bytes = at->table_bytes,
        .line = at->common.combine_line,
        .line_bytes = sizeof(xep_combine_line_t),
        .line_ready = offsetof(xep_combine_line_t, ready),
        .line_said = offsetof(xep_combine_line_t, offer),
        .words = mode->layout.words,
        .told = mode->pushes ? mode->layout.told : 0,
        .now = mode->now,
        .slot = slot->state,
        .there = slot->there,
        .slot_number = op->slot,
    };
}

/* The number is the place of the operation among those begun: receive phases are enqueued in this order. */
xep_status_t cuda_ll_begin(cuda_ll_t *mode, xep_op_t *op)
{
    xep_status_t status = mode->cuda.device->ops->after_mark(mode->cuda.device, cuda_stream(op));
    if (status != XEP_OK) return status;
    ((cuda_ll_state_t *)op->state)->number = mode->begun++;
    return xep_steps_begin(mode, op);
}

/*
 * Whichever operation is awaited first, receive phases are enqueued in the order in which operations began: all devices
 * have them in the same order then.
 */
xep_status_t cuda_ll_receive_in_turn(cuda_ll_t *mode, xep_op_t *op,
                                     xep_status_t (*launch)(cuda_ll_t *mode, const xep_op_t *op))
{
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    if (((const cuda_ll_state_t *)op->state)->number != mode->received) return XEP_INPROGRESS;
    xep_status_t status = ops->after_mark(mode->cuda.device, cuda_stream(op));
    if (status == XEP_OK) status = launch(mode, op);
    if (status == XEP_OK) status = ops->mark(mode->cuda.device, cuda_stream(op));
    /* also where the launch has failed: later operations would wait for their turn for ever */
    mode->received++;
    return status;
}
