/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows that are read in place: what of it depends on notices, on casts, and on the order of rows. */
#include "ll_in_place.h"

#include <string.h>

/* ---- as a source ---- */

/* Rows that no rank sent are NULL. Clears only the entries of received rows, not all that there is room for. */
static void forget_rows(const ll_t *mode, ll_slot_t *slot)
{
    for (uint32_t e = 0; e < mode->kit.shape->local_experts; e++)
        memset(slot->row + slot->expert_begin[e], 0, slot->expert_count[e] * sizeof *slot->row);
}

xep_status_t ll_in_place_choose(ll_t *mode, xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    if (slot->pointed) forget_rows(mode, slot);
    slot->pointed = 0;
    return xep_in_place_choose(&mode->kit, op);
}

/* Rows that the user may have written have the stride that it was told; others are dense. */
static void space_items(const ll_t *mode, const ll_notice_t *notice, ll_packet_t *packet)
{
    if (notice->quant == XEP_QUANT_NONE) packet->stride = mode->layout.common.in_place.stride;
}

static xep_status_t take_memory(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_state_t *state = ll_state(op);
    const xep_in_place_rows_t *rows = &state->kit.in_place;
    state->notice.in_place = (op->dispatch->flags & XEP_DISPATCH_IN_PLACE) != 0;
    if (rows->rows_at == 0) return XEP_OK;
    state->is_there = rows->fill == NULL;
    state->items = xep_in_place_rows(&mode->kit, mode->kit.shape->rank, rows->rows_at);
    state->notice.rows_at = rows->rows_at;
    space_items(mode, &state->notice, &state->packet);
    return xep_in_place_take(mode, op);
}

/* ---- as a receiver ---- */

/* Not for ranks that are not mapped: they have put their items here as ever, but as far apart as they are there. */
static void find_source(const ll_t *mode, const ll_notice_t *notice, uint32_t source, ll_packet_t *packet)
{
    space_items(mode, notice, packet);
    packet->stays = mode->kit.base[source] != NULL;
    if (packet->stays) packet->items = xep_in_place_rows(&mode->kit, source, notice->rows_at);
}

/* Completes the packets. */
static xep_status_t find_places(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        const ll_notice_t *notice = &slot->from[r];
        slot->list.packets[r].stays = 0;
        if (notice->rows_at == 0) continue;
        if (notice->in_place != 1 || !xep_in_place_is_sane(&mode->kit, notice->rows_at, notice->tokens))
            return ll_refuse_notice(mode, op, r);
        find_source(mode, notice, r, &slot->list.packets[r]);
    }
    return XEP_OK;
}

/* Rows that do not stay with their source were copied to x of the slot, and are pointed to there. */
static void point_rows(const ll_t *mode, const xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const char *x = xep_kit_own_area(&mode->kit, mode->layout.common.x, op->slot);
    const ll_list_t *list = &slot->list;
    const size_t stride = xep_row_stride(ll_state(op)->packet.row_bytes);
    slot->pointed = 1;
    op->recv->x = NULL;
    op->recv->x_stride = 0;
    op->recv->row = slot->row;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        const ll_packet_t *packet = &list->packets[s];
        if (packet->stays) xep_in_place_read(&mode->kit, op, s, slot->from[s].rows_at);
        const ll_pick_t *pick = list->picks + list->begin[s], *end = list->picks + list->begin[s + 1];
        for (; pick < end; pick++)
            slot->row[pick->row] =
                packet->stays ? packet->items + pick->token * packet->stride : x + pick->row * stride;
    }
}

/* If nothing was moved the user gets its rows back, after the flush, as the wire may read them until then. */
static xep_status_t end(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    if (xep_kit_state(op)->verdict == XEP_OK && (op->dispatch->flags & XEP_DISPATCH_IN_PLACE)) point_rows(mode, op);
    return xep_in_place_return(mode, op);
}

const xep_step_t ll_in_place_steps[] = {
    {.at = XEP_AT_MEMORY, .name = "memory", .does = "take memory", .run = take_memory},
    {.at = XEP_AT_CHECK, .name = "agreement", .does = "find rows in place", .run = find_places},
    {.at = XEP_AT_BEHIND, .name = "rows in place", .does = "point to rows", .run = end, .kinds = XEP_KIND_PLAIN},
    {0},
};
