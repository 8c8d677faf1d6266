/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The steps of all buffers: each says who takes it. A plain buffer takes those that are "with" nothing: there a packet
 * is read where its source has it, and a notice says that all of it is there. Nor are rows still coming when a dispatch
 * begins (xep_op_t.coming): those are staged, which a buffer on one node never is.
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

/* What a buffer has. */
enum {
    MASKS = 1,     /* ranks may be left out */
    WIRED = 2,     /* some rank is not mapped: ll_flow.h */
    CROWDED = 4,   /* and what is delivered of a source may have not room for all items */
    PIECES = 8,    /* rows may come in pieces: ll_pieces.h */
    IN_PLACE = 16, /* rows may be read in place: ll_in_place.h */
    RETURNS = 32,  /* outputs may go into "returned" of their readers: where it has WIRED or PIECES */
    NEXT = XEP_STEPS_OF_NEXT,
    CASTS = XEP_STEPS_OF_CASTS /* combines of ll_coded.h */
};

/* What steps have in common that stand for one another. */
#define WAIT_FOR_NOTICES                                                                                  \
    .name = "rows", .does = "wait for rows", .word = xep_notices_word, .announced = XEP_NOTICE_ANNOUNCED, \
    .rows_bits = XEP_FEED_ROWS_BITS, .receives = 1
#define FIND_PLACES .name = "agreement", .does = "find places"
#define TAKE_ROWS \
    .name = "rows", .does = "copy rows", .word = ll_rows_word, .hears_through = 1, .rows_bits = XEP_FEED_ROWS_BITS
#define OFFER .name = "room to send rows", .does = "offer", .store = xep_combine_store_offer

/* Numbers are those of ll.h. A next piece is a dispatch behind the outputs of the piece before. */
const xep_step_t ll_dispatch_steps[] = {
    {.name = "outputs", .does = "return outputs", .run = ll_return_outputs, .with = NEXT},
    {XEP_STEP_PUT_OUTPUTS, .transfers = ll_outputs_transfer, .with = NEXT},
    {XEP_STEP_FLUSH_OUTPUTS, .with = NEXT},
    /* 1 and 2 */
    {.name = "memory", .does = "take memory", .run = ll_in_place_take, .with = IN_PLACE},
    {.name = "room to send rows", .does = "plan and send", .run = ll_send_mapped, .without = WIRED},
    {.name = "room to send rows", .does = "plan", .run = ll_begin_flows, .with = WIRED},
    {.name = "room to send rows", .does = "plan and send", .run = send_packets, .with = WIRED},
    {.name = "room to send rows", .does = "send rows", .run = send_rows, .with = WIRED},
    /* 3 */
    {WAIT_FOR_NOTICES, .run = xep_step_wait, .without = WIRED},
    {WAIT_FOR_NOTICES, .run = xep_step_wait_through, .hears_through = 1, .with = WIRED},
    {.name = "agreement", .does = "take notices", .run = ll_take_notices},
    {.name = "agreement", .does = "find rows in place", .run = ll_in_place_find, .with = IN_PLACE},
    /* 4 */
    {FIND_PLACES, .run = ll_receive, .without = MASKS | PIECES},
    {FIND_PLACES, .run = ll_receive_masked, .with = MASKS},
    {FIND_PLACES, .run = ll_receive_piece, .with = PIECES},
    {.name = "agreement", .does = "find items", .run = ll_find_items, .agreed = 1, .with = CROWDED, .without = PIECES},
    /* 5 */
    {.name = "rows", .does = "copy rows", .run = ll_unpack_rows, .agreed = 1, .without = WIRED},
    {TAKE_ROWS, .run = take_rows, .with = WIRED, .without = CROWDED},
    {TAKE_ROWS, .run = take_rows_and_send, .with = CROWDED},
    {.name = "credits",
     .does = "send rows",
     .run = send_rest,
     .word = ll_room_word,
     .rows_bits = XEP_FEED_ROWS_BITS,
     .with = CROWDED},
    {XEP_STEP_FLUSH, .with = WIRED},
    {.name = "statistics", .does = "count", .run = ll_count_stats, .agreed = 1, .without = NEXT},
    {.name = "rows in place", .does = "point to rows", .run = ll_in_place_end, .with = IN_PLACE, .without = NEXT},
    {0},
};

/* "read" is said where offers differ, too, and only the sums are left out: the next drain of the owners waits. */
const xep_step_t ll_combine_steps[] = {
    XEP_COMBINE_STEP_DRAIN,
    /* 2 */
    {.name = "copies", .does = "copy in", .run = ll_copy_outputs, .without = RETURNS},
    {.name = "copies", .does = "copy in", .run = ll_copy_or_return, .with = RETURNS},
    /* 3 */
    {OFFER, .run = xep_step_store, .without = WIRED},
    {OFFER, .run = xep_step_send, .transfers = ll_returned_transfer, .with = WIRED, .without = CASTS},
    {OFFER, .run = xep_step_send, .transfers = ll_coded_transfer, .with = WIRED | CASTS},
    /* 4 */
    {.name = "expert outputs",
     .does = "wait for outputs",
     .run = xep_step_wait,
     .word = xep_combine_ready_word,
     .announced = XEP_COMBINE_ANNOUNCED,
     .receives = 1},
    XEP_COMBINE_STEP_AGREE,
    /* 5 and 6 */
    {.name = "sums", .does = "sum", .run = ll_sum_pulled, .agreed = 1, .without = RETURNS | CASTS},
    {.name = "sums", .does = "sum", .run = ll_sum, .agreed = 1, .with = RETURNS, .without = CASTS},
    {.name = "sums", .does = "decode and sum", .run = ll_sum_coded, .agreed = 1, .with = CASTS},
    {XEP_STEP_FLUSH, .with = WIRED},
    XEP_COMBINE_STEP_TELL_READ,
    {0},
};

void ll_choose_steps(ll_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    const int wired = !mode->kit.all_mapped;
    unsigned features = (mode->kit.env->out != NULL ? MASKS : 0) | (wired ? WIRED : 0) |
                        (mode->layout.recv_ring_bytes != 0 ? CROWDED : 0) | (shape->in_pieces ? PIECES : 0) |
                        (shape->sends_in_place ? IN_PLACE : 0) | (wired || shape->in_pieces ? RETURNS : 0);
    xep_steps_choose(mode, features, shape->by_nodes ? mode->nodes.through : NULL);
}
