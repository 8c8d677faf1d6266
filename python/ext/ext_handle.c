/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A handle has two lives: the object, and the memory that it shares with the arrays of its rows. release() ends the
 * first; the slot goes back when the second has ended.
 */
#include "ext_handle.h"

#include "ext_arrays.h"
#include "ext_failed.h"
#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *handle_type;

/*
 * A new reference. memory->owner is not counted: forget() clears it before the handle goes.
 */
ext_handle_t *ext_handle_new(ext_buffer_t *buffer, const ext_element_t *element, Py_ssize_t tokens, Py_ssize_t topk,
                             Py_ssize_t hidden)
{
    ext_memory_t *memory = ext_slots_hold(&buffer->slots, (PyObject *)buffer);
    ext_handle_t *handle = memory != NULL ? (ext_handle_t *)handle_type->tp_alloc(handle_type, 0) : NULL;
    if (handle == NULL) {
        Py_XDECREF(memory);
        return NULL;
    }
    Py_INCREF(buffer);
    handle->buffer = buffer;
    handle->memory = memory;
    memory->owner = (PyObject *)handle;
    handle->element = *element;
    handle->input = (ext_element_t){.kind = element->kind, .dtype = buffer->combine_dtype, .where = buffer->where};
    handle->tokens = tokens, handle->topk = topk, handle->hidden = hidden;
    handle->nranks = buffer->group->nranks;
    handle->rows = EXT_UNKNOWN_ROWS;
    return handle;
}

int ext_handle_check(PyObject *object)
{
    return Py_TYPE(object) == handle_type;
}

xep_handle_t *ext_handle_get(const ext_handle_t *handle)
{
    if (handle->memory == NULL || handle->memory->handle == NULL) {
        PyErr_SetString(PyExc_ValueError, "the handle was released, or its buffer closed or reset");
        return NULL;
    }
    return ext_group_is_own(handle->buffer->group) == 0 ? handle->memory->handle : NULL;
}

/* The library's own struct, which it writes anew with each piece. */
const xep_recv_t *ext_handle_recv(const ext_handle_t *handle)
{
    xep_handle_t *own = ext_handle_get(handle);
    const xep_recv_t *recv;
    if (own == NULL) return NULL;
    xep_status_t status = lib.handle_recv(own, &recv);
    if (status == XEP_OK) return recv;
    if (status != XEP_INPROGRESS) ext_raise(status);
    else ext_raise_error(ext_error_new(XEP_ERR_INVALID, "invalid handle: its dispatch is in flight"));
    return NULL;
}

void ext_handle_forget_arrays(ext_shown_t *shown)
{
    for (int i = 0; i < EXT_VIEWS + EXT_COUNTS; i++) Py_CLEAR(shown->arrays[i]);
}

/*
 * Also called by clear() and for a handle that was released: a second time it does nothing. The arrays that Received
 * keeps must go first, or they would hold the memory.
 */
void ext_handle_forget(ext_handle_t *handle)
{
    ext_memory_t *memory = handle->memory;
    for (int kind = 0; kind < EXT_KINDS; kind++)
        if (handle->shown[kind] != NULL) ext_handle_forget_arrays(handle->shown[kind]);
    Py_CLEAR(handle->sent);
    Py_CLEAR(handle->given);
    handle->memory = NULL;
    ext_recent_forget(&handle->buffer->recent, handle);
    if (memory != NULL) memory->owner = NULL;
    Py_XDECREF(memory);
}

/* The library is asked, and not a Received, whose copy is of the piece that it was made for. */
void ext_handle_came(ext_handle_t *handle)
{
    if (handle->sent == NULL || handle->memory == NULL) return;
    const xep_recv_t *recv;
    if (lib.handle_recv(handle->memory->handle, &recv) == XEP_OK && recv->piece + 1 >= recv->pieces)
        Py_CLEAR(handle->sent);
}

/* ---- what it says ---- */

/* The library's handle of a slot is always the same one, so its address names the slot. */
static PyObject *get_slot(PyObject *self, void *Py_UNUSED(unused))
{
    xep_handle_t *own = ext_handle_get((ext_handle_t *)self);
    return own != NULL ? PyLong_FromVoidPtr(own) : NULL;
}

static PyObject *get_rows(PyObject *self, void *Py_UNUSED(unused))
{
    const xep_recv_t *recv = ext_handle_recv((ext_handle_t *)self);
    return recv != NULL ? PyLong_FromUnsignedLongLong(recv->rows) : NULL;
}

static PyObject *represent(PyObject *self)
{
    return ext_call_helper("show_handle", "(O)", self);
}

static PyObject *get_parked(PyObject *self, void *Py_UNUSED(unused))
{
    PyObject *parked = ((ext_handle_t *)self)->parked;
    if (parked == NULL) Py_RETURN_NONE;
    Py_INCREF(parked);
    return parked;
}

