/* SPDX-License-Identifier: BSD-3-Clause */

/* The steps of all buffers: each says who takes it. A plain buffer takes those that are "with" nothing. */
#include "normal_steps.h"

#include "normal_coded.h"
#include "normal_masks.h"
#include "normal_nodes.h"
#include "normal_pieces.h"

/* What a buffer has. */
enum {
    MASKS = 1,                  /* ranks may be left out: normal_masks.h */
    GRANTS = 2,                 /* and receivers may have to say where rows go: normal_grants.c */
    NODES = 4,                  /* rows go once to each node: normal_nodes.h */
    PIECES = 8,                 /* rows may come in pieces: normal_pieces.h */
    IN_PLACE = 16,              /* rows may be read in place: normal_in_place.c */
    WIRED = 32,                 /* some rank is not mapped; with GRANTS and NODES one always is */
    BY_SELECTION = 64,          /* of a dispatch: sums are in that order */
    DIRECT = 512,               /* rows stay on devices, but for those that are cast: normal_direct.c */
    CASTS = XEP_STEPS_OF_CASTS, /* operations that cast: normal_cast.c, normal_coded.h */
    NEXT = XEP_STEPS_OF_NEXT
};

/* What steps have in common that stand for one another. */
#define SEND_RECORDS    .name = "records to go out", .does = "send records", .store = normal_store_record
#define WAIT_FOR_COUNTS .name = "counts", .does = "wait for counts", .word = normal_counts_word
#define FIND_PLACES     .name = "places", .does = "find places", .agreed = 1
#define MOVE_ROWS       .name = "rows to go out", .does = "rows", .transfers = normal_dispatch_transfer
#define GO_DIRECT       .name = "rows to go out", .does = "rows", .transfers = normal_direct_transfer
#define WAIT_FOR_ROWS   .name = "rows", .does = "wait for rows", .word = normal_done_word
#define OFFER           .name = "rows to go out", .does = "offer", .store = xep_combine_store_offer
#define OFFER_AND_BEGIN .name = "rows to go out", .does = "offer", .store = normal_store_offer_and_begin
#define OUT             "ranks that are out to store nothing any more"
#define DONE_ANNOUNCED \
    .offset = offsetof(normal_line_t, digest) - offsetof(normal_line_t, done), .bytes = sizeof(normal_digest_t)

/* Numbers are those of normal.h. A next piece is a dispatch behind the outputs of the piece before. */
const xep_step_t normal_dispatch_steps[] = {
    {.name = "outputs", .does = "return outputs", .run = normal_return_outputs, .with = NEXT | PIECES},
    {XEP_STEP_PUT_OUTPUTS, .transfers = normal_outputs_transfer, .with = NEXT | PIECES},
    {XEP_STEP_FLUSH_OUTPUTS, .with = NEXT | PIECES},
    {.name = "memory", .does = "take memory", .run = xep_in_place_take, .with = IN_PLACE},
    {.name = "rows that are coming", .does = "cast", .run = normal_cast_rows, .with = CASTS},
    {.name = "pieces", .does = "begin pieces", .run = normal_begin_pieces, .with = PIECES, .without = NEXT},
    {.name = "ranks that are out", .does = "count them", .run = normal_note_outs, .with = GRANTS},
    {.name = "sums", .does = "order them", .run = normal_order_by_selection, .with = BY_SELECTION, .without = NEXT},
    {.name = "feeds", .does = "begin feeds", .run = normal_begin_traffic, .with = NODES},
    {.name = "rows to put", .does = "list them", .run = normal_list_puts, .with = WIRED, .without = NODES},
    /* 2 */
    {SEND_RECORDS, .run = xep_step_store, .without = WIRED},
    {SEND_RECORDS, .run = xep_step_send, .transfers = normal_record_transfer, .with = WIRED, .without = NODES},
    {SEND_RECORDS, .run = xep_step_send, .transfers = normal_feed_record_transfer, .with = NODES},
    /* 3 */
    {WAIT_FOR_COUNTS, .run = xep_step_wait, .without = NODES},
    {WAIT_FOR_COUNTS, .run = xep_step_wait_through, .hears_through = 1, .with = NODES},
    {.name = "agreement", .does = "agree", .run = normal_agree, .without = MASKS | PIECES},
    {.name = "agreement", .does = "agree", .run = normal_agree_in_pieces, .with = PIECES, .without = NEXT},
    {.name = "agreement", .does = "agree", .run = normal_agree_on_next, .with = NEXT | PIECES},
    {.name = OUT, .does = "agree", .run = normal_agree_masked, .with = MASKS},
    {.name = "agreement", .does = "check rows in place", .run = normal_check_places, .agreed = 1, .with = IN_PLACE},
    {.name = "memory", .does = "give memory back", .run = xep_in_place_return, .with = IN_PLACE},
    {.name = "questions for room to go out", .does = "ask for room", .run = normal_ask_for_grants, .with = GRANTS},
    {.name = "grants",
     .does = "wait for room",
     .run = normal_await_grants,
     .word = normal_granted_word,
     .with = GRANTS},
    {FIND_PLACES, .run = normal_find_mapped_places, .without = WIRED},
    {FIND_PLACES, .run = normal_find_places, .with = WIRED, .without = NODES},
    {FIND_PLACES, .run = normal_find_places_of_locals, .with = NODES},
    {.name = "places", .does = "leave rows", .run = normal_leave_rows, .agreed = 1, .with = IN_PLACE},
    /* 4 and 5 */
    {MOVE_ROWS, .run = normal_move_mapped, .store = normal_store_done, .without = WIRED | MASKS},
    {MOVE_ROWS, .run = normal_move, .store = normal_store_done, .with = WIRED, .without = MASKS | NODES | DIRECT},
    {MOVE_ROWS, .run = normal_move, .store = normal_store_done, .with = DIRECT | CASTS},
    {GO_DIRECT, .run = normal_move_direct, .store = normal_store_done, .with = DIRECT, .without = CASTS},
    {MOVE_ROWS, .run = normal_move_masked, .store = normal_store_done_masked, .with = MASKS},
    {.name = "rows to pass",
     .does = "rows",
     .run = normal_move_by_nodes,
     .word = normal_passing_word,
     .rows_bits = XEP_FEED_ROWS_BITS,
     .agreed = 1,
     .with = NODES},
    {.name = "signals to go out",
     .does = "send signals",
     .run = normal_signal_by_nodes,
     .store = normal_store_done,
     .with = NODES},
    /* 6 */
    {WAIT_FOR_ROWS, .run = xep_step_wait, .without = WIRED | MASKS},
    {WAIT_FOR_ROWS, .run = normal_wait_rows, .with = WIRED, .without = MASKS | NODES},
    {WAIT_FOR_ROWS, .run = normal_wait_rows_masked, .announced = {DONE_ANNOUNCED}, .with = MASKS},
    {WAIT_FOR_ROWS, .run = xep_step_wait_through, .hears_through = 1, .with = NODES},
    {.name = "digests", .does = "compare digests", .run = normal_compare_digests, .without = MASKS},
    {.name = OUT, .does = "compare digests", .run = normal_compare_masked, .with = MASKS},
    {.name = "rows", .does = "show", .run = normal_show_piece, .agreed = 1, .with = PIECES},
    {.name = "rows", .does = "show", .run = normal_point_rows, .agreed = 1, .with = IN_PLACE},
    {XEP_STEP_FLUSH, .with = WIRED},
    {.name = "the end", .does = "end", .run = normal_tell_rows, .without = PIECES},
    {.name = "the end", .does = "end", .run = normal_tell_pieces, .with = PIECES, .without = NEXT},
    {0},
};

