/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches whose rows come in pieces: the next piece, the outputs of one, and all of them in a loop. */
#ifndef EXT_PIECES_H
#define EXT_PIECES_H

#include "ext_library.h"

/** next(), next_async(), give() and pieces() of Handle. -1: an exception is set. */
int ext_pieces_ready(PyObject *module);

#endif
