/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Arrays: numpy's by its C interface; torch's CPU tensors by DLPack's C exchange interface, a table of functions that
 * torch.Tensor carries (2.13 does), else by calls of Python: nothing of torch is needed to build this.
 */
#ifndef EXT_ARRAYS_H
#define EXT_ARRAYS_H

#include "ext_library.h"

typedef enum { EXT_NUMPY, EXT_TORCH, EXT_KINDS } ext_kind_t;

enum { EXT_DIMS = 3, EXT_DTYPES = XEP_FP64 + 1 };

/** What elements are, and as what they are shown. */
typedef struct ext_element {
    ext_kind_t kind;
    xep_dtype_t dtype; /* 0: none that the library has */
    PyObject *descr;   /* numpy.dtype where it is not that of the dtype, as of package ml_dtypes; NULL: it is */
} ext_element_t;

/** What an array looks like, and where it is. Strides in bytes. */
typedef struct ext_array {
    ext_element_t element; /* descr: borrowed from the array */
    char *data;
    int ndim; /* above EXT_DIMS: shape and strides are not filled */
    int writable;
    Py_ssize_t shape[EXT_DIMS], strides[EXT_DIMS];
} ext_array_t;

/** Bytes of one element. */
Py_ssize_t ext_dtype_size(xep_dtype_t dtype);

/** -1: TypeError, which names the argument: no array, or not in host memory. */
int ext_array_look(const char *name, PyObject *object, ext_array_t *array_p);

/** A new array, its contents undefined, and where they are; data_p may be NULL. */
PyObject *ext_array_new(const ext_element_t *element, int ndim, const Py_ssize_t *shape, char **data_p);

/** An array of this look over memory, which base keeps; where it has no elements a new one. */
PyObject *ext_array_view(const ext_array_t *look, PyObject *base);

/** Calls a function of arrays.py. */
PyObject *ext_call_helper(const char *function, const char *format, ...);

/** -1: an exception is set. */
int ext_arrays_ready(PyObject *module);

#endif
