/* SPDX-License-Identifier: BSD-3-Clause */

/** Buffer.dispatch() and dispatch_async(). */
#ifndef EXT_DISPATCH_H
#define EXT_DISPATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char ext_dispatch_doc[], ext_dispatch_async_doc[];

PyObject *ext_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_dispatch_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

#endif
