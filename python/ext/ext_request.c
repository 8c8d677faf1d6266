/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An operation in flight: it keeps what the library still reads and writes, so that a program may forget a Request and
 * its arrays at any time. The buffer's set keeps the Request in turn, until the operation has ended.
 */
#include "ext_request.h"

#include "ext_args.h"
#include "ext_failed.h"
#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *request_type;

/* The handle of a combine comes last among what is kept. NULL: none any more. */
static ext_handle_t *handle_of(const ext_request_t *request)
{
    const Py_ssize_t last = request->kept != NULL ? PyTuple_GET_SIZE(request->kept) - 1 : -1;
    PyObject *object = last >= 0 ? PyTuple_GET_ITEM(request->kept, last) : Py_None;
    if (object == Py_None) object = request->result;
    return object != NULL && ext_handle_check(object) ? (ext_handle_t *)object : NULL;
}

static void forget_use(const ext_request_t *request)
{
    ext_handle_t *handle = handle_of(request);
    if (handle != NULL && handle->request == (const PyObject *)request) handle->request = NULL;
}

/* The operation runs already, so this must not fail for any reason but memory. */
PyObject *ext_request_new(ext_buffer_t *buffer, xep_request_t *own, PyObject *result, PyObject *handle,
                          PyObject *const *values, int count)
{
    ext_request_t *request = (ext_request_t *)request_type->tp_alloc(request_type, 0);
    if (request == NULL) {
        Py_DECREF(result);
        return NULL;
    }
    Py_INCREF(buffer);
    request->buffer = buffer;
    request->request = own;
    request->result = result;
    request->kept = ext_args_keep(handle, values, count);
    ext_handle_t *used = handle_of(request);
    if (used != NULL) used->request = (PyObject *)request;
    if (request->kept == NULL || PySet_Add(buffer->pending, (PyObject *)request) != 0) Py_CLEAR(request);
    return (PyObject *)request;
}

/* Nothing of the library is left to ask. After some errors the buffer keeps the arrays. */
static int forget(ext_request_t *request, xep_status_t status)
{
    PyObject *kept = request->kept;
    forget_use(request);
    request->request = NULL;
    request->kept = NULL;
    Py_INCREF(request); /* the buffer may have the last reference */
    ext_failed_keep(request->buffer, status, kept);
    const int ret = PySet_Discard(request->buffer->pending, (PyObject *)request);
    Py_DECREF(request);
    return ret < 0 ? -1 : 0;
}

/* A dispatch that failed: the handle has no rows. */
static int fail(ext_request_t *request, xep_status_t status)
{
    ext_handle_t *handle = ext_handle_check(request->result) ? (ext_handle_t *)request->result : NULL;
    PyObject *error = ext_failed_error(request->buffer, status, handle != NULL ? handle->rows : EXT_UNKNOWN_ROWS);
    if (handle != NULL && !request->keeps_rows) ext_handle_forget(handle);
    if (error == NULL) return -1;
    if (request->error == NULL) request->error = error;
    else Py_DECREF(error);
    return 0;
}

/*
 * The status was found without the GIL, and another thread may have been here since: whoever comes first ends it, and
 * has the library's request. The error is made before request_free(), as its sentence is that of this thread's last
 * call.
 */
static int settle(ext_request_t *request, xep_status_t status)
{
    if (request->request == NULL) return 0; /* another thread has */
    if (status < 0 && fail(request, status) != 0) return -1;
    if (status >= 0 && ext_handle_check(request->result)) ext_handle_came((ext_handle_t *)request->result);
    xep_request_t *own = request->request;
    if (own == NULL) return 0; /* or has meanwhile, as an error and the end of arrays are made by Python */
    request->request = NULL;
    PyThreadState *state = ext_slots_leave_gil(&request->buffer->slots);
    lib.request_free(own);
    ext_slots_take_gil(&request->buffer->slots, state);
    return forget(request, status);
}

static int check_process(const ext_request_t *request)
{
    return ext_group_is_own(request->buffer->group);
}

/* Gives up the GIL although it does not block: progress may copy many rows. */
static int test(ext_request_t *request)
{
    xep_request_t *own = request->request;
    xep_status_t status;
    if (own == NULL) return 1;
    if (check_process(request) != 0) return -1;
    Py_BEGIN_ALLOW_THREADS
    status = lib.request_test(own);
    Py_END_ALLOW_THREADS
    if (status == XEP_INPROGRESS) return 0;
    return settle(request, status) == 0 ? 1 : -1;
}

/* ---- those of a buffer that nobody waits for ---- */

/* Over a copy of the set: a request that is settled is taken out, by this thread or, without the GIL, by another. */
static int settle_pending(ext_buffer_t *buffer)
{
    PyObject *requests = PySequence_List(buffer->pending);
    for (Py_ssize_t i = 0; requests != NULL && i < PyList_GET_SIZE(requests); i++)
        if (test((ext_request_t *)PyList_GET_ITEM(requests, i)) < 0) Py_CLEAR(requests);
    Py_XDECREF(requests);
    return requests != NULL ? 0 : -1;
}

/* Releases slots of which the last array has gone, sees to requests that nobody waits for. */
xep_buffer_t *ext_request_begin(ext_buffer_t *buffer)
{
    if (ext_buffer_get(buffer) == NULL || ext_buffer_refuse_served(buffer) != 0) return NULL;
    ext_slots_drain(&buffer->slots);
    if (PySet_GET_SIZE(buffer->pending) != 0 && settle_pending(buffer) != 0) return NULL;
    return ext_buffer_get(buffer); /* another thread may have closed it meanwhile */
}

