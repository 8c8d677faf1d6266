/* SPDX-License-Identifier: BSD-3-Clause */

/** What Buffer is made of. */
#ifndef EXT_BUFFER_H
#define EXT_BUFFER_H

#include "ext_elements.h"
#include "ext_group.h"
#include "ext_recent.h"
#include "ext_slots.h"

typedef struct ext_buffer {
    PyObject_HEAD
    ext_group_t *group;
    xep_buffer_t *buffer; /* NULL: closed, or not made yet */
    ext_slots_t slots;
    ext_recent_t recent;
    PyObject *pending; /* set of requests that are not done; it keeps them */
    PyObject *left;    /* list of the arrays of operations that failed; NULL: none */
    PyObject *plan;    /* a function's, of balance; NULL: none */
    uint32_t experts, topk, hidden, scales, nslots, local_experts;
    uint64_t tokens, recv_rows;
    xep_dtype_t dtype, combine_dtype;
    ext_where_t where; /* of all arrays */
    int counts_there;  /* 1: and of the counts of all dispatches */
    int is_serving;    /* in serve(): operations of its own are refused */
} ext_buffer_t;

/**
 * Of one that the library has just made: what operations ask for again and again, so that they need no call of the
 * library. -1: an exception is set.
 */
int ext_buffer_learn(ext_buffer_t *buffer);

/** NULL: ValueError, it is closed; RuntimeError, another process has made it. */
xep_buffer_t *ext_buffer_get(const ext_buffer_t *buffer);

/** -1: ValueError, this rank is in serve() with it: its operations begin there alone, and its handles stay. */
int ext_buffer_refuse_served(const ext_buffer_t *buffer);

int ext_buffer_check(PyObject *object);

/** -1: an exception is set. */
int ext_buffer_ready(PyObject *module);

#endif
