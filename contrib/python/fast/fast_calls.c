/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What stands in for methods and properties that Python has written: each does the same for what is like the last time,
 * and calls them for all else.
 */
#include "fast.h"

#include <stddef.h>
#include <structmember.h>

/** A method, or the getter of a property, and what it stands in for. */
typedef struct quick {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slow;
    PyObject *dict;
    size_t which; /* of a property: among the FAST_SHOWN; that: Handle.recv */
} quick_t;

static PyObject *slow_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    return PyObject_Vectorcall(((quick_t *)self)->slow, values, nargs & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

static fast_call_t call_of(PyObject *const *values, size_t nargs, PyObject *names)
{
    Py_ssize_t positional = PyVectorcall_NARGS(nargs) - 1;
    return (fast_call_t){values + 1, positional, positional + (names != NULL ? PyTuple_GET_SIZE(names) : 0), names};
}

/* What ended meanwhile is settled before every operation. */
static int begin(fast_buffer_t *buffer)
{
    fast_slots_drain(buffer->slots);
    if (buffer->pending == NULL || PySet_GET_SIZE(buffer->pending) == 0) return 0;
    PyObject *done = PyObject_CallMethod((PyObject *)buffer, "_begin", NULL);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* The arguments, which live as long as the operation. */
static PyObject *keep(const fast_call_t *call)
{
    PyObject *kept = PyTuple_New(call->count);
    for (Py_ssize_t i = 0; kept != NULL && i < call->count; i++) {
        Py_INCREF(call->values[i]);
        PyTuple_SET_ITEM(kept, i, call->values[i]);
    }
    return kept;
}

/* The Request that Python makes of it. Takes result over. */
static PyObject *in_flight(fast_buffer_t *buffer, const char *method, xep_request_t *request, PyObject *result, PyObject *self,
                           const fast_call_t *call)
{
    PyObject *kept = keep(call), *made = NULL;
    if (kept != NULL)
        made = PyObject_CallMethod((PyObject *)buffer, method, "KOOO", (unsigned long long)(uintptr_t)request, result, self, kept);
    Py_XDECREF(kept);
    Py_DECREF(result);
    return made;
}

/* ---- dispatch ---- */

/* Raises the error of an operation. rows: sent to this rank; UINT64_MAX: not known. */
static PyObject *refuse(fast_buffer_t *buffer, xep_status_t status, uint64_t rows)
{
    PyObject *none = PyObject_CallMethod((PyObject *)buffer, "_refuse", "iK", (int)status, (unsigned long long)rows);
    Py_XDECREF(none);
    return NULL;
}

static PyObject *dispatch_as(const fast_plan_t *plan, fast_buffer_t *buffer, const fast_call_t *call, xep_dispatch_args_t *args,
                             int begin_only)
{
    xep_handle_t *handle = NULL;
    xep_request_t *request = NULL;
    uint64_t rows = UINT64_MAX;
    fast_memory_t *memory = fast_slots_hold(buffer->slots, NULL);
    PyObject *made = memory != NULL ? fast_plan_handle(plan, buffer, memory, (Py_ssize_t)args->tokens) : NULL;
    xep_buffer_t *own = buffer->buffer;
    xep_status_t status;
    if (made == NULL) return NULL;
    fast_handle_t *owner = (fast_handle_t *)made;
    owner->rows = UINT64_MAX;
    args->recv_rows_p = begin_only ? &owner->rows : &rows; /* of one that goes on, the Request keeps the Handle */
    Py_BEGIN_ALLOW_THREADS
    status = fast_module.library.dispatch(own, args, &handle, begin_only ? &request : NULL);
    Py_END_ALLOW_THREADS
    if (status < 0) {
        Py_DECREF(made);
        return refuse(buffer, status, rows);
    }
    memory->handle = handle;
    return begin_only ? in_flight(buffer, "_dispatch_in_flight", request, made, Py_None, call) : made;
}

/* What Python made of a call: itself, or what its Request has; NULL: none. No exception. */
static PyObject *result_of(PyObject *made, int begin_only)
{
    if (!begin_only) {
        Py_INCREF(made);
        return made;
    }
    PyObject *result = PyObject_GetAttrString(made, "result");
    if (result == NULL) PyErr_Clear();
    return result;
}

static PyObject *slow_dispatch(PyObject *self, fast_buffer_t *buffer, PyObject *const *values, size_t nargs, PyObject *names,
                               int begin_only)
{
    const fast_call_t call = call_of(values, nargs, names);
    PyObject *made = slow_call(self, values, nargs, names);
    if (made == NULL) return NULL;
    PyObject *handle = result_of(made, begin_only);
    if (handle != NULL && Py_TYPE(handle) == fast_module.handle) fast_plan_learn(buffer, FAST_DISPATCH, &call, (fast_handle_t *)handle, NULL);
    Py_XDECREF(handle);
    return made;
}

static fast_buffer_t *open_buffer(PyObject *const *values, size_t nargs)
{
    if (PyVectorcall_NARGS(nargs) == 0 || !PyObject_TypeCheck(values[0], fast_module.buffer)) return NULL;
    fast_buffer_t *buffer = (fast_buffer_t *)values[0];
    return buffer->buffer != NULL ? buffer : NULL;
}

static PyObject *dispatch(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names, int begin_only)
{
    fast_args_t args;
    fast_buffer_t *buffer = open_buffer(values, nargs);
    if (buffer == NULL) return slow_call(self, values, nargs, names);
    const fast_call_t call = call_of(values, nargs, names);
    if (begin(buffer) != 0) return NULL;
    const fast_plan_t *plan = fast_plan_find(buffer, FAST_DISPATCH, &call, NULL, &args);
    if (plan == NULL) return slow_dispatch(self, buffer, values, nargs, names, begin_only);
    return dispatch_as(plan, buffer, &call, &args.dispatch, begin_only);
}

static PyObject *dispatch_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    return dispatch(self, values, nargs, names, 0);
}

static PyObject *dispatch_async_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    return dispatch(self, values, nargs, names, 1);
}

