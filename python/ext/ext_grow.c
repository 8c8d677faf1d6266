/* SPDX-License-Identifier: BSD-3-Clause */

/* What a caller's function raises goes to the caller of the call, in place of the library's word that it has failed. */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_buffer.h"
#include "ext_python.h"

/* The caller's function, and what it raised first. It runs inside a call of the library, which knows no exceptions. */
typedef struct caller {
    PyObject *function;
    PyObject *raised[3]; /* type, value, traceback */
} caller_t;

/* Returns what tells the library that the function has failed. A second exception follows from the first one. */
static int note_error(caller_t *caller)
{
    if (caller->raised[0] == NULL) PyErr_Fetch(&caller->raised[0], &caller->raised[1], &caller->raised[2]);
    else PyErr_Clear();
    return -1;
}

/* bytes 0: the address is not valid any more, which is None. */
static int publish(void *ctx, const void *address, size_t bytes)
{
    caller_t *caller = ctx;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = bytes == 0 ? PyObject_CallFunction(caller->function, "O", Py_None)
                                  : PyObject_CallFunction(caller->function, "y#", address, (Py_ssize_t)bytes);
    const int ret = result != NULL ? 0 : note_error(caller);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return ret;
}

/* None: there is no address yet, which is 0 bytes to the library. */
static int take_address(PyObject *found, void *address, size_t capacity, size_t *bytes_p)
{
    *bytes_p = 0;
    if (found == Py_None) return 0;
    if (!PyBytes_Check(found) || (size_t)PyBytes_GET_SIZE(found) > capacity) {
        PyErr_Format(PyExc_ValueError, "lookup: expected None or at most %zu bytes, got %R", capacity, found);
        return -1;
    }
    *bytes_p = (size_t)PyBytes_GET_SIZE(found);
    memcpy(address, PyBytes_AS_STRING(found), *bytes_p);
    return 0;
}

/* Called again and again until there is an address, in the thread that joins, without the GIL: so it is taken here. */
static int lookup(void *ctx, void *address, size_t capacity, size_t *bytes_p)
{
    caller_t *caller = ctx;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *found = PyObject_CallFunction(caller->function, NULL);
    const int ret = found != NULL && take_address(found, address, capacity, bytes_p) == 0 ? 0 : note_error(caller);
    Py_XDECREF(found);
    PyGILState_Release(state);
    return ret;
}

/*
 * None, or with an exception set NULL. What the function raised goes before what the library made of it, and is dropped
 * where the call has succeeded all the same.
 */
static PyObject *end_call(caller_t *caller, ext_group_t *group, xep_status_t status)
{
    if (caller->raised[0] != NULL && status < 0) {
        PyErr_Restore(caller->raised[0], caller->raised[1], caller->raised[2]);
        return NULL;
    }
    for (int i = 0; i < 3; i++) Py_XDECREF(caller->raised[i]);
    if (status < 0) return ext_raise(status);
    if (ext_group_learn(group) != 0) return NULL;
    Py_RETURN_NONE;
}

/*
 * A path as a program has it: text, or an os.PathLike; the bytes are the caller's to drop, and hold the text for the
 * length of its call. None leaves them NULL, which is the library's default. -1: an exception is set.
 */
static int read_path(PyObject *path, PyObject **bytes_p)
{
    *bytes_p = NULL;
    return path == Py_None || PyUnicode_FSConverter(path, bytes_p) ? 0 : -1;
}

/*
 * _grow(group, path, publish, joiners, timeout, anywhere) of a Group: group is made by the caller, empty, so that a
 * class derived from Group grows into its own kind.
 */
static PyObject *grow(PyObject *self, PyObject *args)
{
    xep_group_t *old = ext_group_get(self);
    xep_grow_args_t how = XEP_GROW_ARGS_INIT;
    PyObject *group, *path, *function, *joiners, *timeout, *bytes;
    uint64_t number = 0;
    int anywhere;
    xep_status_t status;
    if (old == NULL || !PyArg_ParseTuple(args, "OOOOOp", &group, &path, &function, &joiners, &timeout, &anywhere) ||
        ext_args_timeout(timeout, &how.timeout_ms) != 0 || ext_args_number("joiners", joiners, 1024, &number) != 0 ||
        read_path(path, &bytes) != 0)
        return NULL;
    caller_t caller = {.function = function};
    how.joiners = (uint32_t)number;
    how.flags = anywhere ? XEP_GROW_ANYWHERE : 0;
    how.path = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    if (function != Py_None) how.publish = publish, how.publish_ctx = &caller;
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_grow(old, &how, &((ext_group_t *)group)->group);
    Py_END_ALLOW_THREADS
    Py_XDECREF(bytes);
    return end_call(&caller, (ext_group_t *)group, status);
}

/* _join(path, lookup, timeout) of an empty Group. Ctrl-C ends the wait for a group, which may be long. */
static PyObject *join(PyObject *self, PyObject *args)
{
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    PyObject *path, *function, *timeout, *bytes;
    xep_status_t status;
    if (!PyArg_ParseTuple(args, "OOO", &path, &function, &timeout) ||
        ext_args_timeout(timeout, &params.timeout_ms) != 0 || read_path(path, &bytes) != 0)
        return NULL;
    caller_t caller = {.function = function};
    params.path = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    params.interrupted = ext_signals_raised;
    if (function != Py_None) params.lookup = lookup, params.lookup_ctx = &caller;
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_join(&params, &((ext_group_t *)self)->group);
    Py_END_ALLOW_THREADS
    Py_XDECREF(bytes);
    return end_call(&caller, (ext_group_t *)self, status);
}

/*
 * _follow(old, group) of an empty Buffer; old, whose params it gets, may be None in a process that has just joined. As
 * with _create(), the group is kept from before the call on, and an error leaves self closed.
 */
static PyObject *follow(PyObject *self, PyObject *args)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    PyObject *old, *place;
    const xep_buffer_t *from = NULL;
    xep_status_t status;
    if (!PyArg_ParseTuple(args, "OO", &old, &place)) return NULL;
    if (old != Py_None && (from = ext_buffer_get((ext_buffer_t *)old)) == NULL) return NULL;
    xep_group_t *group = ext_group_get(place);
    if (group == NULL || (buffer->pending = PySet_New(NULL)) == NULL) return NULL;
    Py_INCREF(place);
    buffer->group = (ext_group_t *)place;
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_follow(from, group, &buffer->buffer);
    Py_END_ALLOW_THREADS
    if (status < 0) return ext_raise(status);
    if (ext_buffer_learn(buffer) != 0) return NULL;
    Py_RETURN_NONE;
}

PyMethodDef ext_grow_group_methods[] = {
    {"_grow", grow, METH_VARARGS, NULL},
    {"_join", join, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyMethodDef ext_grow_buffer_methods[] = {
    {"_follow", follow, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
