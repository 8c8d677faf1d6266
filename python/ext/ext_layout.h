/* SPDX-License-Identifier: BSD-3-Clause */

/** Who gets what: the functions that need no group. */
#ifndef EXT_LAYOUT_H
#define EXT_LAYOUT_H

#include "ext_library.h"

/** -1: an exception is set. */
int ext_layout_ready(PyObject *module);

#endif
