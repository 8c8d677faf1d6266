/* SPDX-License-Identifier: BSD-3-Clause */

/** Plans of balance that a function of the caller's makes: xep.plan.Plan calls it, and keeps what it raises. */
#ifndef EXT_PLAN_H
#define EXT_PLAN_H

#include "ext_library.h"

/**
 * What balance says: a word, a function, or NULL. *plan_p: of a function, a new reference, which lives as long as the
 * buffer; else unchanged. -1: an exception is set.
 */
int ext_plan_read(PyObject *balance, PyObject **plan_p, xep_buffer_params_t *params);

/** Raises what the function raised in the last dispatch. 0: nothing. plan: may be NULL. */
int ext_plan_raise(PyObject *plan);

#endif
