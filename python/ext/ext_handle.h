/* SPDX-License-Identifier: BSD-3-Clause */

/** Handle: one dispatch. */
#ifndef EXT_HANDLE_H
#define EXT_HANDLE_H

#include "ext_buffer.h"

enum { EXT_VIEWS = 6, EXT_COUNTS = 8 };

/** The arrays that a Received has made, which go with the rows of the handle. */
typedef struct ext_shown {
    PyObject *arrays[EXT_VIEWS + EXT_COUNTS]; /* NULL: not asked for yet */
} ext_shown_t;

typedef struct ext_handle {
    PyObject_HEAD
    ext_buffer_t *buffer;
    ext_memory_t *memory; /* NULL: released */
    Py_ssize_t tokens, topk, hidden, nranks;
    ext_element_t element;                     /* of the array that was dispatched */
    ext_element_t payloads[XEP_PAYLOADS_MOST]; /* likewise */
    ext_element_t input;                       /* of what combine_input() has shown last, or would show */
    ext_shown_t *shown[EXT_KINDS]; /* of a Received, not counted: the rows as arrays, while somebody has it */
    int counts_there;              /* 1: counts are arrays of the device, and nobody waits for them */
    uint64_t rows;                 /* what the library writes into recv_rows_p */
    PyObject *sent;                /* what a dispatch in pieces was given, until all have come; else NULL */
    PyObject *given;               /* (outputs, topk_weights, dtype) of give(), some of them NULL; else NULL */
    PyObject *request;             /* the last one that was begun with it and is not done, not counted; else NULL */
    PyObject *parked;              /* what is known of it without the slot (ext_park.c); NULL: it was not parked */
    PyObject *weak;
} ext_handle_t;

/** Of a dispatch that is about to begin: with memory that has no slot yet. NULL: an exception is set. */
ext_handle_t *ext_handle_new(ext_buffer_t *buffer, const ext_element_t *element, Py_ssize_t tokens, Py_ssize_t topk,
                             Py_ssize_t hidden);

int ext_handle_check(PyObject *object);

/** The library's handle; NULL: ValueError, it was released. */
xep_handle_t *ext_handle_get(const ext_handle_t *handle);

/** What was received; NULL: an exception is set (released, or not counted yet). */
const xep_recv_t *ext_handle_recv(const ext_handle_t *handle);

/** Of a dispatch of which rows are here: when they are the last, nothing reads what it was given any more. */
void ext_handle_came(ext_handle_t *handle);

/** Drops arrays that are kept. */
void ext_handle_forget_arrays(ext_shown_t *shown);

/** Ends this handle's use of the slot. */
void ext_handle_forget(ext_handle_t *handle);

/** Before a dispatch: where as many handles have slots as may, the one used longest ago gives up its own. -1: an
 *  exception is set. */
int ext_park_make_room(ext_buffer_t *buffer);

/** -1: an exception is set. */
int ext_handle_ready(PyObject *module);

#endif
