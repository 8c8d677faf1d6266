/* SPDX-License-Identifier: BSD-3-Clause */

/** Handle.combine() and combine_async(). */
#ifndef EXT_COMBINE_H
#define EXT_COMBINE_H

#include "ext_handle.h"

/**
 * Expert outputs, as a call was given them: into the fields of args that say of them. made: what they are made of.
 * Objects that are NULL were not given. -1: an exception is set.
 */
int ext_combine_read(const ext_handle_t *handle, PyObject *x, PyObject *topk_weights, PyObject *dtype,
                     xep_combine_args_t *args, ext_element_t *made);

/**
 * Where a call has no x, what give() was told in its place: at are the numbers of x, topk_weights and dtype in values.
 * What holds them, to be given up when the call is done; NULL: nothing is held.
 */
PyObject *ext_combine_given(const ext_handle_t *handle, PyObject **values, const int at[3]);

#endif
