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

/**
 * What balance says: a word, a function, or NULL. *plan_p: of a function, a new reference, which lives as long as the
 * buffer; else unchanged. -1: an exception is set.
 */
int ext_plan_read(PyObject *balance, PyObject **plan_p, xep_buffer_params_t *params);

/** Raises what the function raised in the last dispatch. 0: nothing. plan: may be NULL. */
int ext_plan_raise(PyObject *plan);

#endif
