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

/** -1: an exception is set. */
int ext_received_ready(PyObject *module);

/* ---- ext_rows.c ---- */

/** Numbers of its arrays: the views, then the counts in the order of their table, of which the last one is out. */
enum {
    EXT_X,
    EXT_TOPK_IDX,
    EXT_TOPK_WEIGHTS,
    EXT_SCALES,
    EXT_SRC_TOKEN,
    EXT_ROW,
    EXT_OUT = EXT_VIEWS + EXT_COUNTS - 1
};

/** Whether there is no such array: it is None. */
int ext_received_lacks(const ext_received_t *received, int which);

/** A new array, or the view of a payload; NULL: an exception is set. */
PyObject *ext_received_array(const ext_received_t *received, int which);
PyObject *ext_received_payload(const ext_received_t *received, uint32_t i);

/** Rows in the arrangement of recv: their extents and strides; data and element are those of look_p already. */
void ext_received_shape(const xep_recv_t *recv, uint64_t rows, size_t columns, ptrdiff_t stride, ext_array_t *look_p);

#endif