/* ---- combine ---- */

static fast_handle_t *live_handle(PyObject *const *values, size_t nargs)
{
    if (PyVectorcall_NARGS(nargs) == 0 || !PyObject_TypeCheck(values[0], fast_module.handle)) return NULL;
    fast_handle_t *handle = (fast_handle_t *)values[0];
    return handle->memory != NULL && handle->memory->handle != NULL ? handle : NULL;
}

static PyObject *combine_as(const fast_plan_t *plan, fast_handle_t *handle, const fast_call_t *call, xep_combine_args_t *args,
                            int begin_only)
{
    fast_buffer_t *buffer = (fast_buffer_t *)handle->buffer;
    xep_handle_t *own = handle->memory->handle;
    PyObject *result = fast_plan_result(plan, call, handle, args), *memory = (PyObject *)handle->memory;
    xep_request_t *request = NULL;
    xep_status_t status;
    if (result == NULL) return NULL;
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    status = fast_module.library.combine(own, args, begin_only ? &request : NULL);
    Py_END_ALLOW_THREADS
    Py_DECREF(memory);
    if (status < 0) {
        Py_DECREF(result);
        return refuse(buffer, status, UINT64_MAX);
    }
    return begin_only ? in_flight(buffer, "_combine_in_flight", request, result, (PyObject *)handle, call) : result;
}

static PyObject *slow_combine(PyObject *self, fast_handle_t *handle, PyObject *const *values, size_t nargs, PyObject *names,
                              int begin_only)
{
    const fast_call_t call = call_of(values, nargs, names);
    PyObject *made = slow_call(self, values, nargs, names);
    if (made == NULL) return NULL;
    PyObject *result = result_of(made, begin_only);
    if (result != NULL) fast_plan_learn((fast_buffer_t *)handle->buffer, FAST_COMBINE, &call, handle, result);
    Py_XDECREF(result);
    return made;
}

