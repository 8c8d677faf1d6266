/* SPDX-License-Identifier: BSD-3-Clause */

/** The rows of a handle as arrays of one package or another: Handle.recv, numpy() and torch(). */
#ifndef EXT_SHOW_H
#define EXT_SHOW_H

#include "ext_library.h"

/** These, of Handle. -1: an exception is set. */
int ext_show_ready(PyObject *module);

#endif