/*
 * The library's request is not freed: the buffer that it belongs to ends or is reset, and takes it along. Until then
 * the thread of the group may go on with it, and write the result.
 */
static int end(ext_request_t *request, const char *reason)
{
    if (request->request == NULL) return 0;
    request->error = ext_error_new(XEP_ERR_ABORTED, reason);
    if (request->error == NULL) return -1;
    Py_INCREF(request->result);
    ext_failed_keep(request->buffer, XEP_ERR_ABORTED, request->result);
    return forget(request, XEP_ERR_ABORTED);
}

/* Those that have ended meanwhile keep their results; the rest get an error that says what became of the buffer. */
int ext_request_end_all(ext_buffer_t *buffer, const char *reason)
{
    PyObject *requests = settle_pending(buffer) == 0 ? PySequence_List(buffer->pending) : NULL;
    for (Py_ssize_t i = 0; requests != NULL && i < PyList_GET_SIZE(requests); i++)
        if (end((ext_request_t *)PyList_GET_ITEM(requests, i), reason) != 0) Py_CLEAR(requests);
    Py_XDECREF(requests);
    return requests != NULL ? 0 : -1;
}

/* ---- waiting ---- */

/* A new reference, or NULL with the error set: the same objects each time, as wait() may be called again. */
static PyObject *result_or_raise(ext_request_t *request)
{
    if (request->error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(request->error), request->error);
    else Py_INCREF(request->result);
    return request->error != NULL ? NULL : request->result;
}

/* True after an error, too: that is what wait() is for. */
static PyObject *done(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const int is_done = test((ext_request_t *)self);
    return is_done < 0 ? NULL : PyBool_FromLong(is_done);
}

/* XEP_ERR_INVALID is how it ended, or another thread is in a call on the buffer: then a test says that it goes on. */
static PyObject *refused_or_ended(ext_request_t *request)
{
    PyObject *refusal = ext_error_new(XEP_ERR_INVALID, NULL);
    const int is_done = refusal != NULL ? test(request) : -1;
    if (is_done == 0) return ext_raise_error(refusal);
    Py_XDECREF(refusal);
    return is_done < 0 ? NULL : result_or_raise(request);
}

/* stays_open: that all went well does not mean that it is done. */
static PyObject *wait_by(PyObject *self, xep_status_t (*wait)(xep_request_t *request), int stays_open)
{
    ext_request_t *request = (ext_request_t *)self;
    xep_request_t *own = request->request;
    xep_status_t status;
    if (own == NULL) return result_or_raise(request);
    if (check_process(request) != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = wait(own);
    Py_END_ALLOW_THREADS
    if (status == XEP_ERR_INVALID) return refused_or_ended(request);
    if ((status < 0 || !stays_open) && settle(request, status) != 0) return NULL;
    return result_or_raise(request);
}

static PyObject *wait_until_done(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return wait_by(self, lib.request_wait, 0);
}

static PyObject *wait_counts(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return wait_by(self, lib.request_wait_counts, 1);
}

/*
 * One that has failed fails this call, with its own error: nothing could come after it any more. *after_p is borrowed:
 * xep_request_free() may follow as soon as the call that got it has returned.
 */
int ext_request_read_after(PyObject *object, xep_request_t **after_p)
{
    ext_request_t *request = (ext_request_t *)object;
    *after_p = NULL;
    if (object == NULL) return 0;
    if (Py_TYPE(object) != request_type) {
        PyErr_Format(PyExc_TypeError, "after: expected a Request, got %s", Py_TYPE(object)->tp_name);
        return -1;
    }
    *after_p = request->request;
    if (request->request != NULL || request->error == NULL) return 0;
    result_or_raise(request);
    return -1;
}

/* ---- its type ---- */

static int clear(PyObject *self)
{
    ext_request_t *request = (ext_request_t *)self;
    forget_use(request);
    Py_CLEAR(request->result);
    Py_CLEAR(request->kept);
    Py_CLEAR(request->error);
    Py_CLEAR(request->buffer);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    ext_request_t *request = (ext_request_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(request->buffer);
    Py_VISIT(request->result);
    Py_VISIT(request->kept);
    Py_VISIT(request->error);
    return 0;
}

static void dealloc(PyObject *self)
{
    ext_dealloc(self, ((ext_request_t *)self)->weak, clear);
}

static PyMethodDef methods[] = {
    {"done", done, METH_NOARGS,
     "done($self)\n--\n\nWhether it has ended, well or not. Makes progress, does not block."},
    {"wait", wait_until_done, METH_NOARGS,
     "wait($self)\n--\n\n"
     "Blocks until the operation is done or its deadline has passed. Its result, or its error; again if called again."},
    {"wait_counts", wait_counts, METH_NOARGS,
     "wait_counts($self)\n--\n\n"
     "Of a dispatch: blocks until this rank's rows are counted, or as wait(). ``result.recv`` then has counts and\n"
     "arrays; what is in the arrays may be read after wait()."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"result", T_OBJECT, offsetof(ext_request_t, result), READONLY,
     "What wait() returns; its contents are here when the request is done."},
    {"buffer", T_OBJECT, offsetof(ext_request_t, buffer), READONLY, "The Buffer of the operation."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ext_request_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "An operation that was begun: test it, wait for it. Progress is made inside these calls.\n\n"
                "The buffer keeps the request, and with it every array of the operation, until it is done; a request\n"
                "that nobody waits for is looked at when the next operation begins."},
    {0, NULL},
};

static PyType_Spec spec = {"xep.Request", sizeof(ext_request_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int ext_request_ready(PyObject *module)
{
    return ext_add_type(module, &spec, 0, &request_type);
}
