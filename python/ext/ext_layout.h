/* SPDX-License-Identifier: BSD-3-Clause */

/** Who gets what: the functions that need no group, and Buffer.layout(). */
#ifndef EXT_LAYOUT_H
#define EXT_LAYOUT_H

#include "ext_library.h"

/** These functions and that method. -1: an exception is set. */
int ext_layout_ready(PyObject *module);

#endif
