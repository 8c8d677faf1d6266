/* SPDX-License-Identifier: BSD-3-Clause */

/** Memory as DLPack shows it: with its shape, and with the object that keeps it until the deleter is called. */
#ifndef EXT_VIEW_H
#define EXT_VIEW_H

#include "ext_elements.h"

/** One of both is given away, to be ended by its own deleter, and takes the view with it. */
typedef struct ext_view {
    dl_managed_t managed;
    dl_unversioned_t unversioned;
    int64_t shape[EXT_DIMS], strides[EXT_DIMS];
} ext_view_t;

/** NULL: MemoryError. It has a reference to keeper. */
ext_view_t *ext_view_new(const ext_array_t *look, PyObject *keeper);

#endif
