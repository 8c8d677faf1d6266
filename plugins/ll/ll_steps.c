/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The steps of a plain buffer, those where some ranks are not mapped, and which features a buffer has: each has its own
 * steps in its own file. In a plain buffer a packet is read where its source has it, and a notice says that all of it
 * is there. Nor are rows still coming when a dispatch begins (xep_op_t.coming): those are staged, which a buffer on one
 * node never is.
 */
#include "ll_coded.h"
#include "ll_flow.h"
#include "ll_in_place.h"
#include "ll_pieces.h"

/* ---- where some are not: rows come as the wire brings them (ll_flow.h) ---- */

/* A wire that is busy brings the step here again, and so do rows that are coming. */
static xep_status_t send_packets(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_fill_items(mode, op);
    return xep_send_transfers(&mode->kit, op, ll_packet_transfer);
}

/* Mapped ranks, which read the whole packet, are told when all of it is there. */
static xep_status_t send_rows(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_fill_items(mode, op);
    xep_status_t status = ll_send_parts(mode, op);
    if (status == XEP_OK && op->coming != 0) status = XEP_INPROGRESS;
    if (status == XEP_OK) xep_send_stores(&mode->kit, op, ll_store_notice);
    return status;
}

/* Where a receive ring was crowded: the parts that had no room, as it gets some. */
static xep_status_t send_rest(void *mode, xep_op_t *op)
{
    xep_status_t status = xep_step_wait(mode, op), sent = status < 0 ? status : ll_send_all_parts(mode, op);
    return sent == XEP_OK ? status : sent;
}

/* Rows that are here each time to their places. When the words of all were there, all rows are. */
static xep_status_t take_rows(void *mode, xep_op_t *op)
{
    xep_status_t status = xep_step_wait_through(mode, op);
    if (status >= 0 && xep_kit_state(op)->verdict == XEP_OK) ll_unpack_here(mode, op);
    return status;
}

/* Sources that wait for room may go on then, and so may this rank's own parts. */
static xep_status_t take_rows_and_send(void *mode, xep_op_t *op)
{
    xep_status_t status = take_rows(mode, op), others = XEP_OK;
    if (status >= 0 && xep_kit_state(op)->verdict == XEP_OK) others = ll_tell_taken(mode, op);
    if (status >= 0 && others >= 0) others = ll_send_all_parts(mode, op);
    return others < 0 ? others : status;
}

/* ---- lists ---- */

const xep_step_t ll_dispatch_steps[] = {
    {.at = XEP_AT_TELL, .name = "room to send rows", .does = "plan and send", .run = ll_send_mapped},
    {.at = XEP_AT_HEAR,
     .name = "rows",
     .does = "wait for rows",
     .run = xep_step_wait,
     .word = xep_notices_word,
     .announced = XEP_NOTICE_ANNOUNCED,
     .counts_rows = 1,
     .receives = 1},
    {.at = XEP_AT_AGREE, .name = "agreement", .does = "take notices", .run = ll_take_notices},
    {.at = XEP_AT_PLACES, .name = "agreement", .does = "find places", .run = ll_receive},
    {.at = XEP_AT_ROWS, .name = "rows", .does = "copy rows", .run = ll_unpack_rows, .agreed = 1},
    {.at = XEP_AT_END,
     .name = "statistics",
     .does = "count",
     .run = ll_count_stats,
     .agreed = 1,
     .kinds = XEP_KIND_PLAIN},
    {0},
};

/* "read" is said where offers differ, too, and only the sums are left out: the next drain of the owners waits. */
const xep_step_t ll_combine_steps[] = {
    {.at = XEP_AT_DRAIN, XEP_COMBINE_STEP_DRAIN},
    {.at = XEP_AT_INPUT, .name = "copies", .does = "copy in", .run = ll_copy_outputs},
    {.at = XEP_AT_OFFER,
     .name = "room to send rows",
     .does = "offer",
     .run = xep_step_store,
     .store = xep_combine_store_offer},
    {.at = XEP_AT_READY, .name = "expert outputs", .does = "wait for outputs", .receives = 1, XEP_COMBINE_STEP_READY},
    {.at = XEP_AT_READY, XEP_COMBINE_STEP_AGREE},
    {.at = XEP_AT_SUM, .name = "sums", .does = "sum", .run = ll_sum_pulled, .agreed = 1},
    {.at = XEP_AT_READ, XEP_COMBINE_STEP_TELL_READ},
    {0},
};

#define TAKE_ROWS \
    .at = XEP_AT_ROWS, .name = "rows", .does = "copy rows", .word = ll_rows_word, .hears_through = 1, .counts_rows = 1

/* Where some ranks are not mapped. */
static const xep_step_t wired[] = {
    {.at = XEP_AT_TELL, .does = "plan", .run = ll_begin_flows},
    {.at = XEP_AT_TELL, .run = send_packets},
    {.at = XEP_AT_TELL, .does = "send rows", .run = send_rows},
    {.at = XEP_AT_HEAR, .run = xep_step_wait_through, .hears_through = 1},
    {TAKE_ROWS, .run = take_rows},
    {.at = XEP_AT_FLUSH, XEP_STEP_FLUSH},
    {.at = XEP_AT_INPUT, .run = ll_copy_all},
    {.at = XEP_AT_OFFER, .run = xep_step_send, .transfers = ll_returned_transfer},
    {.at = XEP_AT_SUM, .run = ll_sum},
    {.at = XEP_AT_LEAVE, XEP_STEP_FLUSH},
    {0},
};

/* Where a receive ring may be too small for all items of a source. */
static const xep_step_t crowded[] = {
    {.at = XEP_AT_PLACES, .run = ll_receive},
    {.at = XEP_AT_PLACES, .name = "agreement", .does = "find items", .run = ll_find_items, .agreed = 1},
    {TAKE_ROWS, .run = take_rows_and_send},
    {.at = XEP_AT_ROWS,
     .name = "credits",
     .does = "send rows",
     .run = send_rest,
     .word = ll_room_word,
     .counts_rows = 1},
    {0},
};

/* The later ones replace steps of those before; masks exclude crowds, rows in place and pieces. */
void ll_choose_steps(ll_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    const int wires = !mode->kit.all_mapped;
    const xep_step_t *const features[] = {
        wires ? wired : NULL,
        mode->layout.recv_ring_bytes != 0 ? crowded : NULL,
        mode->kit.env->out != NULL ? ll_without_steps : NULL,
        shape->sends_in_place ? ll_in_place_steps : NULL,
        shape->in_pieces ? ll_in_pieces_steps : NULL,
        ll_coded_steps,
        wires ? ll_coded_wired_steps : NULL,
    };
    xep_steps_choose(mode, features, sizeof features / sizeof features[0],
                     shape->by_nodes ? mode->nodes.through : NULL);
}
