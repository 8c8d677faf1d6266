/* SPDX-License-Identifier: BSD-3-Clause */

/** Groups that grow, and what moves to them. */
#ifndef EXT_GROW_H
#define EXT_GROW_H

#include "ext_library.h"

/** _grow() and _join() of Group, _follow() of Buffer. -1: an exception is set. */
int ext_grow_ready(PyObject *module);

#endif
