/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The type. Its arrays (ext_rows.c) are made when they are asked for and kept, so that handle.recv.x is the same object
 * every time.
 */
#include "ext_received.h"

#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *received_type;

/* recv->size may be smaller than ours where the library is older: the rest stays 0, as tp_alloc() has left it. */
static void copy_recv(ext_received_t *received, const xep_recv_t *recv)
{
    memcpy(&received->recv, recv, recv->size < sizeof *recv ? recv->size : sizeof *recv);
}

/* One object for each kind of array, as long as somebody has it, so its arrays are made once. None after a release. */
PyObject *ext_received_of(ext_handle_t *handle, ext_kind_t kind)
{
    ext_shown_t *shown = handle->shown[kind];
    if (shown != NULL && handle->memory != NULL) {
        PyObject *found = (PyObject *)((char *)shown - offsetof(ext_received_t, shown));
        Py_INCREF(found);
        return found;
    }
    const xep_recv_t *recv = ext_handle_recv(handle);
    if (recv == NULL) return NULL;
    ext_received_t *received = (ext_received_t *)received_type->tp_alloc(received_type, 0);
    if (received == NULL) return NULL;
    Py_INCREF(handle);
    received->handle = handle;
    received->kind = kind;
    copy_recv(received, recv);
    /* not counted, for it holds this handle: a cycle would keep the slot until somebody collects */
    handle->shown[kind] = &received->shown;
    return (PyObject *)received;
}

/* ---- properties; closure: where the pointer is in the struct ---- */

/* Whom it is without is known at the end of a dispatch, and rows are counted, and so may be looked at, before that. */
static void look_again(ext_received_t *received)
{
    const ext_memory_t *memory = received->handle->memory;
    const xep_recv_t *recv = NULL;
    if (memory != NULL && lib.handle_recv(memory->handle, &recv) != XEP_OK) recv = NULL;
    if (recv != NULL) copy_recv(received, recv);
}

/* The rows of a piece that another one has followed are gone. After a release, others say so. */
static int check_shown(const ext_received_t *received)
{
    const ext_handle_t *handle = received->handle;
    if (handle->memory == NULL || handle->shown[received->kind] == &received->shown) return 0;
    PyErr_Format(PyExc_ValueError, "these rows are gone: piece %llu was followed by the next one (recv of the handle)",
                 (unsigned long long)received->recv.piece + 1);
    return -1;
}

/*
 * A new reference, beside the one in arrays[]. After the release an array that somebody holds goes on, and none can be
 * had from here any more.
 */
static PyObject *get_array(PyObject *self, void *closure)
{
    ext_received_t *received = (ext_received_t *)self;
    const int which = (int)(intptr_t)closure;
    PyObject **kept = &received->shown.arrays[which];
    if (check_shown(received) != 0) return NULL;
    if (which == EXT_OUT) look_again(received);
    if (ext_received_lacks(received, which)) Py_RETURN_NONE;
    if (*kept == NULL) {
        if (ext_handle_get(received->handle) == NULL) return NULL;
        *kept = ext_received_array(received, which);
    }
    Py_XINCREF(*kept);
    return *kept;
}

/* Numbers of the struct that are shown as members of an enumeration of Python. */
static const struct named {
    const char *name;
    size_t offset;
} enums[] = {
    {"Rows", offsetof(ext_received_t, recv.arrangement)},
    {"Dtype", offsetof(ext_received_t, recv.dtype)},
    {"Quant", offsetof(ext_received_t, recv.quant)},
};

static PyObject *get_enum(PyObject *self, void *closure)
{
    const struct named *named = closure;
    int value;
    memcpy(&value, (const char *)self + named->offset, sizeof value);
    return ext_call_helper(named->name, "(i)", value);
}

