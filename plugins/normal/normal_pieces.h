/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Dispatches in pieces: rows that exceed the room of a slot come when the consumer asks for them.
 *
 * After step 3 of a dispatch (normal.h) all ranks know the rows from rank to rank, and so that there are P pieces: as
 * many as the rank with the most rows needs for slots of B rows. Piece i of rank d is rows i * B to (i + 1) * B of what
 * d gets, in the order of always; of a source these are some of the rows that it has for d, one behind the other. The
 * dispatch brings piece 0, by the steps of always. Then every rank calls next P - 1 times; of piece i - 1, which is
 * shown, and piece i, in an operation of epoch n:
 *
 *  1. The outputs of piece i - 1 go into the area "returned" of the slot of their reader s: stored, where s is mapped.
 *     There they stay until the combine: rows for s by owner, and for each owner in the order of the tokens of s.
 *  2. When no put reads these outputs any more, which may be what the slot shows: to each s, the offer (of what kind
 *     they are, or that there are none), then  s.opened = n:  they are there, and s may write into this rank's slot.
 *  3. When opened = n is here of all: the offers are compared, and all come to the same verdict.
 *  4. Unless the verdict is an error: rows and metadata of piece i to the slot of d. To each d, also one that gets
 *     nothing: what this rank has concluded, then  d.arrived = n.
 *  5. When arrived = n is here of all, and all have concluded the same: piece i is shown. Done when the wire is
 *     flushed.
 *
 * The combine after piece P - 1 does step 1 with its outputs before its offer; then all that a reader sums lies in its
 * own "returned".
 *
 * The two words lie in a line for (slot of the heap's owner, rank), whose only writer is that rank; they hold epochs
 * and only grow. A slot has one operation at a time, so what a line says is of that one.
 *
 * Nobody waits for ever: steps 1 and 2 wait for no word, so those that step 3 waits for come when all ranks have
 * called next; and then step 4 waits for nobody. Rows of piece i - 1 are not written over before their consumer has
 * done with them: it called next, and what the wire still read of them has left. An offer is not written over before
 * it was read: the next one comes after the arrived of all, which each tells after step 3. "Returned" is not written
 * over before it was summed: normal.h has it, for owners that are not mapped. test/model/model_pieces.pml.
 */
#ifndef XEP_NORMAL_PIECES_H
#define XEP_NORMAL_PIECES_H

#include "normal_shared.h"

/** One line per (slot, rank), in XEP_REGION_CONTROL; written by that rank, read by the heap's owner. */
typedef struct normal_piece_line {
    _Atomic uint64_t opened;  /* next of this epoch: outputs are here, the writer's slot takes rows */
    _Atomic uint64_t arrived; /* next of this epoch: all of the writer's rows are here */
    xep_offer_t offer;        /* published by opened */
    uint64_t concluded;       /* published by arrived: normal_state_t.concluded_piece of the writer */
    uint64_t reserved;
} normal_piece_line_t;
_Static_assert(sizeof(normal_piece_line_t) == 64, "a cache line");

/** Steps of a dispatch, in place of those of always: the slot has one piece; agreement; rows; what the user sees. */
xep_status_t normal_begin_pieces(void *mode, xep_op_t *op);
xep_status_t normal_agree_in_pieces(void *mode, xep_op_t *op);
xep_status_t normal_move_piece(void *mode, xep_op_t *op);
xep_status_t normal_show_piece(void *mode, xep_op_t *op);
xep_status_t normal_tell_pieces(void *mode, xep_op_t *op);

/** Moves this rank's rows of the piece; transfers go out meanwhile. */
xep_status_t normal_move_rows_of_piece(normal_t *mode, xep_op_t *op, xep_transfer_fn transfers);

/** Outputs of a piece, for a reader that is not mapped: normal_returned_transfer(). */
void normal_kept_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                          xep_transfer_t *transfer);

/** Steps of a combine, the first one of next, too: outputs go where readers will find them; what is sent; sums. */
xep_status_t normal_fill_pieces(void *mode, xep_op_t *op);
int normal_pieces_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer);
xep_status_t normal_sum_pieces(void *mode, xep_op_t *op);

extern const xep_step_t normal_next_steps[];

/** xep_plugin_t.next */
xep_status_t normal_next(void *mode, xep_op_t *op);

#endif
