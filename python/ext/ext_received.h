/* SPDX-License-Identifier: BSD-3-Clause */

/** Received: what a dispatch brought, as arrays over the buffer's own memory. */
#ifndef EXT_RECEIVED_H
#define EXT_RECEIVED_H

#include "ext_handle.h"

typedef struct ext_received {
    PyObject_HEAD
    ext_handle_t *handle;
    ext_kind_t kind;
    xep_recv_t recv; /* a copy: the library's own is of the next dispatch in this slot once the handle has ended */
    ext_shown_t shown;
    PyObject *weak;
} ext_received_t;

/** The rows as arrays of a kind; NULL: an exception is set. */
PyObject *ext_received_of(ext_handle_t *handle, ext_kind_t kind);

/** Rows in the arrangement of recv: their extents and strides; data and element are those of look_p already. */
void ext_received_shape(const xep_recv_t *recv, uint64_t rows, size_t columns, ptrdiff_t stride, ext_array_t *look_p);

/** -1: an exception is set. */
int ext_received_ready(PyObject *module);

#endif
