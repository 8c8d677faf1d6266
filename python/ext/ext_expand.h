/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows by expert on a device. */
#ifndef EXT_EXPAND_H
#define EXT_EXPAND_H

#include "ext_library.h"

/** expand() and reduce() of Handle. -1: an exception is set. */
int ext_expand_ready(PyObject *module);

#endif
