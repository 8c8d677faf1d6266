/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Arrays: numpy's by its C interface; torch's tensors by DLPack's C exchange interface, a table of functions that
 * torch.Tensor carries (2.13 does), else by calls of Python: nothing of torch is needed to build this. Arrays of others
 * in device memory by __cuda_array_interface__; what is shown of that memory is a DeviceArray.
 */
#ifndef EXT_ARRAYS_H
#define EXT_ARRAYS_H

#include "ext_dlpack.h"
#include "ext_library.h"

/** EXT_ML: arrays of numpy whose bf16 and 8-bit floats are types of the package ml_dtypes; else those are bits. */
typedef enum { EXT_NUMPY, EXT_ML, EXT_TORCH, EXT_DEVICE, EXT_KINDS } ext_kind_t;

enum { EXT_DIMS = 3, EXT_DTYPES = XEP_FP64 + 1 };

/** Where an array is: EXT_HOST, or n + 1 for CUDA device n. */
typedef int ext_where_t;
enum { EXT_HOST = 0 };

/** What elements are, and as what they are shown. */
typedef struct ext_element {
    ext_kind_t kind;
    xep_dtype_t dtype; /* 0: none that the library has */
    ext_where_t where; /* of the array */
} ext_element_t;

/** What an array looks like, and where it is. Strides in bytes. */
typedef struct ext_array {
    ext_element_t element;
    char *data;
    int ndim; /* above EXT_DIMS: shape and strides are not filled */
    int writable;
    Py_ssize_t shape[EXT_DIMS], strides[EXT_DIMS];
} ext_array_t;

/** Bytes of one element, and what DLPack calls it. */
Py_ssize_t ext_dtype_size(xep_dtype_t dtype);
dl_type_t ext_dtype_dl(xep_dtype_t dtype);

/** -1: TypeError, which names the argument: no array, or one in other memory. */
int ext_array_look(const char *name, PyObject *object, ext_where_t where, ext_array_t *array_p);

/** -1: an exception is set; a tensor with the negative bit is refused, of one that requires grad it is warned once. */
int ext_tensor_check(const char *name, PyObject *tensor, xep_dtype_t dtype);

/** A new array, its contents undefined, and where they are; data_p may be NULL. EXT_DEVICE: only without elements. */
PyObject *ext_array_new(const ext_element_t *element, int ndim, const Py_ssize_t *shape, char **data_p);

/** An array of this look over memory, which base keeps; where it has no elements a new one. */
PyObject *ext_array_view(const ext_array_t *look, PyObject *base);

/** The same of memory that a program writes: bits of floats as an array that refuses floats (dtypes.Bits). */
PyObject *ext_array_view_to_write(const ext_array_t *look, PyObject *base);

/** Whether elements are bits of floats that numpy, or an interface, has no type for. */
int ext_element_is_bits(const ext_element_t *element);

/** A tuple of these numbers. */
PyObject *ext_tuple_of(int count, const Py_ssize_t *numbers);

/** Calls a function of arrays.py. */
PyObject *ext_call_helper(const char *function, const char *format, ...);

/** -1: an exception is set. */
int ext_arrays_ready(PyObject *module);

#endif
