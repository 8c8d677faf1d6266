/* SPDX-License-Identifier: BSD-3-Clause */

/** What a tensor is besides its memory. */
#ifndef EXT_TENSOR_H
#define EXT_TENSOR_H

#include "ext_library.h"

/** -1: an exception is set; a tensor with the negative bit is refused, of one that requires grad it is warned once. */
int ext_tensor_check(const char *name, PyObject *tensor, xep_dtype_t dtype);

#endif
