/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A program may keep as many handles as it likes, slots are few. A handle that is parked may be dispatched by again,
 * which is collective: so every rank must know of a handle whether it has a slot, and that is decided by the order of
 * the calls, which is the same everywhere, and by nothing that one rank does alone. Where no parked handle is used
 * again (when_full), a rank parks what it must.
 */
#include "ext_handle.h"

#include "ext_module.h"
#include "ext_python.h"

/* An error of the library; an interrupt is told: -1. */
static int pass_over_error(void)
{
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
    PyErr_Clear();
    return 0;
}

/* What went wrong is told by the request; unless it goes on, as another thread is in a call on the buffer. */
static int settle(const ext_handle_t *handle)
{
    PyObject *request = handle->request;
    if (request == NULL) return 0;
    Py_INCREF(request);
    PyObject *result = PyObject_CallMethod(request, "wait", NULL);
    const int goes_on = result == NULL && handle->request == request;
    Py_DECREF(request);
    Py_XDECREF(result);
    if (goes_on) return -1;
    return result != NULL ? 0 : pass_over_error();
}

/* A dispatch that has failed has nothing that could be kept. After an interrupt the slot stays the handle's. */
static int park(ext_handle_t *handle)
{
    if (settle(handle) != 0) return -1;
    if (handle->memory == NULL) return 0;
    PyObject *parked = ext_call_helper("parked", "(O)", handle);
    if (parked == NULL && pass_over_error() != 0) return -1;
    Py_XSETREF(handle->parked, parked);
    ext_handle_forget(handle);
    return 0;
}

/* The caller's reference may be the last but that of a request, which ends here. */
static int park_counted(ext_handle_t *handle)
{
    Py_INCREF(handle);
    const int ret = park(handle);
    Py_DECREF(handle);
    return ret;
}

/* As many at most are left. Parking runs Python, which may use others meanwhile. */
static int park_beyond(ext_recent_t *recent, Py_ssize_t left)
{
    while (recent->count > left) {
        ext_handle_t *oldest = ext_recent_oldest(recent);
        if (oldest != NULL && park_counted(oldest) != 0) return -1;
    }
    return 0;
}

int ext_park_make_room(ext_buffer_t *buffer)
{
    ext_recent_t *recent = &buffer->recent;
    if (recent->most == 0 || recent->stays) return 0;
    if (!recent->when_full) return park_beyond(recent, recent->most - 1);
    while (recent->count > 0 && buffer->slots.held >= (Py_ssize_t)buffer->nslots)
        if (park_beyond(recent, recent->count - 1) != 0) return -1;
    return 0;
}

/* ---- what Python asks for ---- */

static PyObject *keep_at_most(ext_recent_t *recent, Py_ssize_t count)
{
    if (count < 1 || recent->handles != NULL)
        return PyErr_Format(PyExc_ValueError, "most: expected 1 or more, once for each Buffer, got %zd", count);
    if ((recent->handles = PyMem_Calloc((size_t)count, sizeof(ext_handle_t *))) == NULL) return PyErr_NoMemory();
    recent->most = count;
    Py_RETURN_NONE;
}

static PyObject *limit_handles(PyObject *self, PyObject *most)
{
    const Py_ssize_t count = PyNumber_AsSsize_t(most, PyExc_OverflowError);
    if (count == -1 && PyErr_Occurred()) return NULL;
    return keep_at_most(&((ext_buffer_t *)self)->recent, count);
}

static PyObject *park_when_full(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    PyObject *done = keep_at_most(&buffer->recent, (Py_ssize_t)buffer->nslots);
    if (done != NULL) buffer->recent.when_full = 1;
    return done;
}

/* Ahead of the dispatch that would do so, for whoever has to know which slots are given back. */
static PyObject *make_room(PyObject *self, PyObject *cached)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    if (ext_handle_check(cached)) ext_recent_use(&buffer->recent, (ext_handle_t *)cached);
    if (ext_park_make_room(buffer) != 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *stay(PyObject *self, PyObject *stays)
{
    const int is_true = PyObject_IsTrue(stays);
    if (is_true < 0) return NULL;
    ((ext_buffer_t *)self)->recent.stays = is_true;
    Py_RETURN_NONE;
}

static PyObject *park_all(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (park_beyond(&((ext_buffer_t *)self)->recent, 0) != 0) return NULL;
    Py_RETURN_NONE;
}

/* -1: an exception is set. A request that has failed is done. */
static int is_done(const ext_handle_t *handle)
{
    PyObject *request = handle->request;
    if (request == NULL) return 1;
    Py_INCREF(request);
    PyObject *done = PyObject_CallMethod(request, "done", NULL);
    const int is_true = done != NULL ? PyObject_IsTrue(done) : pass_over_error() == 0 ? 1 : -1;
    Py_DECREF(request);
    Py_XDECREF(done);
    return is_true;
}

/* Before the buffer ends. What some rank never began would be waited for until the deadline. */
static PyObject *park_done(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_recent_t *recent = &((ext_buffer_t *)self)->recent;
    while (recent->count > 0) {
        ext_handle_t *oldest = ext_recent_oldest(recent);
        if (oldest == NULL) continue;
        Py_INCREF(oldest);
        const int done = is_done(oldest), ret = done > 0 ? park(oldest) : done;
        Py_DECREF(oldest);
        if (ret != 0) return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *park_one(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_handle_t *handle = (ext_handle_t *)self;
    ext_recent_remove(&handle->buffer->recent, handle);
    if (park(handle) != 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *settle_one(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (settle((ext_handle_t *)self) != 0) return NULL;
    Py_RETURN_NONE;
}

PyMethodDef ext_park_buffer_methods[] = {
    {"limit_handles", limit_handles, METH_O,
     "limit_handles($self, most)\n--\n\n"
     "From now on so many dispatches have slots at most, those used last (by combine, or as cached): a further one\n"
     "parks the one used longest ago, on every rank alike. Once for each Buffer."},
    {"park_when_full", park_when_full, METH_NOARGS,
     "park_when_full($self)\n--\n\n"
     "From now on a dispatch that finds no free slot parks the handle used longest ago, on this rank alone: a parked\n"
     "one must not be dispatched by again. Once for each Buffer, instead of limit_handles()."},
    {"_make_room", make_room, METH_O, "_make_room($self, cached)\n--\n\nParks what the next dispatch would."},
    {"_stay", stay, METH_O,
     "_stay($self, stays)\n--\n\nWhether what is dispatched now is never parked, and parks nothing."},
    {"park", park_all, METH_NOARGS, "park($self)\n--\n\nParks all handles that may be parked."},
    {"park_done", park_done, METH_NOARGS, "park_done($self)\n--\n\nParks those that have ended."},
    {NULL, NULL, 0, NULL},
};

PyMethodDef ext_park_handle_methods[] = {
    {"park", park_one, METH_NOARGS,
     "park($self)\n--\n\n"
     "Gives the slot back, as release(), and keeps what is known of the routing: ``parked`` has it. Waits for what is\n"
     "in flight."},
    {"settle", settle_one, METH_NOARGS,
     "settle($self)\n--\n\nWaits for what was begun last with it; an error is its request's."},
    {NULL, NULL, 0, NULL},
};
