/* SPDX-License-Identifier: BSD-3-Clause */

/** How a buffer ends, and how it begins anew: its requests and its handles end. */
#ifndef EXT_END_H
#define EXT_END_H

#include "ext_library.h"

/** reset() and what close() calls, as methods of Buffer. -1: an exception is set. */
int ext_end_ready(PyObject *module);

#endif