/* Which experts are whose never changes: this is there before a release and after it, in memory of the buffer. */
static PyObject *get_experts(PyObject *self, void *Py_UNUSED(closure))
{
    const xep_recv_t *recv = &((ext_received_t *)self)->recv;
    if (((ext_received_t *)self)->handle->buffer->buffer == NULL) {
        PyErr_SetString(PyExc_ValueError, "the buffer is closed");
        return NULL;
    }
    PyObject *experts = PyTuple_New((Py_ssize_t)recv->local_experts);
    for (uint32_t e = 0; experts != NULL && e < recv->local_experts; e++)
        PyTuple_SET_ITEM(experts, (Py_ssize_t)e, PyLong_FromUnsignedLong(recv->experts[e]));
    return experts;
}

/* Made anew each time: the arrays are views. */
static PyObject *get_payloads(PyObject *self, void *Py_UNUSED(closure))
{
    const ext_received_t *received = (ext_received_t *)self;
    const xep_recv_t *recv = &received->recv;
    if (check_shown(received) != 0 || ext_handle_get(received->handle) == NULL) return NULL;
    PyObject *payloads = PyTuple_New((Py_ssize_t)recv->npayloads);
    for (uint32_t i = 0; payloads != NULL && i < recv->npayloads; i++) {
        PyObject *view = ext_received_payload(received, i);
        if (view == NULL) Py_CLEAR(payloads);
        else PyTuple_SET_ITEM(payloads, (Py_ssize_t)i, view);
    }
    return payloads;
}

static PyObject *list_expert_rows(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const ext_received_t *received = (ext_received_t *)self;
    const Py_ssize_t count = (Py_ssize_t)received->recv.local_experts;
    if (ext_handle_get(received->handle) == NULL || check_shown(received) != 0) return NULL;
    if (received->handle->counts_there) {
        PyErr_SetString(PyExc_TypeError,
                        "list_expert_rows: expected counts in host memory (expert_rows is on the device)");
        return NULL;
    }
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++)
        PyList_SET_ITEM(list, i, PyLong_FromUnsignedLongLong(received->recv.expert_rows[i]));
    return list;
}

static PyObject *represent(PyObject *self)
{
    return ext_call_helper("show_received", "(O)", self);
}

/* Not a type of the collector, so ext_dealloc() is not for it. shown is cleared before anything else can ask for it. */
static void dealloc(PyObject *self)
{
    ext_received_t *received = (ext_received_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (received->weak != NULL) PyObject_ClearWeakRefs(self);
    if (received->handle != NULL && received->handle->shown[received->kind] == &received->shown)
        received->handle->shown[received->kind] = NULL;
    ext_handle_forget_arrays(&received->shown);
    Py_CLEAR(received->handle);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"list_expert_rows", list_expert_rows, METH_NOARGS, "list_expert_rows($self)\n--\n\nexpert_rows as a list of int."},
    {NULL, NULL, 0, NULL},
};

#define EXT_ARRAY(_name, _number, _doc)                           \
    {                                                             \
        _name, get_array, NULL, _doc, (void *)(intptr_t)(_number) \
    }