static PyObject *combine(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names, int begin_only)
{
    fast_args_t args;
    fast_handle_t *handle = live_handle(values, nargs);
    if (handle == NULL) return slow_call(self, values, nargs, names);
    const fast_call_t call = call_of(values, nargs, names);
    fast_buffer_t *buffer = (fast_buffer_t *)handle->buffer;
    if (begin(buffer) != 0) return NULL;
    const fast_plan_t *plan = fast_plan_find(buffer, FAST_COMBINE, &call, handle, &args);
    if (plan == NULL) return slow_combine(self, handle, values, nargs, names, begin_only);
    return combine_as(plan, handle, &call, &args.combine, begin_only);
}

static PyObject *combine_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    return combine(self, values, nargs, names, 0);
}

static PyObject *combine_async_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    return combine(self, values, nargs, names, 1);
}

/* ---- arrays of a handle ---- */

/* Extents of received rows, as shape_of() in received.py has them; 0: without elements. */
static int extent_of(const xep_recv_t *recv, size_t rows, size_t columns, ptrdiff_t stride, ptrdiff_t step, fast_array_t *extent)
{
    const size_t experts = recv->local_experts;
    *extent = (fast_array_t){.ndim = 2, .shape = {(Py_ssize_t)rows, (Py_ssize_t)columns}, .strides = {stride, step}};
    if (recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED && experts > 0) {
        const Py_ssize_t each = (Py_ssize_t)(recv->capacity / experts);
        *extent = (fast_array_t){
            .ndim = 3, .shape = {(Py_ssize_t)experts, each, (Py_ssize_t)columns}, .strides = {each * stride, stride, step}};
    }
    for (int i = 0; i < extent->ndim; i++)
        if (extent->shape[i] == 0) return 0;
    return 1;
}

static PyObject *combine_input_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    fast_handle_t *handle = live_handle(values, nargs);
    const fast_kind_t kind = handle != NULL ? handle->kind : FAST_OTHER;
    fast_array_t extent;
    size_t stride = 0;
    void *address;
    if (kind == FAST_OTHER || PyVectorcall_NARGS(nargs) != 1 || names != NULL)
        return slow_call(self, values, nargs, names);
    fast_buffer_t *buffer = (fast_buffer_t *)handle->buffer;
    const Py_ssize_t size = (Py_ssize_t)fast_module.library.dtype_size(buffer->combine_dtype);
    const fast_type_t type = fast_array_type(kind, buffer->combine_dtype);
    if (!fast_handle_is_counted(handle) || type == 0 ||
        !extent_of(handle->recv, handle->recv->rows, (size_t)handle->hidden, 0, size, &extent))
        return slow_call(self, values, nargs, names);
    PyObject *memory = (PyObject *)handle->memory;
    xep_handle_t *own = handle->memory->handle;
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    address = fast_module.library.combine_input(own, &stride);
    Py_END_ALLOW_THREADS
    extent.strides[extent.ndim - 2] = (Py_ssize_t)stride;
    if (extent.ndim == 3) extent.strides[0] = extent.shape[1] * (Py_ssize_t)stride;
    PyObject *view = address != NULL ? fast_array_view(kind, type, address, &extent, size, memory)
                                     : slow_call(self, values, nargs, names); /* raises */
    Py_DECREF(memory);
    return view;
}

static PyObject *release_call(PyObject *self, PyObject *const *values, size_t nargs, PyObject *names)
{
    fast_handle_t *handle = live_handle(values, nargs);
    if (handle == NULL || (handle->others != NULL && PyDict_GET_SIZE(handle->others) > 0) || PyVectorcall_NARGS(nargs) != 1 || names != NULL)
        return slow_call(self, values, nargs, names);
    if (handle->shown != NULL) fast_received_forget(handle->shown);
    fast_handle_let_go(handle);
    fast_slots_drain(((fast_buffer_t *)handle->buffer)->slots);
    Py_RETURN_NONE;
}

