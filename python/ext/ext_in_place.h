/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows that are read in place: the memory that they are written into, and a dense array of them. */
#ifndef EXT_IN_PLACE_H
#define EXT_IN_PLACE_H

#include "ext_library.h"

/** Buffer.send_memory(), Handle.gather(). */
extern const char ext_in_place_send_memory_doc[], ext_in_place_gather_doc[];
PyObject *ext_in_place_send_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_in_place_gather(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

#endif
