/* SPDX-License-Identifier: BSD-3-Clause */

/** What Buffer is made of. */
#ifndef EXT_BUFFER_H
#define EXT_BUFFER_H

#include "ext_group.h"
#include "ext_slots.h"

typedef struct ext_buffer {
    PyObject_HEAD
    ext_group_t *group;
    xep_buffer_t *buffer; /* NULL: closed, or not made yet */
    char *base;           /* of this rank's shared memory */
    size_t bytes;
    ext_slots_t slots;
    PyObject *pending; /* set of requests that are not done; it keeps them */
    uint32_t experts, topk, hidden, scales, nslots, local_experts;
    uint64_t tokens;
    xep_dtype_t dtype, combine_dtype;
} ext_buffer_t;

/** Of what the library does not know: the rows that it counted. */
#define EXT_UNKNOWN_ROWS UINT64_MAX

/** NULL: ValueError, it is closed; RuntimeError, another process has made it. */
xep_buffer_t *ext_buffer_get(const ext_buffer_t *buffer);

/** The same before an operation: what ended meanwhile is settled. */
xep_buffer_t *ext_buffer_begin(ext_buffer_t *buffer);

/** The exception of an operation, with the reason of this thread's last call. rows: sent to this rank. */
PyObject *ext_buffer_error(const ext_buffer_t *buffer, xep_status_t status, uint64_t rows);

/** Sets it; NULL. */
PyObject *ext_buffer_raise(const ext_buffer_t *buffer, xep_status_t status, uint64_t rows);

/** -1: an exception is set. */
int ext_buffer_ready(PyObject *module);

#endif
