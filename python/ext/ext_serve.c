/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The library has the handles of a rank that serves, and shows one for each call of the function. So the Handle that
 * the function gets ends with that call, and gives nothing back to the library.
 */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_arrays.h"
#include "ext_combine.h"
#include "ext_failed.h"
#include "ext_python.h"
#include "ext_request.h"

/* A call of serve(). */
typedef struct server {
    PyObject *buffers;   /* tuple of Buffer */
    xep_buffer_t **list; /* [count] theirs */
    uint32_t count;
    ext_kind_t kind; /* of the arrays that the function gets */
    PyObject *function;
    PyObject *weights;   /* of outputs, by handle, as the library reads them when the rows are combined */
    PyObject *raised[3]; /* by the function: type, value, traceback */
} server_t;

/* ---- outputs ---- */

static void copy_rows(const xep_serve_call_t *call, const xep_combine_args_t *args)
{
    const xep_recv_t *recv = call->recv;
    const int is_padded = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    const uint64_t rows = is_padded ? recv->capacity : recv->rows;
    const size_t bytes = args->hidden * (size_t)ext_dtype_size(args->dtype);
    if (call->out == NULL || (args->x == call->out && args->x_stride == call->out_stride)) return;
    for (uint64_t row = 0; row < rows; row++)
        memcpy((char *)call->out + row * call->out_stride, (const char *)args->x + row * args->x_stride, bytes);
}

/* Until the next call with the same handle. */
static int keep_weights(const server_t *server, xep_serve_call_t *call, PyObject *weights,
                        const xep_combine_args_t *args)
{
    PyObject *key = PyLong_FromVoidPtr(call->handle);
    const int ret = key != NULL ? PyDict_SetItem(server->weights, key, weights != NULL ? weights : Py_None) : -1;
    Py_XDECREF(key);
    call->topk_weights = args->topk_weights;
    call->topk_weights_stride = args->topk_weights_stride;
    return ret;
}

/* What the function returned: None, outputs, or a pair of outputs, or None, and weights. */
static int take_outputs(const server_t *server, const ext_handle_t *handle, xep_serve_call_t *call, PyObject *result)
{
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;
    const int is_pair = PyTuple_Check(result);
    ext_element_t made;
    if (is_pair && PyTuple_GET_SIZE(result) != 2) {
        PyErr_Format(PyExc_ValueError, "function: expected outputs and topk_weights, got a tuple of %zd",
                     PyTuple_GET_SIZE(result));
        return -1;
    }
    PyObject *x = is_pair ? PyTuple_GET_ITEM(result, 0) : result;
    PyObject *weights = is_pair ? PyTuple_GET_ITEM(result, 1) : Py_None;
    if (x == Py_None) x = NULL;
    if (weights == Py_None) weights = NULL;
    if (ext_combine_read(handle, x, weights, NULL, &args, &made) != 0) return -1;
    if ((Py_ssize_t)args.hidden != handle->hidden) {
        PyErr_Format(PyExc_ValueError, "x: expected rows of %zd elements, got %u", handle->hidden, args.hidden);
        return -1;
    }
    if (x != NULL) copy_rows(call, &args);
    call->dtype = args.dtype;
    return keep_weights(server, call, weights, &args);
}

/* ---- the function ---- */

static PyObject *buffer_of(const server_t *server, const xep_buffer_t *buffer)
{
    uint32_t b = 0;
    while (server->list[b] != buffer) b++;
    return PyTuple_GET_ITEM(server->buffers, b);
}

/* A Handle of what is shown, in memory that knows the library's. */
static ext_handle_t *show(const server_t *server, const xep_serve_call_t *call)
{
    ext_buffer_t *buffer = (ext_buffer_t *)buffer_of(server, call->buffer);
    const xep_recv_t *recv = call->recv;
    const ext_element_t element = {.kind = server->kind, .dtype = recv->dtype, .where = buffer->where};
    ext_handle_t *handle = ext_handle_new(buffer, &element, 0, (Py_ssize_t)recv->topk, (Py_ssize_t)recv->hidden);
    if (handle == NULL) return NULL;
    handle->memory->handle = call->handle;
    for (uint32_t i = 0; i < recv->npayloads; i++) { /* of which only their bytes are known here */
        handle->payloads[i] = element;
        handle->payloads[i].dtype = XEP_U8;
    }
    return handle;
}

