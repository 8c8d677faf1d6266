/* SPDX-License-Identifier: BSD-3-Clause */

/** Received rows of mode normal, arranged by expert, and summed again: copies on this rank, in host memory. */
#ifndef EXT_EXPERTS_H
#define EXT_EXPERTS_H

#include "ext_python.h"

/** -1: an exception is set. */
int ext_experts_ready(PyObject *module);

#endif
