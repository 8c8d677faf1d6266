/* SPDX-License-Identifier: BSD-3-Clause */

/** Handle.combine() and combine_async(). */
#ifndef EXT_COMBINE_H
#define EXT_COMBINE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char ext_combine_doc[], ext_combine_async_doc[];

PyObject *ext_combine(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_combine_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

#endif
