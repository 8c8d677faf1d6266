/* SPDX-License-Identifier: BSD-3-Clause */

/** Handle.combine() and combine_async(). */
#ifndef EXT_COMBINE_H
#define EXT_COMBINE_H

#include "ext_handle.h"

extern const char ext_combine_doc[], ext_combine_async_doc[];

PyObject *ext_combine(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_combine_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

/**
 * Expert outputs, as a call was given them: into the fields of args that say of them. made: what they are made of.
 * Objects that are NULL were not given. -1: an exception is set.
 */
int ext_combine_read(const ext_handle_t *handle, PyObject *x, PyObject *topk_weights, PyObject *dtype,
                     xep_combine_args_t *args, ext_element_t *made);

#endif
