/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A handle has two lives: the object, and the memory that it shares with the arrays of its rows. release() ends the
 * first; the slot goes back when the second has ended.
 */
#include "ext_handle.h"

#include "ext_args.h"
#include "ext_combine.h"
#include "ext_failed.h"
#include "ext_in_place.h"
#include "ext_module.h"
#include "ext_pieces.h"
#include "ext_received.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *handle_type;

/*
 * A new reference. memory->owner is not counted: forget() clears it before the handle goes.
 */
ext_handle_t *ext_handle_new(ext_buffer_t *buffer, const ext_element_t *element, Py_ssize_t tokens, Py_ssize_t topk,
                             Py_ssize_t hidden)
{
    ext_memory_t *memory = ext_slots_hold(buffer);
    ext_handle_t *handle = memory != NULL ? (ext_handle_t *)handle_type->tp_alloc(handle_type, 0) : NULL;
    if (handle == NULL) {
        Py_XDECREF(memory);
        return NULL;
    }
    Py_INCREF(buffer);
    handle->buffer = buffer;
    handle->memory = memory;
    memory->owner = handle;
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
    const xep_recv_t *recv = own != NULL ? lib.handle_recv(own) : NULL;
    if (own != NULL && recv == NULL) ext_raise(XEP_ERR_INVALID);
    return recv;
}

/*
 * Also called by clear() and for a handle that was released: a second time it does nothing. The arrays that Received
 * keeps must go first, or they would hold the memory.
 */
void ext_handle_forget(ext_handle_t *handle)
{
    ext_memory_t *memory = handle->memory;
    for (int kind = 0; kind < EXT_KINDS; kind++)
        if (handle->shown[kind] != NULL) ext_received_forget(handle->shown[kind]);
    Py_CLEAR(handle->sent);
    Py_CLEAR(handle->given);
    handle->memory = NULL;
    if (memory != NULL) memory->owner = NULL;
    Py_XDECREF(memory);
}

/* ---- received rows ---- */

static PyObject *get_recv(PyObject *self, void *Py_UNUSED(unused))
{
    return ext_received_of((ext_handle_t *)self, ((ext_handle_t *)self)->element.kind);
}

static PyObject *show_numpy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (((ext_handle_t *)self)->buffer->where != EXT_HOST) {
        PyErr_SetString(PyExc_TypeError, "numpy: expected rows in host memory, these are on a device (recv, torch())");
        return NULL;
    }
    return ext_received_of((ext_handle_t *)self, ((ext_handle_t *)self)->element.kind == EXT_ML ? EXT_ML : EXT_NUMPY);
}

/* In a program that has not imported torch yet, this does. */
static PyObject *show_torch(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PyObject *met = ext_call_helper("meet_torch", "()");
    Py_XDECREF(met);
    return met != NULL ? ext_received_of((ext_handle_t *)self, EXT_TORCH) : NULL;
}

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

static PyObject *get_memory(PyObject *self, void *Py_UNUSED(unused))
{
    PyObject *memory = (PyObject *)((ext_handle_t *)self)->memory;
    if (memory == NULL) Py_RETURN_NONE;
    Py_INCREF(memory);
    return memory;
}

/* ---- where expert outputs go ---- */

enum { INPUT_DTYPE, INPUT_COUNT };

/*
 * Waits for peers, so the GIL is given up; meanwhile another thread may release the handle, and the reference to its
 * memory keeps the slot until the view has one of its own. The library returns an address and no status, so whatever
 * went wrong is an InvalidError here, with the right sentence.
 */
static PyObject *combine_input(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const char *const known[INPUT_COUNT] = {"dtype"};
    static ext_signature_t signature = {"combine_input", 1, INPUT_COUNT, known, {NULL}};
    ext_handle_t *handle = (ext_handle_t *)self;
    ext_array_t look = {.element = {.kind = handle->element.kind,
                                    .dtype = handle->buffer->combine_dtype,
                                    .where = handle->buffer->where}};
    PyObject *values[INPUT_COUNT];
    size_t stride = 0;
    if (ext_args_read(&signature, args, nargs, names, values) != 0 ||
        ext_args_element("dtype", values[INPUT_DTYPE], &look.element) != 0)
        return NULL;
    xep_handle_t *own = ext_handle_get(handle);
    if (own == NULL) return NULL;
    PyObject *memory = (PyObject *)handle->memory;
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    look.data = lib.handle_combine_input(own, &stride);
    Py_END_ALLOW_THREADS
    const xep_recv_t *recv = look.data != NULL ? lib.handle_recv(own) : NULL;
    PyObject *view = NULL;
    if (recv == NULL) {
        ext_raise(XEP_ERR_INVALID);
    } else {
        ext_received_shape(recv, recv->rows, (size_t)handle->hidden, (ptrdiff_t)stride, &look);
        view = ext_array_view_to_write(&look, memory);
        handle->input = look.element; /* of the combine that follows */
    }
    Py_DECREF(memory);
    return view;
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
    ext_handle_forget(handle);
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
    return 0;
}

static void dealloc(PyObject *self)
{
    ext_dealloc(self, ((ext_handle_t *)self)->weak, clear);
}

static PyMethodDef methods[] = {
    {"combine", EXT_KEYWORDS(ext_combine), ext_combine_doc},
    {"combine_async", EXT_KEYWORDS(ext_combine_async), ext_combine_async_doc},
    {"combine_input", EXT_KEYWORDS(combine_input),
     "combine_input($self, dtype=None)\n--\n\n"
     "[rows, H] of the buffer's combine type, or of dtype: expert outputs written here need no copy; then combine()\n"
     "without x. bfloat16 is uint16 bits in numpy, and floats are refused (to_bfloat16()), where the rows that were\n"
     "dispatched are none of package ml_dtypes; dtype=ml_dtypes.bfloat16 takes floats.\n\n"
     "Waits until peers have read what an earlier combine left there. Ask again before writing again."},
    {"next", EXT_KEYWORDS(ext_pieces_next), ext_pieces_next_doc},
    {"next_async", EXT_KEYWORDS(ext_pieces_next_async), ext_pieces_next_async_doc},
    {"give", EXT_KEYWORDS(ext_pieces_give), ext_pieces_give_doc},
    {"pieces", EXT_KEYWORDS(ext_pieces_of), ext_pieces_doc},
    {"gather", EXT_KEYWORDS(ext_in_place_gather), ext_in_place_gather_doc},
    {"numpy", show_numpy, METH_NOARGS,
     "numpy($self)\n--\n\nThe received rows as numpy arrays; bfloat16 as uint16, 8-bit floats as uint8, where they\n"
     "were not dispatched as types of package ml_dtypes."},
    {"torch", show_torch, METH_NOARGS, "torch($self)\n--\n\nThe received rows as tensors."},
    {"release", release, METH_NOARGS,
     "release($self)\n--\n\n"
     "Gives the slot back, at the latest when the last array of its rows is gone. Local; again: a no-op."},
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"recv", get_recv, NULL, "The received rows, as arrays of the kind that was dispatched (numpy or torch).", NULL},
    {"rows", get_rows, NULL, "Rows received.", NULL},
    {"slot", get_slot, NULL,
     "Names the slot: handles of a buffer that have the same have their rows at the same place, one after the other.",
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
