/* SPDX-License-Identifier: BSD-3-Clause */

/** Buffer.dispatch() and dispatch_async(). */
#ifndef EXT_DISPATCH_H
#define EXT_DISPATCH_H

#include "ext_library.h"

/** These methods. -1: an exception is set. */
int ext_dispatch_ready(PyObject *module);

#endif
