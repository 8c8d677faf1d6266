/* SPDX-License-Identifier: BSD-3-Clause */

/** What arrays look like, whatever package they are of: element types, extents, memory. */
#ifndef EXT_ELEMENTS_H
#define EXT_ELEMENTS_H

#include "ext_dlpack.h"
#include "ext_library.h"

/** EXT_ML: arrays of numpy whose bf16 and 8-bit floats are types of the package ml_dtypes; else those are bits. */
typedef enum { EXT_NUMPY, EXT_ML, EXT_TORCH, EXT_DEVICE, EXT_KINDS } ext_kind_t;

enum { EXT_DIMS = 3, EXT_DTYPES = XEP_E2M1X2 + 1 };

/** Where an array is: EXT_HOST, or n + 1 for CUDA device n. EXT_ANYWHERE: where one may be that is looked at. */
typedef int ext_where_t;
enum { EXT_HOST = 0, EXT_ANYWHERE = -1 };

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

/** 0: the library has none like it. */
xep_dtype_t ext_dtype_of_dl(dl_type_t type);

/** Whether elements are bits of floats that numpy, or an interface, has no type for. */
int ext_element_is_bits(const ext_element_t *element);

#endif