/* ---- properties ---- */

static PyObject *get_recv(quick_t *self, fast_handle_t *handle)
{
    if (handle->kind == FAST_OTHER || !fast_handle_is_counted(handle)) return PyObject_CallOneArg(self->slow, (PyObject *)handle);
    if (handle->shown != NULL) {
        Py_INCREF(handle->shown);
        return (PyObject *)handle->shown;
    }
    fast_received_t *received = (fast_received_t *)fast_module.received->tp_alloc(fast_module.received, 0);
    if (received == NULL) return NULL;
    received->handle = handle;
    received->adapter = handle->adapter;
    received->native = handle->native;
    Py_INCREF(handle);
    Py_INCREF(handle->adapter);
    Py_INCREF(handle->native);
    const size_t bytes = handle->recv->size;
    memcpy(&received->recv, handle->recv, bytes < sizeof received->recv ? bytes : sizeof received->recv);
    handle->shown = received;
    return (PyObject *)received;
}

/* Address, type and extent; 0: not one that is made here. */
static int shown_array(const fast_received_t *received, size_t which, void **address_p, fast_type_t *type_p, Py_ssize_t *size_p,
                       fast_array_t *extent)
{
    const fast_handle_t *handle = received->handle;
    const xep_recv_t *recv = &received->recv;
    xep_dtype_t dtype = recv->dtype;
    size_t columns = recv->topk;
    ptrdiff_t stride;
    switch (which) {
    case FAST_SHOWN_X: *address_p = recv->x, columns = recv->hidden; break;
    case FAST_SHOWN_TOPK_IDX: *address_p = recv->topk_idx, dtype = recv->topk_idx_dtype; break;
    case FAST_SHOWN_TOPK_WEIGHTS: *address_p = recv->topk_weights, dtype = XEP_FP32; break;
    default: *address_p = recv->src_token, dtype = XEP_INT32;
    }
    *size_p = (Py_ssize_t)fast_module.library.dtype_size(dtype);
    *type_p = which == FAST_SHOWN_X && recv->quant == XEP_QUANT_NONE ? handle->type : fast_array_type(handle->kind, dtype);
    stride = which == FAST_SHOWN_X ? (ptrdiff_t)recv->x_stride : (ptrdiff_t)columns * *size_p;
    if (*address_p == NULL || *type_p == 0) return 0;
    if (which != FAST_SHOWN_SRC_TOKEN) return extent_of(recv, recv->capacity, columns, stride, *size_p, extent);
    *extent = (fast_array_t){.ndim = 1, .shape = {(Py_ssize_t)recv->capacity}, .strides = {*size_p}};
    return recv->capacity > 0;
}

static PyObject *get_array(quick_t *self, fast_received_t *received)
{
    const fast_handle_t *handle = received->handle;
    fast_array_t extent;
    fast_type_t type;
    Py_ssize_t size;
    void *address;
    PyObject **kept = &received->arrays[self->which];
    if (*kept == NULL) {
        if (handle == NULL || handle->memory == NULL || handle->shown != received ||
            !shown_array(received, self->which, &address, &type, &size, &extent))
            return PyObject_CallOneArg(self->slow, (PyObject *)received);
        *kept = fast_array_view(handle->kind, type, address, &extent, size, (PyObject *)handle->memory);
    }
    Py_XINCREF(*kept);
    return *kept;
}

/* ---- their types ---- */

static int quick_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((quick_t *)self)->slow);
    Py_VISIT(((quick_t *)self)->dict);
    return 0;
}

static int quick_clear(PyObject *self)
{
    Py_CLEAR(((quick_t *)self)->slow);
    Py_CLEAR(((quick_t *)self)->dict);
    return 0;
}

