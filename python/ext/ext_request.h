/* SPDX-License-Identifier: BSD-3-Clause */

/** Request: one operation in flight. */
#ifndef EXT_REQUEST_H
#define EXT_REQUEST_H

#include "ext_handle.h"

typedef struct ext_request {
    PyObject_HEAD
    ext_buffer_t *buffer;
    xep_request_t *request; /* NULL: done */
    PyObject *result;       /* what wait() returns */
    PyObject *kept;         /* tuple: the arrays of the operation, and its handle; NULL: done */
    PyObject *error;        /* NULL: it ended well, or not yet */
    int keeps_rows;         /* 1: result is a handle that has rows without it: it brings the next ones */
    PyObject *weak;
} ext_request_t;

/** Takes result over. values: the arguments, of which some may be NULL; handle: of a combine, else NULL. */
PyObject *ext_request_new(ext_buffer_t *buffer, xep_request_t *own, PyObject *result, PyObject *handle,
                          PyObject *const *values, int count);

/** As ext_buffer_get(), before an operation: what ended meanwhile is settled. */
xep_buffer_t *ext_request_begin(ext_buffer_t *buffer);

/** Ends those of a buffer, which itself ends, with AbortedError where they are not done. -1: an exception is set. */
int ext_request_end_all(ext_buffer_t *buffer, const char *reason);

/** What an operation is to begin after: NULL where that has ended well, or none is given. -1: an exception is set. */
int ext_request_read_after(PyObject *object, xep_request_t **after_p);

/** -1: an exception is set. */
int ext_request_ready(PyObject *module);

#endif