static PyObject *get_memory(PyObject *self, void *Py_UNUSED(unused))
{
    PyObject *memory = (PyObject *)((ext_handle_t *)self)->memory;
    if (memory == NULL) Py_RETURN_NONE;
    Py_INCREF(memory);
    return memory;
}

/* For whoever knows where rows will be before they are there. */
static PyObject *view(PyObject *self, PyObject *args)
{
    ext_handle_t *handle = (ext_handle_t *)self;
    ext_array_t look = {.element = {.kind = EXT_TORCH, .where = handle->buffer->where}};
    unsigned long long address;
    PyObject *shape, *strides;
    int dtype;
    if (!PyArg_ParseTuple(args, "KO!O!i", &address, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &dtype) ||
        ext_handle_get(handle) == NULL)
        return NULL;
    look.data = (char *)(uintptr_t)address;
    look.element.dtype = (xep_dtype_t)dtype;
    look.ndim = (int)PyTuple_GET_SIZE(shape);
    if (look.ndim > EXT_DIMS || PyTuple_GET_SIZE(strides) != look.ndim)
        return PyErr_Format(PyExc_ValueError, "shape, strides: expected %d numbers at most, as many of each", EXT_DIMS);
    for (int i = 0; i < look.ndim; i++) {
        look.shape[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        look.strides[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, i));
    }
    return PyErr_Occurred() == NULL ? ext_array_view(&look, (PyObject *)handle->memory) : NULL;
}

/* ---- end ---- */

/*
 * Drains at once where that is allowed, so that the slot is free when release() returns. A forked child only forgets:
 * the handle is not its own.
 */
static PyObject *release(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_handle_t *handle = (ext_handle_t *)self;
    ext_handle_forget(handle);
    if (handle->buffer->buffer != NULL && handle->buffer->group->forks == ext_forks())
        ext_slots_drain(&handle->buffer->slots);
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Py_INCREF(self);
    return self;
}

static PyObject *leave(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    return release(self, NULL);
}

/* ---- its type ---- */

static int clear(PyObject *self)
{
    ext_handle_t *handle = (ext_handle_t *)self;
    if (handle->buffer != NULL) ext_handle_forget(handle);
    Py_CLEAR(handle->parked);
    Py_CLEAR(handle->buffer);
    return 0;
}

/* shown is not visited, as it is not counted. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((ext_handle_t *)self)->buffer);
    Py_VISIT(((ext_handle_t *)self)->memory);
    Py_VISIT(((ext_handle_t *)self)->sent);
    Py_VISIT(((ext_handle_t *)self)->given);
    Py_VISIT(((ext_handle_t *)self)->parked);
    return 0;
}

static void dealloc(PyObject *self)
{
    ext_dealloc(self, ((ext_handle_t *)self)->weak, clear);
}

static PyMethodDef methods[] = {
    {"release", release, METH_NOARGS,
     "release($self)\n--\n\n"
     "Gives the slot back, at the latest when the last array of its rows is gone. Local; again: a no-op."},
    {"_view", view, METH_VARARGS,
     "_view($self, address, shape, strides, dtype)\n--\n\nA tensor over memory of the slot; strides in bytes."},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"rows", get_rows, NULL, "Rows received.", NULL},
    {"slot", get_slot, NULL,
     "Names the slot: handles of a buffer that have the same have their rows at the same place, one after the other.",
     NULL},
    {"parked", get_parked, NULL,
     "After park(): (topk_idx, src_token, rank_rows, pair_begin, pair_count), as of recv, but copies; else None.",
     NULL},
    {"_memory", get_memory, NULL, "What arrays of its rows are based on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"buffer", T_OBJECT, offsetof(ext_handle_t, buffer), READONLY, "The Buffer of the dispatch."},
    {"tokens", T_PYSSIZET, offsetof(ext_handle_t, tokens), READONLY, "T of the dispatch."},
    {"topk", T_PYSSIZET, offsetof(ext_handle_t, topk), READONLY, "K of the dispatch."},
    {"hidden", T_PYSSIZET, offsetof(ext_handle_t, hidden), READONLY, "H of the dispatch."},
    {"nranks", T_PYSSIZET, offsetof(ext_handle_t, nranks), READONLY, "R of the group."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ext_handle_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {Py_tp_repr, represent},
    {Py_tp_doc, "A dispatch: its frozen routing and the rows it brought; combine goes back along it.\n\n"
                "Its slot is in use until release(), or the end of the ``with`` block, and until no array of its\n"
                "rows is alive any more, whichever is later: an array never loses its memory."},
    {0, NULL},
};

static PyType_Spec spec = {"xep.Handle", sizeof(ext_handle_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int ext_handle_ready(PyObject *module)
{
    return ext_add_type(module, &spec, 0, &handle_type);
}