const xep_step_t normal_combine_steps[] = {
    XEP_COMBINE_STEP_DRAIN,
    /* 2 */
    {.name = "input", .does = "copy in", .run = normal_fill, .without = PIECES},
    {.name = "input", .does = "copy in", .run = normal_fill_pieces, .with = PIECES},
    /* 3 */
    {OFFER, .run = xep_step_store, .without = WIRED},
    {OFFER, .run = xep_step_send, .transfers = normal_combine_transfer, .with = WIRED,
     .without = GRANTS | NODES | CASTS | DIRECT},
    {.name = "rows to go out", .does = "put rows", .run = normal_return_direct, .with = DIRECT, .without = CASTS},
    {OFFER, .run = xep_step_send, .transfers = normal_direct_offer_transfer, .with = DIRECT, .without = CASTS},
    {OFFER, .run = xep_step_send, .transfers = normal_coded_transfer, .with = WIRED | CASTS,
     .without = GRANTS | NODES | PIECES},
    {OFFER_AND_BEGIN, .run = xep_step_send, .transfers = normal_combine_transfer, .with = GRANTS, .without = CASTS},
    {OFFER_AND_BEGIN, .run = xep_step_send, .transfers = normal_coded_transfer, .with = GRANTS | CASTS},
    {OFFER, .run = xep_step_send, .transfers = normal_node_offer_transfer, .with = NODES},
    {.name = "outputs of the node",
     .does = "wait for the node",
     .run = xep_step_wait,
     .word = normal_locals_word,
     .with = NODES},
    {.name = "sums of the node to go out", .does = "sum for others", .run = normal_return_sums, .with = NODES},
    /* 4 */
    {.name = "offers",
     .does = "wait for outputs",
     .run = xep_step_wait,
     .word = xep_combine_ready_word,
     .announced = XEP_COMBINE_ANNOUNCED},
    XEP_COMBINE_STEP_AGREE,
    /* 5 */
    {.name = "places", .does = "find places", .run = normal_take_begins, .agreed = 1, .with = GRANTS},
    {.name = "sums", .does = "sum", .run = normal_sum, .agreed = 1, .without = MASKS | NODES | PIECES | CASTS | DIRECT},
    {.name = "sums on the device",
     .does = "sum",
     .run = normal_sum_direct,
     .agreed = 1,
     .with = DIRECT,
     .without = CASTS},
    {.name = "sums", .does = "sum", .run = normal_sum_listed, .agreed = 1, .with = MASKS, .without = CASTS},
    {.name = "sums",
     .does = "decode and sum",
     .run = normal_sum_listed,
     .agreed = 1,
     .with = CASTS,
     .without = NODES | PIECES},
    {.name = "sums", .does = "sum", .run = normal_sum_pieces, .agreed = 1, .with = PIECES},
    {.name = "sums of other nodes",
     .does = "sum",
     .run = normal_sum_by_nodes,
     .word = normal_summed_word,
     .rows_bits = XEP_FEED_ROWS_BITS,
     .with = NODES},
    /* 6 */
    {XEP_STEP_FLUSH, .with = WIRED},
    XEP_COMBINE_STEP_TELL_READ,
    {0},
};

void normal_choose_steps(normal_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    unsigned features = (mode->kit.env->out != NULL ? MASKS : 0) | (mode->grants ? GRANTS : 0) |
                        (shape->by_nodes ? NODES : 0) | (shape->in_pieces ? PIECES : 0) |
                        (shape->sends_in_place ? IN_PLACE : 0) | (mode->kit.all_mapped ? 0 : WIRED) |
                        (shape->sums_by_selection ? BY_SELECTION : 0) | (mode->kit.env->direct != NULL ? DIRECT : 0);
    xep_steps_choose(mode, features, shape->by_nodes ? mode->nodes->who.through : NULL);
}
