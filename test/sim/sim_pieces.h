/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches in pieces over a wire that takes its time. */
#ifndef SIM_PIECES_H
#define SIM_PIECES_H

/** What is put of a piece has left before others write the next one over it. */
void sim_pieces(void **state);

#endif
