/* SPDX-License-Identifier: BSD-3-Clause */

/** Groups that grow, and what moves to them: methods of Group and Buffer. */
#ifndef EXT_GROW_H
#define EXT_GROW_H

#include "ext_library.h"

/** _grow(group, path, publish, newcomers, timeout, anywhere) of a Group: makes group, which Python has made. */
PyObject *ext_grow_group(PyObject *self, PyObject *args);

/** _join(path, lookup, timeout) of a Group that Python has made and that is not open. */
PyObject *ext_grow_join(PyObject *self, PyObject *args);

/** _follow(old, group) of a Buffer that Python has made: old is a Buffer, or None. */
PyObject *ext_grow_follow(PyObject *self, PyObject *args);

#endif
