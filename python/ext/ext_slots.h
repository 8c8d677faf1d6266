/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Which slots of a buffer are in use, by handles and by arrays. A slot goes back when the last reference to its memory
 * does. That may happen on any thread, also inside a call of the library, so it is only noted then, and told to the
 * library by the next operation.
 */
#ifndef EXT_SLOTS_H
#define EXT_SLOTS_H

#include "ext_library.h"

/** The buffer's memory, held for one handle: what every array of its rows is based on. */
typedef struct ext_memory {
    PyObject_HEAD
    PyObject *buffer; /* which the slots are part of */
    struct ext_slots *slots;
    xep_handle_t *handle; /* to be released when this ends; NULL: none */
    PyObject *owner;      /* not counted: the Handle that still uses it; NULL: only arrays do */
    struct ext_memory *next, **previous;
    PyObject *weak;
} ext_memory_t;

typedef struct ext_slots {
    char *base; /* of this rank's shared memory */
    size_t bytes;
    ext_memory_t *first;     /* not counted, like all in the list */
    ext_memory_t *whole;     /* not counted, not in the list: what Buffer.memory() gave */
    Py_ssize_t held;         /* in the list */
    xep_handle_t **ended;    /* handles whose last array is gone */
    Py_ssize_t nended, room; /* room: at least held + nended */
    Py_ssize_t giving_back;  /* threads that end a handle or a request, without the GIL */
} ext_slots_t;

/** Memory for a handle that is put into it; NULL: an exception is set. buffer: the object that these slots are of. */
ext_memory_t *ext_slots_hold(ext_slots_t *slots, PyObject *buffer);

/** Memory of no handle, which is asked for by Buffer.memory(). */
PyObject *ext_slots_whole(ext_slots_t *slots, PyObject *buffer);

/**
 * Around a call that ends a handle or a request. Such a call waits for a thread that is in the buffer, which may want
 * the GIL: so the GIL is given up, but where there is no such thread (NULL), as that takes longer than the call.
 */
PyThreadState *ext_slots_leave_gil(ext_slots_t *slots);
void ext_slots_take_gil(ext_slots_t *slots, PyThreadState *state);

/** Releases the handles that have ended. Another thread may close the buffer meanwhile. */
void ext_slots_drain(ext_slots_t *slots);

/** Waits for the other threads that end handles or requests, which a reset would give to others, and a destroy free. */
void ext_slots_settle(const ext_slots_t *slots);

/** The Handles that use a slot, as a list; NULL: an exception is set. */
PyObject *ext_slots_owners(const ext_slots_t *slots);

/** How many slots only arrays still use; the whole memory is one. */
Py_ssize_t ext_slots_orphans(const ext_slots_t *slots);

/** How many slots arrays look at, whoever else uses them; the whole memory is none. */
Py_ssize_t ext_slots_viewed(const ext_slots_t *slots);

/** Slots end without the library: the memory stays. */
void ext_slots_forget(ext_slots_t *slots);

/** -1: an exception is set. */
int ext_slots_ready(PyObject *module);

#endif
