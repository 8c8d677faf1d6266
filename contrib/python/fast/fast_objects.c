/* SPDX-License-Identifier: BSD-3-Clause */

/* What Buffer, Handle and Received are made of: their fields, as Python sees them. */
#include "fast.h"

#include <stddef.h>
#include <structmember.h>

static PyObject *or_none(void *object)
{
    PyObject *found = object != NULL ? object : Py_None;
    Py_INCREF(found);
    return found;
}

/* The dictionary of a field, made when it is asked for. */
static PyObject *dict_of(PyObject **field)
{
    if (*field == NULL) *field = PyDict_New();
    Py_XINCREF(*field);
    return *field;
}

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    return type == NULL ? -1 : PyModule_AddObject(module, name, type);
}

/* ---- Handle ---- */

static void drop_memory(fast_handle_t *handle)
{
    fast_memory_t *memory = handle->memory;
    if (memory == NULL) return;
    if (memory->owner == handle) memory->owner = NULL;
    handle->memory = NULL;
    handle->recv = NULL;
    Py_DECREF(memory);
}

void fast_handle_let_go(fast_handle_t *handle)
{
    Py_CLEAR(handle->counted);
    drop_memory(handle);
}

int fast_handle_is_counted(fast_handle_t *handle)
{
    if (handle->memory == NULL || handle->memory->handle == NULL) return 0;
    if (handle->recv == NULL) handle->recv = fast_module.library.recv(handle->memory->handle);
    return handle->recv != NULL;
}

static int handle_clear(PyObject *self)
{
    fast_handle_t *handle = (fast_handle_t *)self;
    fast_handle_let_go(handle);
    Py_CLEAR(handle->buffer);
    Py_CLEAR(handle->adapter);
    Py_CLEAR(handle->native);
    Py_CLEAR(handle->others);
    return 0;
}

