/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Dispatches in pieces: rows that exceed the room of a slot come when the consumer asks for them.
 *
 * After step 3 of a dispatch (normal.h) all ranks know the rows from rank to rank, and so that there are P pieces: as
 * many as the rank with the most rows needs for slots of B rows. Piece i of rank d is rows i * B to (i + 1) * B of what
 * d gets, in the order of always; of a source these are some of the rows that it has for d, one behind the other. The
 * dispatch brings piece 0. Then every rank calls next P - 1 times. Of piece i - 1, which is shown, and piece i that is
 * a dispatch of the same routing, with a turn, records and steps of its own, but:
 *
 *  1. The outputs of piece i - 1 go into the area "returned" of the slot of their reader s: stored, where s is mapped.
 *     There they stay until the combine: rows for s by owner, and for each owner in the order of the tokens of s.
 *  2. When no put reads these outputs any more, which may be what the slot shows: to each s, the record. It says which
 *     piece comes, of which dispatch, and of what kind the outputs are, or that there are none; and that s may write
 *     into this rank's slot.
 *  3. The records are compared, and all come to the same verdict.
 *
 * The combine after piece P - 1 does step 1 with its outputs before its offer; then all that a reader sums lies in its
 * own "returned".
 *
 * Nobody waits for ever: steps 1 and 2 wait for no word, so the records that step 3 waits for come when all ranks have
 * called next; and then step 4 waits for nobody. Rows of piece i - 1 are not written over before their consumer has
 * done with them: it called next, and what the wire still read of them has left. Why a record is not written over
 * before it was read: normal.h. "Returned" is not written over before it was summed: normal.h has it, for owners that
 * are not mapped. test/model/model_pieces.pml.
 */
#ifndef XEP_NORMAL_PIECES_H
#define XEP_NORMAL_PIECES_H

#include "normal_shared.h"

/** Steps of dispatches, next pieces and combines. */
extern const xep_step_t normal_in_pieces_steps[];

/** xep_plugin_t.next */
xep_status_t normal_next(void *mode, xep_op_t *op);

#endif