/* Arrays of its rows keep their memory, which the library uses again. */
static void end_show(ext_handle_t *handle, ext_memory_t *memory)
{
    memory->handle = NULL;
    if (handle->memory != NULL) ext_handle_forget(handle);
    Py_DECREF(memory);
    Py_DECREF(handle);
}

static int run(const server_t *server, xep_serve_call_t *call)
{
    ext_handle_t *handle = show(server, call);
    if (handle == NULL) return -1;
    ext_memory_t *memory = handle->memory;
    Py_INCREF(memory);
    PyObject *result = PyObject_CallFunction(server->function, "OOKK", handle->buffer, handle,
                                             (unsigned long long)call->step, (unsigned long long)call->dispatch);
    const int ret = result != NULL ? take_outputs(server, handle, call, result) : -1;
    Py_XDECREF(result);
    end_show(handle, memory);
    return ret;
}

/* Keeps the exception of the function. If it has an attribute expert, that is the local expert that has failed. */
static void take_raised(server_t *server, xep_serve_call_t *call)
{
    PyErr_Fetch(&server->raised[0], &server->raised[1], &server->raised[2]);
    PyErr_NormalizeException(&server->raised[0], &server->raised[1], &server->raised[2]);
    PyObject *expert = PyObject_GetAttrString(server->raised[1], "expert");
    const long local = expert != NULL ? PyLong_AsLong(expert) : -1;
    if (local >= 0 && local <= INT32_MAX) call->expert = (int32_t)local;
    PyErr_Clear();
    Py_XDECREF(expert);
}

/* xep_serve_fn: in the thread that is in serve(), without the GIL. */
static xep_status_t run_function(void *arg, xep_serve_call_t *call)
{
    server_t *server = arg;
    const PyGILState_STATE state = PyGILState_Ensure();
    const int ret = run(server, call);
    if (ret != 0) take_raised(server, call);
    PyGILState_Release(state);
    return ret == 0 ? XEP_OK : XEP_ERR_FUNCTION;
}

/* ---- buffers ---- */

/* [count] in memory of the caller; NULL: an exception is set. tuple: of Buffer. */
static xep_buffer_t **list_buffers(PyObject *tuple, uint32_t *count_p)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    xep_buffer_t **list = PyMem_Malloc((size_t)(count + 1) * sizeof *list);
    if (list == NULL) PyErr_NoMemory();
    for (Py_ssize_t b = 0; list != NULL && b < count; b++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, b);
        xep_buffer_t *found = NULL;
        if (ext_buffer_check(item)) found = ext_request_begin((ext_buffer_t *)item);
        else PyErr_Format(PyExc_TypeError, "buffers[%zd]: expected a Buffer, got %R", b, item);
        if (found == NULL) {
            PyMem_Free(list);
            return NULL;
        }
        list[b] = found;
    }
    *count_p = (uint32_t)count;
    return list;
}

/* Whether operations of these buffers by this rank are refused now, as the library begins them. */
static void set_served(const server_t *server, int served)
{
    for (uint32_t b = 0; b < server->count; b++)
        ((ext_buffer_t *)PyTuple_GET_ITEM(server->buffers, b))->is_serving = served;
}

/* ---- serve ---- */

/* After an error the transport may go on reading weights. */
static PyObject *end_serve(const server_t *server, xep_status_t status)
{
    if (status < 0) {
        Py_INCREF(server->weights);
        ext_failed_keep((ext_buffer_t *)PyTuple_GET_ITEM(server->buffers, 0), status, server->weights);
    }
    if (server->raised[0] == NULL) return NULL;
    PyErr_Restore(server->raised[0], server->raised[1], server->raised[2]);
    return NULL;
}

