/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches in pieces over a wire that takes its time. */
#ifndef SIM_PIECES_H
#define SIM_PIECES_H

#include "sim_cases.h"

/** A dispatch in pieces of three rows, with outputs, its combine and its end: for ranks of sim_small_shape. */
void sim_pieces_script(sim_run_t *run);

/** What is put of a piece has left before others write the next one over it. */
void sim_pieces(void **state);

#endif
