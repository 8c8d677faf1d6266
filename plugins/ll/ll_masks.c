/* SPDX-License-Identifier: BSD-3-Clause */

/* Operations without ranks that are out (kit/masks.h). */
#include "ll.h"

/* Ranks that this dispatch is without have no tokens, and no room for any. */
static void imagine_notices(const ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    for (uint32_t r = 0; op->out != NULL && r < mode->kit.shape->nranks; r++) {
        if (op->out[r] == 0) continue;
        slot->from[r] = ll_state(op)->notice;
        slot->from[r].tokens = slot->from[r].most = 0;
        slot->list.packets[r] = ll_state(op)->packet;
        slot->list.packets[r].head = slot->list.packets[r].items = mode->kit.own; /* nothing of it is read */
    }
}

/* If a rank is left out whose word others had, their verdict holds here, too. */
static xep_status_t receive_masked(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    imagine_notices(mode, op);
    return ll_list_and_place(mode, op, op->is_ruled ? xep_agree_decision(mode->kit.env, op) : ll_conclude(mode, op));
}

/* The selections without those of ranks that are out. */
static xep_status_t leave_out(void *opaque, xep_op_t *op)
{
    const ll_t *mode = opaque;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    if (op->out == NULL) return XEP_OK;
    for (uint64_t i = 0; i < slot->tokens * slot->topk; i++)
        slot->some[i] =
            slot->experts[i] >= 0 && op->out[mode->kit.owner[slot->experts[i]]] == 0 ? slot->experts[i] : -1;
    ll_state(op)->experts = slot->some;
    return XEP_OK;
}

const xep_step_t ll_without_steps[] = {
    {.at = XEP_AT_PLACES, .run = receive_masked},
    {.at = XEP_AT_DRAIN, XEP_COMBINE_STEP_DRAIN_BY(xep_masks_read_word)},
    {.at = XEP_AT_FOUND, .name = "sums", .does = "leave ranks out", .run = leave_out, .agreed = 1},
    {0},
};
