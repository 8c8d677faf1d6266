/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatch where all ranks are mapped: a parcel is read where its source has it, so nothing comes in parts, nobody
 * passes anything on, and no inbox is crowded. Nor are rows still coming when it begins (xep_op_t.coming): those are
 * staged, which a buffer on one node never is.
 */
#include "ll_in_place.h"

/* Ranks that are told read the whole parcel. */
static xep_status_t send(void *mode, xep_op_t *op)
{
    ll_fill_items(mode, op);
    return xep_step_send(mode, op);
}

/*
 * All rows were there before their notices, and the step before, which has listed them, ended in the same call. Where
 * none is moved, the user has those that were given in place again.
 */
static xep_status_t take_rows(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    if (xep_kit_state(op)->verdict != XEP_OK) {
        xep_in_place_return(&mode->in_place, &ll_state(op)->in_place);
        return XEP_OK;
    }
    ll_count_stats(mode, op);
    ll_unpack_rows(mode, op);
    if (op->dispatch->flags & XEP_DISPATCH_IN_PLACE) ll_point_rows(mode, op);
    return XEP_OK;
}

const xep_step_t ll_mapped_steps[] = {
    {.name = "room to send rows", .does = "plan and send", .run = send, .store = ll_store_notice},
    {.name = "rows",
     .does = "wait for rows",
     .run = xep_step_wait,
     .word = xep_notices_word,
     .announced = XEP_NOTICE_ANNOUNCED,
     .receives = 1},
    {.name = "agreement", .does = "find places", .run = ll_receive},
    {.name = "rows", .does = "copy rows", .run = take_rows},
    {0},
};
