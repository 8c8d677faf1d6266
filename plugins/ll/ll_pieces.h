/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Dispatches in pieces: rows that exceed the room of a slot come when the consumer asks for them.
 *
 * All that a rank gets, laid out as in one piece, with its alignment, is cut every B rows: as many as a slot has,
 * rounded down to that alignment, so that each piece is a compact layout of its own. A dispatch brings piece 0. When
 * its notices say that some rank may get more than B rows, all ranks count the indices of all (ll.h, 4), and so know
 * alike that there are P pieces: as many as the rank with the most rows needs; and each source knows in which piece of
 * its owner each of its selections is. Then every rank calls next P - 1 times. That is a dispatch of the same routing,
 * with a turn and notices of its own, and steps 1 to 5 of ll.h, but:
 *
 *  0. The outputs of the piece that is shown go into "returned" of the slot of their reader, at [token][k]: stored,
 *     where the reader is mapped. Then it waits until no put reads them any more: they may be what the slot shows.
 *  1. The packet has the items of those tokens that have a selection in the piece, for some rank; to a rank that is not
 *     mapped go those that it has in the piece.
 *  2. The notice says which piece, and the slot of the writer's handle: ranks that bring different ones all see it.
 *     And what the outputs are, in place of counts, which all know.
 *  5. The receiver numbers its selections over all pieces, and copies those of the piece to their places in it.
 *
 * The combine after piece P - 1 does 0 with its outputs before its offer; then all that a reader sums lies in its own
 * "returned", and is what it would have been in one piece.
 *
 * Why a packet or a notice is not overwritten before it was read: as for those of dispatches; a next piece has a turn.
 * Why "returned" is not: as in ll.h, for owners that are not mapped. Nobody waits for ever: 0 waits for no other rank.
 */
#ifndef XEP_LL_PIECES_H
#define XEP_LL_PIECES_H

#include "ll.h"

/** What a slot keeps of the pieces of its dispatch. */
typedef struct ll_pieces {
    uint64_t count, shown; /* how many; which */
    uint64_t *of;          /* [T][K] in which of its owner each selection is; where there are several */
    uint64_t all_rows;     /* in all of them, aligned */
} ll_pieces_t;

/** Lays them, in the arena. */
void ll_lay_pieces(const ll_t *mode, xep_carve_t *carve, ll_slot_t *slot);

/** Steps of dispatches, next pieces and combines. */
extern const xep_step_t ll_in_pieces_steps[];

/** A combine of several pieces begins: refuses sums at owners, and chooses the steps that it takes. */
xep_status_t ll_choose_pieces(ll_t *mode, xep_op_t *op);

/** xep_plugin_t.next */
xep_status_t ll_next(void *mode, xep_op_t *op);

#endif
