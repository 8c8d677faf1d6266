/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch where some ranks are not mapped: rows come as the wire brings them (ll_flow.h). */
#include "ll_flow.h"

/* ---- as a source ---- */

/* A wire that is busy brings the step here again, and so do rows that are coming. */
static xep_status_t send_parcels(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_fill_items(mode, op);
    xep_status_t status = xep_send_transfers(&mode->kit, op, ll_parcel_transfer);
    if (status == XEP_INPROGRESS) ll_relay(mode, op);
    return status;
}

/* Mapped ranks, which read the whole parcel, are told when all of it is there. */
static xep_status_t send_rows(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_fill_items(mode, op);
    xep_status_t status = ll_send_parts(mode, op);
    if (status == XEP_OK && op->coming != 0) status = XEP_INPROGRESS;
    if (status == XEP_INPROGRESS) ll_relay(mode, op);
    if (status == XEP_OK) xep_send_stores(&mode->kit, op, ll_store_notice);
    return status;
}

/* Where an inbox was crowded: the parts that had no room, as it gets some. */
static xep_status_t send_rest(void *mode, xep_op_t *op)
{
    xep_status_t status = xep_step_wait(mode, op), sent = status < 0 ? status : ll_send_all_parts(mode, op);
    return sent == XEP_OK ? status : sent;
}

/* ---- as a receiver ---- */

/* Behind the look at the words: when all were there, all that this rank forwards are relayed. */
static xep_status_t wait_and_relay(void *mode, xep_op_t *op)
{
    xep_status_t status = xep_step_wait(mode, op);
    ll_relay(mode, op);
    return status;
}

/* Rows that are here each time to their places. When the words of all were there, all rows are, and were relayed. */
static xep_status_t take_rows(void *mode, xep_op_t *op)
{
    xep_status_t status = wait_and_relay(mode, op);
    if (status >= 0 && xep_kit_state(op)->verdict == XEP_OK) ll_unpack_here(mode, op);
    return status;
}

/* Also whoever is kept out by them may go on, and so does this rank where it is kept out. */
static xep_status_t take_rows_and_send(void *mode, xep_op_t *op)
{
    xep_status_t status = take_rows(mode, op), others = XEP_OK;
    if (status >= 0 && xep_kit_state(op)->verdict == XEP_OK) others = ll_tell_taken(mode, op);
    if (status >= 0 && others >= 0) others = ll_send_all_parts(mode, op);
    return others < 0 ? others : status;
}

/* ---- steps ---- */

const xep_step_t ll_wired_send[] = {
    {.name = "room to send rows", .does = "plan", .run = ll_begin_flows},
    {.name = "room to send rows", .does = "plan and send", .run = send_parcels},
    {.name = "room to send rows", .does = "send rows", .run = send_rows},
    {.name = "rows",
     .does = "wait for rows",
     .run = wait_and_relay,
     .word = xep_notices_word,
     .announced = XEP_NOTICE_ANNOUNCED,
     .relayed = 1,
     .rows_bits = XEP_FEED_ROWS_BITS,
     .receives = 1},
    {0},
};

#define STEP_TAKE(_run)                                                                       \
    {                                                                                         \
        .name = "rows", .does = "copy rows", .run = _run, .word = ll_rows_word, .relayed = 1, \
        .rows_bits = XEP_FEED_ROWS_BITS                                                       \
    }

const xep_step_t ll_wired_take[] = {STEP_TAKE(take_rows), XEP_STEP_FLUSH, {0}};

const xep_step_t ll_crowded_take[] = {
    STEP_TAKE(take_rows_and_send),
    {.name = "credits", .does = "send rows", .run = send_rest, .word = ll_room_word, .rows_bits = XEP_FEED_ROWS_BITS},
    XEP_STEP_FLUSH,
    {0},
};

const xep_step_t ll_step_items = {.name = "agreement", .does = "find items", .run = ll_find_items, .agreed = 1};
