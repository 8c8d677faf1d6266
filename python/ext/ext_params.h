/* SPDX-License-Identifier: BSD-3-Clause */

/** What a buffer is made with: the arguments of Buffer, and how much memory they take. */
#ifndef EXT_PARAMS_H
#define EXT_PARAMS_H

#include "ext_library.h"

/**
 * Those of Buffer. *group_p: what stands in the place of the group, as it is; borrowed. params->mode points into
 * the string of the caller, who keeps it for the call: longer it is not needed. params->owners and replicas point into
 * what *arrays_p, a new reference or NULL, keeps; its last item is the plan of the buffer, or None. -1: an exception is
 * set.
 */
int ext_params_read(PyObject *const *args, Py_ssize_t nargs, PyObject *keywords, PyObject **group_p,
                    PyObject **arrays_p, xep_buffer_params_t *params);

/** buffer_size(), with the signature of Buffer: in the place of its group is the number of ranks. */
extern const char ext_params_size_doc[];
PyObject *ext_params_size(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords);

#endif