static int handle_traverse(PyObject *self, visitproc visit, void *arg)
{
    fast_handle_t *handle = (fast_handle_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(handle->buffer);
    Py_VISIT(handle->adapter);
    Py_VISIT(handle->native);
    Py_VISIT(handle->others);
    Py_VISIT(handle->counted);
    return 0;
}

static void handle_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (((fast_handle_t *)self)->weak != NULL) PyObject_ClearWeakRefs(self);
    handle_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *handle_get_memory(PyObject *self, void *unused)
{
    (void)unused;
    return or_none(((fast_handle_t *)self)->memory);
}

static int handle_set_memory(PyObject *self, PyObject *value, void *unused)
{
    fast_handle_t *handle = (fast_handle_t *)self;
    (void)unused;
    drop_memory(handle);
    if (value == NULL || value == Py_None) return 0;
    if (Py_TYPE(value) != fast_module.memory) {
        PyErr_SetString(PyExc_TypeError, "_memory: expected a SlotMemory or None");
        return -1;
    }
    Py_INCREF(value);
    handle->memory = (fast_memory_t *)value;
    handle->memory->owner = handle;
    return 0;
}

static PyObject *handle_get_shown(PyObject *self, void *unused)
{
    (void)unused;
    return or_none(((fast_handle_t *)self)->shown);
}

static PyObject *handle_get_others(PyObject *self, void *unused)
{
    (void)unused;
    return dict_of(&((fast_handle_t *)self)->others);
}

static PyGetSetDef handle_getset[] = {
    {"_memory", handle_get_memory, handle_set_memory, NULL, NULL},
    {"_shown", handle_get_shown, NULL, NULL, NULL},
    {"_received", handle_get_others, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef handle_members[] = {
    {"_buffer", T_OBJECT, offsetof(fast_handle_t, buffer), 0, NULL},
    {"_adapter", T_OBJECT, offsetof(fast_handle_t, adapter), 0, NULL},
    {"_native", T_OBJECT, offsetof(fast_handle_t, native), 0, NULL},
    {"_struct", T_OBJECT, offsetof(fast_handle_t, counted), 0, NULL},
    {"_rows", T_ULONGLONG, offsetof(fast_handle_t, rows), 0, NULL},
    {"tokens", T_PYSSIZET, offsetof(fast_handle_t, tokens), 0, "T of the dispatch."},
    {"topk", T_PYSSIZET, offsetof(fast_handle_t, topk), 0, "K of the dispatch."},
    {"hidden", T_PYSSIZET, offsetof(fast_handle_t, hidden), 0, "H of the dispatch."},
    {"nranks", T_PYSSIZET, offsetof(fast_handle_t, nranks), 0, "R of the group."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fast_handle_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot handle_slots[] = {
    {Py_tp_dealloc, handle_dealloc}, {Py_tp_traverse, handle_traverse}, {Py_tp_clear, handle_clear},
    {Py_tp_getset, handle_getset},   {Py_tp_members, handle_members},   {0, NULL},
};

static PyType_Spec handle_spec = {"xep._fast.HandleBase", sizeof(fast_handle_t), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, handle_slots};

/* ---- Received ---- */

void fast_received_forget(fast_received_t *received)
{
    for (int i = 0; i < FAST_SHOWN; i++) Py_CLEAR(received->arrays[i]);
    Py_CLEAR(received->cache);
}

/* Not known to the garbage collector: nothing that it refers to can refer to it. */
static void received_dealloc(PyObject *self)
{
    fast_received_t *received = (fast_received_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (received->weak != NULL) PyObject_ClearWeakRefs(self);
    if (received->handle != NULL && received->handle->shown == received) received->handle->shown = NULL;
    fast_received_forget(received);
    Py_CLEAR(received->handle);
    Py_CLEAR(received->struct_view);
    Py_CLEAR(received->adapter);
    Py_CLEAR(received->native);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *received_get_handle(PyObject *self, void *unused)
{
    (void)unused;
    return or_none(((fast_received_t *)self)->handle);
}

static int received_set_handle(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value == NULL || !PyObject_TypeCheck(value, fast_module.handle)) {
        PyErr_SetString(PyExc_TypeError, "_handle: expected a Handle");
        return -1;
    }
    Py_INCREF(value);
    Py_XSETREF(((fast_received_t *)self)->handle, (fast_handle_t *)value);
    return 0;
}

/* No cycle: the view reads memory of this object, and nothing but this object refers to the view. */
static PyObject *received_get_recv(PyObject *self, void *unused)
{
    fast_received_t *received = (fast_received_t *)self;
    (void)unused;
    if (received->struct_view == NULL)
        received->struct_view = PyObject_CallFunction(fast_module.recv_view, "K", (unsigned long long)(uintptr_t)&received->recv);
    Py_XINCREF(received->struct_view);
    return received->struct_view;
}

static int received_set_recv(PyObject *self, PyObject *value, void *unused)
{
    fast_received_t *received = (fast_received_t *)self;
    Py_buffer from;
    (void)unused;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "_recv: cannot be deleted");
        return -1;
    }
    if (PyObject_GetBuffer(value, &from, PyBUF_SIMPLE) != 0) return -1;
    memmove(&received->recv, from.buf, (size_t)from.len < sizeof received->recv ? (size_t)from.len : sizeof received->recv);
    PyBuffer_Release(&from);
    return 0;
}

static PyObject *received_get_cache(PyObject *self, void *unused)
{
    (void)unused;
    return dict_of(&((fast_received_t *)self)->cache);
}

static PyObject *received_end(PyObject *self, PyObject *unused)
{
    (void)unused;
    fast_received_forget((fast_received_t *)self);
    Py_RETURN_NONE;
}

static PyMethodDef received_methods[] = {
    {"_forget", received_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef received_getset[] = {
    {"_handle", received_get_handle, received_set_handle, NULL, NULL},
    {"_recv", received_get_recv, received_set_recv, NULL, NULL},
    {"_cache", received_get_cache, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef received_members[] = {
    {"_adapter", T_OBJECT, offsetof(fast_received_t, adapter), 0, NULL},
    {"_native", T_OBJECT, offsetof(fast_received_t, native), 0, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fast_received_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot received_slots[] = {
    {Py_tp_dealloc, received_dealloc}, {Py_tp_methods, received_methods}, {Py_tp_getset, received_getset},
    {Py_tp_members, received_members}, {0, NULL},
};

static PyType_Spec received_spec = {"xep._fast.ReceivedBase", sizeof(fast_received_t), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, received_slots};

/* ---- Buffer ---- */

static int buffer_clear(PyObject *self)
{
    fast_buffer_t *buffer = (fast_buffer_t *)self;
    Py_CLEAR(buffer->slots);
    Py_CLEAR(buffer->pending);
    for (int operation = 0; operation < FAST_OPERATIONS; operation++)
        for (int i = 0; i < FAST_PLANS; i++) {
            fast_plan_free(buffer->plans[operation][i]);
            buffer->plans[operation][i] = NULL;
        }
    return 0;
}

static int buffer_traverse(PyObject *self, visitproc visit, void *arg)
{
    fast_buffer_t *buffer = (fast_buffer_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(buffer->slots);
    Py_VISIT(buffer->pending);
    return 0;
}

static void buffer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    buffer_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *buffer_get_address(PyObject *self, void *unused)
{
    xep_buffer_t *buffer = ((fast_buffer_t *)self)->buffer;
    (void)unused;
    return buffer == NULL ? or_none(NULL) : PyLong_FromVoidPtr(buffer);
}

static int buffer_set_address(PyObject *self, PyObject *value, void *unused)
{
    void *address = value == NULL || value == Py_None ? NULL : PyLong_AsVoidPtr(value);
    (void)unused;
    if (PyErr_Occurred()) return -1;
    ((fast_buffer_t *)self)->buffer = address;
    return 0;
}

/* Where Python fills the structs, and what else it knows: once for each buffer. */
static PyObject *buffer_speed_up(PyObject *self, PyObject *args)
{
    fast_buffer_t *buffer = (fast_buffer_t *)self;
    unsigned long long dispatch, combine;
    int combine_dtype;
    if (!PyArg_ParseTuple(args, "KKin", &dispatch, &combine, &combine_dtype, &buffer->nranks)) return NULL;
    buffer->structs[FAST_DISPATCH] = (const void *)(uintptr_t)dispatch;
    buffer->structs[FAST_COMBINE] = (const void *)(uintptr_t)combine;
    buffer->combine_dtype = (xep_dtype_t)combine_dtype;
    Py_RETURN_NONE;
}

static PyGetSetDef buffer_getset[] = {
    {"_buffer", buffer_get_address, buffer_set_address, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef buffer_members[] = {
    {"_slots", T_OBJECT, offsetof(fast_buffer_t, slots), 0, NULL},
    {"_pending", T_OBJECT, offsetof(fast_buffer_t, pending), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef buffer_methods[] = {
    {"_speed_up", buffer_speed_up, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, buffer_dealloc}, {Py_tp_traverse, buffer_traverse}, {Py_tp_clear, buffer_clear},
    {Py_tp_getset, buffer_getset},   {Py_tp_members, buffer_members},   {Py_tp_methods, buffer_methods},
    {0, NULL},
};

static PyType_Spec buffer_spec = {"xep._fast.BufferBase", sizeof(fast_buffer_t), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, buffer_slots};

int fast_objects_ready(PyObject *module)
{
    if (add_type(module, "BufferBase", &buffer_spec) != 0) return -1;
    if (add_type(module, "HandleBase", &handle_spec) != 0) return -1;
    return add_type(module, "ReceivedBase", &received_spec);
}
