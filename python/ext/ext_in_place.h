/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows that are read in place: the memory that they are written into, and a dense array of them. */
#ifndef EXT_IN_PLACE_H
#define EXT_IN_PLACE_H

#include "ext_library.h"

/** send_memory() of Buffer, combine_input() and gather() of Handle. -1: an exception is set. */
int ext_in_place_ready(PyObject *module);

#endif
