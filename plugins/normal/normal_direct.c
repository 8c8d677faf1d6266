/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Flat, where no rank is mapped and rows stay on devices (xep/direct.h): the protocol of normal.h, with rows that are
 * gathered by a kernel and put in one piece for each rank, and sums made by a kernel. All else is as it is on hosts.
 */
#include "normal_steps.h"

/* ---- dispatch ---- */

/* Where the rows for rank are gathered: its own in their places, others where that rank will return them. */
static uint64_t outbox(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t self = mode->kit.shape->rank;
    if (rank == self)
        return xep_area_at(mode->layout.common.x, op->slot) +
               slot->there[self] * xep_row_stride(xep_dispatch_row_bytes(op->dispatch));
    return xep_area_at(mode->layout.returned, op->slot) +
           normal_returned_begin(mode, slot, self, rank) * mode->layout.common.combine_stride;
}

static xep_status_t gather(normal_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const size_t bytes = xep_dispatch_row_bytes(op->dispatch);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        mode->gathered[r] = xep_kit_own(&mode->kit, outbox(mode, op, r));
    slot->targets[mode->kit.shape->rank].x = NULL; /* the kernel copies those, too */
    const xep_direct_gather_t rows = {.bytes = bytes,
                                      .stride = xep_row_stride(bytes),
                                      .tokens = slot->routing->tokens_to,
                                      .begin = slot->routing->to_begin,
                                      .to = mode->gathered,
                                      .nranks = mode->kit.shape->nranks};
    return env->direct->gather(env, op, &rows);
}

/* One put for each rank, beginning after this one, so that not all send to the same one at a time. */
static xep_status_t put_rows(const normal_t *mode, const xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t stride = xep_row_stride(xep_dispatch_row_bytes(op->dispatch));
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; i + 1 < mode->kit.shape->nranks && status == XEP_OK; i++)
        status = env->direct->put(env, op, xep_kit_peer(&mode->kit, i), xep_area_at(mode->layout.common.x, 0), NULL, 0);
    for (uint32_t i = 0; i + 1 < mode->kit.shape->nranks && status == XEP_OK; i++) {
        const uint32_t r = xep_kit_peer(&mode->kit, i);
        const uint64_t to = xep_area_at(mode->layout.common.x, slot->from[r].slot) + slot->there[r] * stride;
        if (slot->routing->rows[r] == 0) continue;
        status = env->direct->put(env, op, r, to, xep_kit_own(&mode->kit, outbox(mode, op, r)),
                                  slot->routing->rows[r] * stride);
    }
    return status;
}

/* Metadata is moved while the kernel runs. */
static xep_status_t move_direct(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    normal_direct_t *stage = &normal_state(op)->direct;
    xep_status_t status = XEP_OK;
    if (xep_kit_state(op)->verdict != XEP_OK || *stage == NORMAL_DIRECT_PUT) return xep_step_send(mode, op);
    if (*stage == NORMAL_DIRECT_BEGINS) {
        status = gather(mode, op);
        if (status != XEP_OK) return status;
        *stage = NORMAL_DIRECT_ENQUEUED;
        while (normal_state(op)->moved < normal_slot(mode, op->slot)->routing->tokens) normal_move_slice(mode, op);
    }
    status = env->direct->reached(env, op);
    if (status == XEP_OK) status = put_rows(mode, op);
    if (status != XEP_OK) return status;
    *stage = NORMAL_DIRECT_PUT;
    return xep_step_send(mode, op);
}

static int metadata_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer)
{
    return normal_dispatch_transfer(opaque, op, rank, number + (xep_kit_state(op)->verdict == XEP_OK), transfer);
}

/* ---- combine ---- */

/* Outputs lie in the slot's input, as they will there: so those for a rank are one put. */
static xep_status_t return_direct(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; i + 1 < mode->kit.shape->nranks && status == XEP_OK; i++) {
        const uint32_t r = xep_kit_peer(&mode->kit, i);
        xep_transfer_t t;
        normal_returned_transfer(mode, op, r, 0, &t);
        if (t.rows != 0) status = env->direct->put(env, op, r, t.offset, t.src, (t.rows - 1) * t.stride + t.bytes);
    }
    return status;
}

static int offer_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                          xep_transfer_t *transfer)
{
    return normal_combine_transfer(opaque, op, rank, number + 1, transfer);
}

static void sum_weights(const normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    for (uint64_t t = 0; t < routing->tokens && args->out_weights != NULL; t++)
        normal_sum_weights((float *)((char *)args->out_weights + t * args->out_weights_stride), routing->topk,
                           slot->sources, routing->dests + routing->first[t],
                           routing->first[t + 1] - routing->first[t]);
}

static xep_status_t enqueue_sums(const normal_t *mode, const xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t nranks = mode->kit.shape->nranks;
    for (uint32_t r = 0; r < nranks; r++) {
        normal_find_source(mode, op, r);
        mode->sources[r] = (xep_direct_source_t){slot->sources[r].x, slot->sources[r].x_stride};
    }
    const xep_direct_sum_t sum = {.first = slot->routing->first,
                                  .terms = (const xep_direct_term_t *)(const void *)slot->routing->dests,
                                  .sources = mode->sources,
                                  .tokens = (uint32_t)slot->routing->tokens};
    return env->direct->sum(env, op, &sum, nranks);
}

/* Ends when the kernel has: until then peers must not return other rows. */
static xep_status_t sum_direct(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    normal_direct_t *stage = &normal_state(op)->direct;
    if (*stage == NORMAL_DIRECT_BEGINS) {
        const xep_status_t status = enqueue_sums(mode, op);
        if (status != XEP_OK) return status;
        *stage = NORMAL_DIRECT_ENQUEUED;
        sum_weights(mode, op);
    }
    return env->direct->reached(env, op);
}

_Static_assert(sizeof(xep_direct_term_t) == sizeof(normal_dest_t), "lists of terms are handed over as they are");

const xep_step_t normal_direct_steps[] = {
    {.at = XEP_AT_MOVE, .run = move_direct, .transfers = metadata_transfer, .kinds = XEP_KIND_PLAIN},
    {.at = XEP_AT_OFFER, .name = "rows to go out", .does = "put rows", .run = return_direct, .kinds = XEP_KIND_PLAIN},
    {.at = XEP_AT_OFFER, .run = xep_step_send, .transfers = offer_transfer, .kinds = XEP_KIND_PLAIN},
    {.at = XEP_AT_SUM,
     .name = "sums on the device",
     .does = "sum",
     .run = sum_direct,
     .agreed = 1,
     .kinds = XEP_KIND_PLAIN},
    {0},
};
