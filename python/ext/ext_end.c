/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_module.h"

#include "ext_python.h"
#include "ext_request.h"

/* As a list of counted references: to forget a handle may end the last array of its rows, and with it others. */
static int end_handles(ext_buffer_t *buffer)
{
    if (ext_buffer_refuse_served(buffer) != 0) return -1;
    PyObject *owners = ext_slots_owners(&buffer->slots);
    for (Py_ssize_t i = 0; owners != NULL && i < PyList_GET_SIZE(owners); i++)
        ext_handle_forget((ext_handle_t *)PyList_GET_ITEM(owners, i));
    Py_XDECREF(owners);
    return owners != NULL ? 0 : -1;
}

/* What close() asks: once all handles have ended, a slot that is still held is held by arrays of the program. */
static PyObject *arrays_left(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    return end_handles(buffer) == 0 ? PyLong_FromSsize_t(ext_slots_orphans(&buffer->slots)) : NULL;
}

/*
 * Requests end with an error, handles without the library, which ends its own in the call that follows, a reset or a
 * destroy. The memory stays, its contents do not. -1: an exception is set, and that call is not made.
 */
static int end_all(ext_buffer_t *buffer, const char *reason)
{
    if (ext_request_end_all(buffer, reason) != 0) return -1;
    ext_slots_drain(&buffer->slots);
    if (end_handles(buffer) != 0) return -1;
    ext_slots_settle(&buffer->slots);
    ext_slots_forget(&buffer->slots);
    buffer->recent.count = 0;
    return 0;
}

/* left goes only when the reset has succeeded: until then the transport may go on reading it (xep_dispatch()). */
static PyObject *reset(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    xep_status_t status;
    if (buffer == NULL || end_all((ext_buffer_t *)self, "the buffer was reset") != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_reset(buffer);
    Py_END_ALLOW_THREADS
    if (status >= 0) Py_CLEAR(((ext_buffer_t *)self)->left);
    return ext_none_or_raise(status);
}

/* The GIL is given up, as it waits for another thread that is in a call on the buffer. */
static PyObject *abort_buffer(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    if (buffer == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.buffer_abort(buffer);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/*
 * NULL before the GIL is given up: another thread that comes now is told that the buffer is closed. What the transport
 * may still read goes to the group, as without a reset only the group's end is the end of that.
 */
static PyObject *destroy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    if (buffer == NULL || end_all((ext_buffer_t *)self, "the buffer was closed") != 0) return NULL;
    ((ext_buffer_t *)self)->buffer = NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.buffer_destroy(buffer);
    Py_END_ALLOW_THREADS
    if (((ext_buffer_t *)self)->left != NULL) {
        ext_group_keep(&((ext_buffer_t *)self)->group->left, ((ext_buffer_t *)self)->left);
        ((ext_buffer_t *)self)->left = NULL;
    }
    Py_RETURN_NONE;
}

/* For a fork, and for an aborted group of whose rows arrays are alive: the library is not called, its memory stays. */
static PyObject *leave(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((ext_buffer_t *)self)->buffer = NULL;
    ext_slots_forget(&((ext_buffer_t *)self)->slots);
    Py_RETURN_NONE;
}

PyMethodDef ext_end_methods[] = {
    {"_destroy", destroy, METH_NOARGS, NULL},
    {"_leave", leave, METH_NOARGS, NULL},
    {"_abort", abort_buffer, METH_NOARGS, NULL},
    {"reset", reset, METH_NOARGS,
     "reset($self)\n--\n\nMakes the buffer usable again after BrokenError. All handles end; arrays of their rows keep\n"
     "memory, not meaning. Collective, blocking."},
    {"arrays_left", arrays_left, METH_NOARGS, "arrays_left($self)\n--\n\nEnds every handle; then as arrays_alive()."},
    {NULL, NULL, 0, NULL},
};
