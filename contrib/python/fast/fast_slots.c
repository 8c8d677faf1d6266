/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Which slots are in use, by handles and by arrays. A slot goes back when the last reference to its memory does. That may
 * happen on any thread, also inside a call of the library, so it is only noted then, and told to the library by the next operation.
 */
#include "fast.h"

#include <stddef.h>
#include <structmember.h>

/* ---- memory ---- */

static void unlink_memory(fast_memory_t *memory)
{
    if (memory->previous == NULL) return;
    *memory->previous = memory->next;
    if (memory->next != NULL) memory->next->previous = memory->previous;
    memory->previous = NULL;
    memory->slots->held--;
}

static void memory_dealloc(PyObject *self)
{
    fast_memory_t *memory = (fast_memory_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (memory->weak != NULL) PyObject_ClearWeakRefs(self);
    unlink_memory(memory);
    if (memory->handle != NULL) memory->slots->ended[memory->slots->nended++] = memory->handle; /* there is room: make_room */
    Py_XDECREF(memory->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    fast_slots_t *slots = ((fast_memory_t *)self)->slots;
    return PyBuffer_FillInfo(view, self, slots->base, slots->bytes, 0, flags);
}

static PyObject *memory_handle(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((fast_memory_t *)self)->handle);
}

static PyGetSetDef memory_getset[] = {
    {"handle", memory_handle, NULL, "Address of the library's handle, or 0.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef memory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fast_memory_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_getset, memory_getset},
    {Py_tp_members, memory_members},
    {Py_bf_getbuffer, memory_buffer},
    {Py_tp_doc, "The buffer's memory, held for one handle: what every array of its rows is based on."},
    {0, NULL},
};

static PyType_Spec memory_spec = {"xep._fast.SlotMemory", sizeof(fast_memory_t), 0, Py_TPFLAGS_DEFAULT, memory_slots};

/* ---- slots ---- */

static int make_room(fast_slots_t *slots)
{
    Py_ssize_t need = slots->held + slots->nended + 1;
    if (need <= slots->room) return 0;
    xep_handle_t **ended = PyMem_Realloc(slots->ended, sizeof *ended * (size_t)need * 2);
    if (ended == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    slots->ended = ended;
    slots->room = need * 2;
    return 0;
}

static fast_memory_t *new_memory(fast_slots_t *slots)
{
    fast_memory_t *memory = (fast_memory_t *)fast_module.memory->tp_alloc(fast_module.memory, 0);
    if (memory == NULL) return NULL;
    Py_INCREF(slots);
    memory->slots = slots;
    return memory;
}

fast_memory_t *fast_slots_hold(fast_slots_t *slots, xep_handle_t *handle)
{
    fast_memory_t *memory = make_room(slots) == 0 ? new_memory(slots) : NULL;
    if (memory == NULL) return NULL;
    memory->handle = handle;
    memory->next = slots->first;
    memory->previous = &slots->first;
    if (slots->first != NULL) slots->first->previous = &memory->next;
    slots->first = memory;
    slots->held++;
    return memory;
}

void fast_slots_drain(fast_slots_t *slots)
{
    while (slots->nended > 0) fast_module.library.release(slots->ended[--slots->nended]);
}

static int slots_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"base", "bytes", NULL};
    fast_slots_t *slots = (fast_slots_t *)self;
    unsigned long long base;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "Kn", names, &base, &slots->bytes)) return -1;
    slots->base = (char *)(uintptr_t)base;
    return 0;
}

static void slots_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((fast_slots_t *)self)->ended);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *slots_hold(PyObject *self, PyObject *address)
{
    void *handle = PyLong_AsVoidPtr(address);
    return PyErr_Occurred() ? NULL : (PyObject *)fast_slots_hold((fast_slots_t *)self, handle);
}

static PyObject *slots_whole(PyObject *self, PyObject *unused)
{
    (void)unused;
    return (PyObject *)new_memory((fast_slots_t *)self);
}

static PyObject *slots_drain(PyObject *self, PyObject *unused)
{
    (void)unused;
    fast_slots_drain((fast_slots_t *)self);
    Py_RETURN_NONE;
}

static PyObject *slots_owners(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *owners = PyList_New(0);
    for (fast_memory_t *memory = ((fast_slots_t *)self)->first; owners != NULL && memory != NULL; memory = memory->next)
        if (memory->owner != NULL && PyList_Append(owners, (PyObject *)memory->owner) != 0) Py_CLEAR(owners);
    return owners;
}

static PyObject *slots_orphans(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_ssize_t count = 0;
    for (fast_memory_t *memory = ((fast_slots_t *)self)->first; memory != NULL; memory = memory->next) count += memory->owner == NULL;
    return PyLong_FromSsize_t(count);
}

static PyObject *slots_forget(PyObject *self, PyObject *unused)
{
    fast_slots_t *slots = (fast_slots_t *)self;
    (void)unused;
    while (slots->first != NULL) {
        slots->first->handle = NULL;
        unlink_memory(slots->first);
    }
    slots->nended = 0;
    Py_RETURN_NONE;
}

static Py_ssize_t slots_length(PyObject *self)
{
    return ((fast_slots_t *)self)->held;
}

/* the docstrings are those of the Python version of the class, in _plain.py */
static PyMethodDef slots_methods[] = {
    {"hold", slots_hold, METH_O, NULL},           {"whole", slots_whole, METH_NOARGS, NULL},
    {"drain", slots_drain, METH_NOARGS, NULL},    {"owners", slots_owners, METH_NOARGS, NULL},
    {"orphans", slots_orphans, METH_NOARGS, NULL}, {"forget", slots_forget, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots_slots[] = {
    {Py_tp_init, slots_init},       {Py_tp_dealloc, slots_dealloc}, {Py_tp_methods, slots_methods},
    {Py_sq_length, slots_length},   {Py_tp_doc, "The slots in use of one buffer."},
    {0, NULL},
};

static PyType_Spec slots_spec = {"xep._fast.Slots", sizeof(fast_slots_t), 0, Py_TPFLAGS_DEFAULT, slots_slots};

int fast_slots_ready(PyObject *module)
{
    fast_module.memory = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    PyObject *slots = PyType_FromSpec(&slots_spec);
    if (fast_module.memory == NULL || slots == NULL) return -1;
    Py_INCREF(fast_module.memory);
    if (PyModule_AddObject(module, "SlotMemory", (PyObject *)fast_module.memory) != 0) return -1;
    return PyModule_AddObject(module, "Slots", slots);
}
