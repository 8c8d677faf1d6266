/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Arrays: numpy's by its C interface; torch's tensors by DLPack's C exchange interface, a table of functions that
 * torch.Tensor carries (2.13 does), else by calls of Python: nothing of torch is needed to build this. Arrays of others
 * in device memory by __cuda_array_interface__; what is shown of that memory is a DeviceArray.
 */
#ifndef EXT_ARRAYS_H
#define EXT_ARRAYS_H

#include "ext_elements.h"

/** -1: TypeError, which names the argument: no array, or one in other memory. */
int ext_array_look(const char *name, PyObject *object, ext_where_t where, ext_array_t *array_p);

/** A new array, its contents undefined, and where they are; data_p may be NULL. EXT_DEVICE: only without elements. */
PyObject *ext_array_new(const ext_element_t *element, int ndim, const Py_ssize_t *shape, char **data_p);

/** An array of this look over memory, which base keeps; where it has no elements a new one. */
PyObject *ext_array_view(const ext_array_t *look, PyObject *base);

/** The same of memory that a program writes: bits of floats as an array that refuses floats (dtypes.Bits). */
PyObject *ext_array_view_to_write(const ext_array_t *look, PyObject *base);

/** -1: an exception is set. */
int ext_arrays_ready(PyObject *module);

#endif