static void quick_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    quick_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *method_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    if (object != NULL && object != Py_None) return PyMethod_New(self, object);
    Py_INCREF(self);
    return self;
}

static PyObject *property_get(PyObject *self, PyObject *object, PyObject *type)
{
    quick_t *quick = (quick_t *)self;
    (void)type;
    if (object == NULL || object == Py_None) {
        Py_INCREF(self);
        return self;
    }
    if (quick->which == FAST_SHOWN) return get_recv(quick, (fast_handle_t *)object);
    return get_array(quick, (fast_received_t *)object);
}

static int property_set(PyObject *self, PyObject *object, PyObject *value)
{
    (void)object;
    (void)value;
    PyErr_Format(PyExc_AttributeError, "%R cannot be set", ((quick_t *)self)->slow);
    return -1;
}

static PyMemberDef quick_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(quick_t, dict), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(quick_t, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef quick_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot method_slots[] = {
    {Py_tp_dealloc, quick_dealloc}, {Py_tp_traverse, quick_traverse}, {Py_tp_clear, quick_clear},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, method_get},   {Py_tp_members, quick_members},
    {Py_tp_getset, quick_getset},   {0, NULL},
};

static PyType_Spec method_spec = {
    "xep._fast.method", sizeof(quick_t), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL, method_slots};

static PyType_Slot property_slots[] = {
    {Py_tp_dealloc, quick_dealloc},   {Py_tp_traverse, quick_traverse}, {Py_tp_clear, quick_clear},
    {Py_tp_descr_get, property_get},  {Py_tp_descr_set, property_set},  {Py_tp_members, quick_members},
    {Py_tp_getset, quick_getset},     {0, NULL},
};

static PyType_Spec property_spec = {"xep._fast.property", sizeof(quick_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, property_slots};

/* ---- making them ---- */

static PyTypeObject *method_type, *property_type;

static const struct {
    const char *name;
    vectorcallfunc call;
} quick_methods[] = {
    {"Buffer.dispatch", dispatch_call}, {"Buffer.dispatch_async", dispatch_async_call},
    {"Handle.combine", combine_call},   {"Handle.combine_async", combine_async_call},
    {"Handle.release", release_call},   {"Handle.combine_input", combine_input_call},
};

static const char *const quick_properties[FAST_SHOWN + 1] = {
    "Received.x", "Received.topk_idx", "Received.topk_weights", "Received.src_token", "Handle.recv"};

static PyObject *quick_new(PyTypeObject *type, PyObject *slow, vectorcallfunc call, size_t which)
{
    quick_t *quick = (quick_t *)type->tp_alloc(type, 0);
    if (quick == NULL) return NULL;
    Py_INCREF(slow);
    quick->slow = slow;
    quick->call = call;
    quick->which = which;
    return (PyObject *)quick;
}

/* name: "Class.method"; slow: the function that does it in Python. None: there is nothing quicker. */
static PyObject *make_quick(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *slow;
    (void)module;
    if (!PyArg_ParseTuple(args, "sO", &name, &slow)) return NULL;
    for (size_t i = 0; i < sizeof quick_methods / sizeof *quick_methods; i++)
        if (strcmp(name, quick_methods[i].name) == 0) return quick_new(method_type, slow, quick_methods[i].call, 0);
    for (size_t i = 0; i <= FAST_SHOWN; i++)
        if (strcmp(name, quick_properties[i]) == 0) return quick_new(property_type, slow, NULL, i);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"quick", make_quick, METH_VARARGS, "What stands in for a function of the package, or None."},
    {NULL, NULL, 0, NULL},
};

int fast_calls_ready(PyObject *module)
{
    method_type = (PyTypeObject *)PyType_FromSpec(&method_spec);
    property_type = (PyTypeObject *)PyType_FromSpec(&property_spec);
    if (method_type == NULL || property_type == NULL) return -1;
    return PyModule_AddFunctions(module, functions);
}
