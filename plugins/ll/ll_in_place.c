/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows that are read in place: what of it depends on notices, on casts, and on the order of rows. */
#include "ll_in_place.h"

#include <string.h>

/* ---- as a source ---- */

/* Until the rows of this dispatch are pointed to, its handle has nothing to release. */
xep_status_t ll_in_place_choose(ll_t *mode, xep_op_t *op)
{
    ll_slot(mode, op->slot)->in_place = 0;
    return xep_in_place_choose(&mode->in_place, op, op->dispatch->quant != XEP_QUANT_NONE, &ll_state(op)->in_place);
}

/* Rows are numbered through all areas, so that one word says where they are. */
static uint32_t number_of(const ll_t *mode, uint64_t offset)
{
    const xep_in_place_layout_t *at = &mode->layout.in_place;
    uint64_t inside = offset - at->first;
    return (uint32_t)(inside / at->bytes * mode->kit.shape->tokens + inside % at->bytes / at->stride);
}

/* Back again; of the number of a peer ll_in_place_is_sane() has seen that it is inside the areas. */
static uint64_t offset_of(const ll_t *mode, uint32_t number)
{
    const xep_in_place_layout_t *at = &mode->layout.in_place;
    return at->first + number / mode->kit.shape->tokens * at->bytes + number % mode->kit.shape->tokens * at->stride;
}

static int are_in_place(const ll_notice_t *notice)
{
    return notice->in_place && notice->rows_at != 0;
}

/*
 * Those that the user may have written are as far apart as it was told; others lie close together, and so an inbox
 * holds more of those that were cast.
 */
static void space_items(const ll_t *mode, const ll_notice_t *notice, ll_parcel_t *parcel)
{
    if (are_in_place(notice) && notice->quant == XEP_QUANT_NONE) parcel->stride = mode->layout.in_place.stride;
    parcel->room = mode->layout.inbox_bytes / parcel->stride;
}

void ll_in_place_take(ll_t *mode, const xep_op_t *op)
{
    ll_state_t *state = ll_state(op);
    xep_in_place_take(&mode->in_place, op, &state->in_place);
    if (state->in_place.offset != 0) state->notice.rows_at = 1 + number_of(mode, state->in_place.offset);
    space_items(mode, &state->notice, &state->parcel);
}

/* ---- as a receiver ---- */

int ll_in_place_is_sane(const ll_t *mode, const ll_notice_t *notice)
{
    const uint64_t tokens = mode->kit.shape->tokens;
    /* the word is a piece then (ll_notice_t), which is only compared */
    if (!notice->in_place && mode->kit.shape->in_pieces) return 1;
    if (notice->rows_at == 0) return 1;
    uint64_t number = notice->rows_at - UINT64_C(1), first = number % tokens;
    return notice->in_place == 1 && number < mode->layout.in_place.areas * tokens && first + notice->tokens <= tokens;
}

/* Not for ranks that are not mapped: they have put their items here as ever, but as far apart as they are there. */
void ll_in_place_find(ll_t *mode, const ll_notice_t *notice, uint32_t source)
{
    ll_parcel_t *parcel = &mode->parcels[source];
    const char *heap = mode->kit.base[source];
    space_items(mode, notice, parcel);
    parcel->stays = heap != NULL && are_in_place(notice);
    if (parcel->stays) parcel->items = heap + offset_of(mode, notice->rows_at - 1);
}

/* Rows that do not stay with their source were copied to x of the slot, and are pointed to there. */
void ll_point_rows(ll_t *mode, const xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const char *x = xep_kit_own_area(&mode->kit, mode->layout.common.x, op->slot);
    const size_t stride = xep_row_stride(mode->parcels[mode->kit.shape->rank].row_bytes);
    slot->in_place = 1;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        const ll_parcel_t *parcel = &mode->parcels[s];
        const ll_pick_t *pick = mode->picks + mode->pick_begin[s], *end = mode->picks + mode->pick_begin[s + 1];
        for (; pick < end; pick++)
            slot->row[pick->row] =
                parcel->stays ? parcel->items + pick->token * parcel->stride : x + pick->row * stride;
    }
}

/* ---- what the core calls ---- */

static xep_status_t find_memory(void *mode, void **base_p, size_t *stride_p)
{
    return xep_in_place_memory(&((ll_t *)mode)->in_place, base_p, stride_p);
}

/* Rows that nobody sent have NULL. To clear those that somebody did costs less than all that there is room for. */
static void forget_rows(const ll_t *mode, ll_slot_t *slot)
{
    for (uint32_t e = 0; e < mode->kit.shape->local_experts; e++)
        memset(slot->row + slot->expert_begin[e], 0, slot->expert_count[e] * sizeof *slot->row);
}

/* A handle ends. Its notices tell where the rows are: the parcels may be those of another dispatch by now. */
static void release(void *opaque, uint32_t number)
{
    ll_t *mode = opaque;
    ll_slot_t *slot = ll_slot(mode, number);
    if (!slot->in_place) return;
    slot->in_place = 0;
    forget_rows(mode, slot);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        if (mode->kit.base[r] != NULL && slot->from[r].rows_at != 0)
            xep_in_place_release(&mode->in_place, r, offset_of(mode, slot->from[r].rows_at - 1), slot->from[r].epoch);
}

const xep_place_ops_t ll_in_place = {.memory = find_memory, .release = release};
