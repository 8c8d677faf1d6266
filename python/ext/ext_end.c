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
 * Requests end with an error, handles without the library, which has ended its own or does so in the call that follows.
 * The memory stays, its contents do not. -1: an exception is set.
 */
static int end_all(ext_buffer_t *buffer, const char *reason)
{
    if (ext_request_end_all(buffer, reason) != 0 || end_handles(buffer) != 0) return -1;
    ext_slots_forget(&buffer->slots);
    ext_slots_settle(&buffer->slots);
    buffer->recent.count = 0;
    return 0;
}

/* While another thread is in a call, and where a rank is out: then nothing has ended. */
static int is_refused(xep_status_t status)
{
    return status == XEP_ERR_INVALID || status == XEP_ERR_UNSUPPORTED;
}

/*
 * The library's reset comes first, as it may be refused; requests hear from it how they ended, and are free again. left
 * goes only when the reset has succeeded: until then the transport may go on reading it (xep_dispatch()).
 */
static PyObject *reset(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    xep_buffer_t *own = ext_buffer_get(buffer);
    PyObject *type, *value, *trace;
    xep_status_t status;
    if (own == NULL || ext_buffer_refuse_served(buffer) != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_reset(own);
    Py_END_ALLOW_THREADS
    if (is_refused(status)) return ext_raise(status);
    if (status < 0) ext_raise(status); /* now: its sentence is that of this thread's last call */
    PyErr_Fetch(&type, &value, &trace);
    if (end_all(buffer, "the buffer was reset") == 0) {
        PyErr_Restore(type, value, trace);
        if (status < 0) return NULL;
        Py_CLEAR(buffer->left);
        Py_RETURN_NONE;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return NULL;
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
    if (ext_buffer_get((ext_buffer_t *)self) == NULL || end_all((ext_buffer_t *)self, "the buffer was closed") != 0)
        return NULL;
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self); /* another thread may have closed it meanwhile */
    if (buffer == NULL) return NULL;
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