static PyGetSetDef getset[] = {
    EXT_ARRAY("x", EXT_X, "[N, H]; rows by expert, padded: [L, N / L, H]. None: they are where row_addresses says."),
    EXT_ARRAY("topk_idx", EXT_TOPK_IDX,
              "[N, K] int64 or int32, as dispatched: local expert 0 .. L-1, or -1: not here. Rows from ``rows`` on are "
              "all -1."),
    EXT_ARRAY("topk_weights", EXT_TOPK_WEIGHTS, "[N, K] float32, 0 where topk_idx is -1; None when none were sent."),
    EXT_ARRAY("scales", EXT_SCALES,
              "[N, S], as dispatched, or float32 or int32, as cast; padded: [L, N / L, S]; None when there are none."),
    EXT_ARRAY("src_token", EXT_SRC_TOKEN, "[N] int32: token index on its source rank."),
    EXT_ARRAY("row_addresses", EXT_ROW,
              "[N] int64: with in_place, the address of each row, in the memory of its source or of this rank, to be "
              "read while the handle, or an array of it, is alive; 0 where no row came. Else None: rows are in x."),
    EXT_ARRAY("src_begin", EXT_VIEWS,
              "[R + 1] int64: rows src_begin[r] .. src_begin[r+1]-1 came from rank r; None by expert."),
    EXT_ARRAY("rank_rows", EXT_VIEWS + 1, "[R, R] int32: rows that went from rank i to rank j; None by expert."),
    EXT_ARRAY("expert_rows", EXT_VIEWS + 2,
              "[L] int64: selections of each local expert, rounded up to expert_alignment."),
    EXT_ARRAY("expert_begin", EXT_VIEWS + 3, "[L] int64: first row of each local expert; None by rank."),
    EXT_ARRAY("expert_count", EXT_VIEWS + 4, "[L] int64: rows of each local expert; None by rank."),
    EXT_ARRAY("pair_begin", EXT_VIEWS + 5, "[L, R] int32: first row of an expert that came from a rank; None by rank."),
    EXT_ARRAY("pair_count", EXT_VIEWS + 6, "[L, R] int32: how many rows of an expert came from a rank; None by rank."),
    EXT_ARRAY("out", EXT_OUT, "[R] uint8: 1 for a rank that this dispatch is without; None: it is with all."),
    {"payloads", get_payloads, NULL, "A tuple of arrays [N, B], as dispatched; padded: [L, N / L, B].", NULL},
    {"experts", get_experts, NULL, "Global numbers of the L local experts, ascending, a tuple.", NULL},
    {"arrangement", get_enum, NULL, "Rows: how they are arranged.", (void *)(uintptr_t)&enums[0]},
    {"dtype", get_enum, NULL, "Dtype: element type of x.", (void *)(uintptr_t)&enums[1]},
    {"quant", get_enum, NULL, "Quant: how they were cast on their way.", (void *)(uintptr_t)&enums[2]},
    {NULL, NULL, NULL, NULL, NULL},
};

#undef EXT_ARRAY

#define EXT_RECV(_field) offsetof(ext_received_t, recv._field)

/* Numbers are of the copy, and stay what they were after a release, too. */
static PyMemberDef members[] = {
    {"rows", T_ULONGLONG, EXT_RECV(rows), READONLY, "Rows received."},
    {"capacity", T_ULONGLONG, EXT_RECV(capacity), READONLY, "N: rows of the arrays."},
    {"hidden", T_UINT, EXT_RECV(hidden), READONLY, "H."},
    {"topk", T_UINT, EXT_RECV(topk), READONLY, "K."},
    {"first_expert", T_UINT, EXT_RECV(first_expert), READONLY, "Global number of local expert 0."},
    {"local_experts", T_UINT, EXT_RECV(local_experts), READONLY, "L."},
    {"pieces", T_ULONGLONG, EXT_RECV(pieces), READONLY,
     "In how many pieces the rows come, on all ranks; 1: all at once."},
    {"piece", T_ULONGLONG, EXT_RECV(piece), READONLY, "Which of them this is, from 0."},
    {"all_rows", T_ULONGLONG, EXT_RECV(all_rows), READONLY, "Rows of all pieces."},
    {"first_row", T_ULONGLONG, EXT_RECV(first_row), READONLY, "Which of all rows the first one here is."},
    {"_handle", T_OBJECT, offsetof(ext_received_t, handle), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ext_received_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {Py_tp_repr, represent},
    {Py_tp_doc,
     "Received rows: N = ``capacity`` rows, of which ``rows`` came; K top-k, H hidden, S scales, L experts of\n"
     "this rank.\n\nx, topk_idx, topk_weights, scales, src_token and row_addresses are views: no copy. Each keeps its\n"
     "memory from being used again for as long as it lives. The counts are copies; those that are in device\n"
     "memory (mode ll, counts_there) are views, and rows is the capacity then."},
    {0, NULL},
};

/* Not known to the garbage collector: nothing that it refers to can refer to it. */
static PyType_Spec spec = {"xep.Received", sizeof(ext_received_t), 0, Py_TPFLAGS_DEFAULT, slots};

int ext_received_ready(PyObject *module)
{
    return ext_add_type(module, &spec, 0, &received_type);
}
