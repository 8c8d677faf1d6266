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

/** torch's current stream of a device, asked in C: by Python that takes as long as a launch. 0: ask Python. */
int ext_array_stream(int device, void **stream_p);

/** -1: an exception is set. */
int ext_arrays_ready(PyObject *module);

/* ---- of which arrays are made ---- */

/** -1: an exception is set; a tensor with the negative bit is refused, of one that requires grad it is warned once. */
int ext_tensor_check(const char *name, PyObject *tensor, xep_dtype_t dtype);

/** EXT_TORCH, once torch is imported, which a program that has not done so does by this. -1: an exception is set. */
int ext_tensor_kind(ext_kind_t *kind_p);

/** Memory as DLPack shows it. A consumer gets one of the two structs; its deleter frees the whole view. */
typedef struct ext_view {
    dl_managed_t managed;
    dl_unversioned_t unversioned;
    int64_t shape[EXT_DIMS], strides[EXT_DIMS];
} ext_view_t;

/** NULL: MemoryError. It has a reference to keeper. */
ext_view_t *ext_view_new(const ext_array_t *look, PyObject *keeper);

/** A DeviceArray of this look, which base keeps; base may be NULL where there are no elements. */
PyObject *ext_device_new(const ext_array_t *look, PyObject *base);

int ext_device_check(PyObject *object);

/** Where the elements of a DeviceArray are, and of which type and shape. */
const ext_array_t *ext_device_look(PyObject *object);

/** -1: an exception is set. */
int ext_device_ready(PyObject *module);

#endif