static PyObject *serve_buffers(server_t *server, int32_t timeout_ms)
{
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    xep_status_t status;
    PyObject *error = NULL;
    args.buffers = server->list, args.count = server->count;
    args.timeout_ms = timeout_ms;
    args.fn = run_function, args.arg = server;
    set_served(server, 1);
    Py_BEGIN_ALLOW_THREADS
    status = lib.serve(&args);
    Py_END_ALLOW_THREADS
    set_served(server, 0);
    if (status >= 0) Py_RETURN_NONE;
    if (server->raised[0] == NULL) error = ext_error_new(status, NULL); /* first: of this thread's last call */
    if (server->count != 0) (void)end_serve(server, status);
    return error != NULL ? ext_raise_error(error) : NULL;
}

/* serve(buffers, function, timeout, torch): the package has its documentation. */
static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *args)
{
    server_t server = {.kind = EXT_NUMPY};
    PyObject *timeout, *result = NULL;
    int torch;
    int32_t timeout_ms = 0;
    if (!PyArg_ParseTuple(args, "O!OOp", &PyTuple_Type, &server.buffers, &server.function, &timeout, &torch) ||
        ext_args_timeout(timeout, &timeout_ms) != 0 || (torch && ext_tensor_kind(&server.kind) != 0))
        return NULL;
    if ((server.list = list_buffers(server.buffers, &server.count)) == NULL) return NULL;
    if ((server.weights = PyDict_New()) != NULL) result = serve_buffers(&server, timeout_ms);
    Py_XDECREF(server.weights);
    PyMem_Free(server.list);
    return result;
}

/* step_end(buffers, last). Local, but another thread may be in a buffer. */
static PyObject *step_end(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *buffers;
    int last;
    uint32_t count = 0;
    if (!PyArg_ParseTuple(args, "O!p", &PyTuple_Type, &buffers, &last)) return NULL;
    xep_buffer_t **list = list_buffers(buffers, &count);
    if (list == NULL) return NULL;
    xep_status_t status;
    Py_BEGIN_ALLOW_THREADS
    status = lib.step_end(list, count, last ? XEP_STEP_LAST : 0);
    Py_END_ALLOW_THREADS
    PyMem_Free(list);
    return ext_none_or_raise(status);
}

/* A store, and the GIL is kept. */
static PyObject *serve_stop(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    if (buffer == NULL) return NULL;
    lib.serve_stop(buffer);
    Py_RETURN_NONE;
}

static PyObject *announce_dispatch(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_request_begin((ext_buffer_t *)self);
    xep_status_t status;
    if (buffer == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.announce_dispatch(buffer);
    Py_END_ALLOW_THREADS
    return ext_none_or_raise(status);
}

static PyObject *announce_layers(PyObject *self, PyObject *args)
{
    unsigned layers;
    if (!PyArg_ParseTuple(args, "I:announce_layers", &layers)) return NULL;
    xep_buffer_t *buffer = ext_request_begin((ext_buffer_t *)self);
    xep_status_t status;
    if (buffer == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.announce_layers(buffer, layers);
    Py_END_ALLOW_THREADS
    return ext_none_or_raise(status);
}

PyMethodDef ext_serve_functions[] = {
    {"serve", serve, METH_VARARGS, NULL},
    {"step_end", step_end, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyMethodDef ext_serve_methods[] = {
    {"serve_stop", serve_stop, METH_NOARGS,
     "serve_stop($self)\n--\n\n"
     "Tells this rank's serve() with this buffer to return at the end of the step, or, where there is none, its next\n"
     "one. Local; any thread, also a signal handler."},
    {"announce_dispatch", announce_dispatch, METH_NOARGS,
     "announce_dispatch($self)\n--\n\n"
     "Announces that this rank's next operation of the buffer is a dispatch like its last one, of other tokens: ranks\n"
     "that serve begin it meanwhile. Local. InvalidError: there was no dispatch, it had a handle's routing, or one is\n"
     "announced, as for anything else that is begun then. BusyError: each slot holds a handle."},
    {"announce_layers", announce_layers, METH_VARARGS,
     "announce_layers($self, layers, /)\n--\n\n"
     "Announces that this rank's next operations of the buffer are, for each layer, a dispatch like its last one and\n"
     "the combine of its handle, like the last combine: ranks that serve take part in each when the one before has\n"
     "ended. Errors as of announce_dispatch(); also later for a combine of an older handle."},
    {NULL, NULL, 0, NULL},
};
