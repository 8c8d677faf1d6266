/* SPDX-License-Identifier: BSD-3-Clause */

/* The object outlives the library's buffer: the last array that looks at rows still notes its end in it. */
#include "ext_buffer.h"

#include "ext_args.h"
#include "ext_dispatch.h"
#include "ext_grow.h"
#include "ext_handle.h"
#include "ext_in_place.h"
#include "ext_layout.h"
#include "ext_module.h"
#include "ext_params.h"
#include "ext_request.h"

#include <stddef.h>
#include <structmember.h>

/* ---- making one ---- */

/* Numbers that never change are kept here: asking the library for them at each operation would cost more than the call
 * that they are for. */
int ext_buffer_learn(ext_buffer_t *buffer)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    void *base = NULL;
    xep_status_t status = lib.buffer_memory(buffer->buffer, &base, &buffer->bytes);
    if (status >= 0) status = lib.buffer_query(buffer->buffer, &info);
    if (status < 0) {
        ext_raise(status);
        return -1;
    }
    buffer->base = base;
    buffer->where = info.memory == XEP_MEMORY_CUDA ? info.device + 1 : EXT_HOST;
    /* the mode for device memory, or that of the host, whose rows are staged */
    buffer->counts_there =
        buffer->where != EXT_HOST && (strcmp(info.mode, "ll_cuda") == 0 || strcmp(info.mode, "ll") == 0);
    buffer->experts = info.experts, buffer->topk = info.topk, buffer->hidden = info.hidden;
    buffer->scales = info.scales, buffer->tokens = info.tokens, buffer->nslots = info.slots;
    buffer->dtype = info.dtype, buffer->combine_dtype = info.combine_dtype;
    lib.expert_range(buffer->experts, buffer->group->nranks, buffer->group->rank, NULL, &buffer->local_experts);
    return 0;
}

/*
 * Called by __init__ of the Python class. The group is kept from before the call on: the buffer needs it to the end. An
 * error leaves an object that is closed.
 */
static PyObject *create(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    PyObject *given;
    xep_status_t status;
    if (ext_params_read(args, nargs, keywords, &given, &params) != 0) return NULL;
    xep_group_t *group = ext_group_get(given);
    if (group == NULL || (buffer->pending = PySet_New(NULL)) == NULL) return NULL;
    Py_INCREF(given);
    buffer->group = (ext_group_t *)given;
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_create(group, &params, &buffer->buffer);
    Py_END_ALLOW_THREADS
    if (status < 0) return ext_raise(status);
    if (ext_buffer_learn(buffer) != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- before and after operations ---- */

/* Also refuses a process that has inherited the buffer by fork(): its calls would be those of the parent's rank. */
xep_buffer_t *ext_buffer_get(const ext_buffer_t *buffer)
{
    if (buffer->buffer == NULL) PyErr_SetString(PyExc_ValueError, "the buffer is closed");
    else if (ext_group_is_own(buffer->group) == 0) return buffer->buffer;
    return NULL;
}

/* Over a copy of the set: a request that is settled is taken out, by this thread or, without the GIL, by another. */
static int settle_pending(ext_buffer_t *buffer)
{
    PyObject *requests = PySequence_List(buffer->pending);
    for (Py_ssize_t i = 0; requests != NULL && i < PyList_GET_SIZE(requests); i++)
        if (ext_request_test((ext_request_t *)PyList_GET_ITEM(requests, i)) < 0) Py_CLEAR(requests);
    Py_XDECREF(requests);
    return requests != NULL ? 0 : -1;
}

/* Before each operation: releases slots of which the last array has gone, sees to requests that nobody waits for. */
xep_buffer_t *ext_buffer_begin(ext_buffer_t *buffer)
{
    xep_buffer_t *found = ext_buffer_get(buffer);
    if (found == NULL) return NULL;
    ext_slots_drain(&buffer->slots);
    return PySet_GET_SIZE(buffer->pending) == 0 || settle_pending(buffer) == 0 ? found : NULL;
}

/* ---- what it says ---- */

/* A new tuple, in the order of BufferInfo. Ended handles are released first, as the library counts free slots. */
static PyObject *query(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    if (ext_buffer_get(buffer) == NULL) return NULL;
    ext_slots_drain(&buffer->slots);
    const xep_status_t status = lib.buffer_query(buffer->buffer, &info);
    if (status < 0) return ext_raise(status);
    static const char *const sums[] =
        {[XEP_NODE_SUMS_DEFAULT] = NULL, [XEP_NODE_SUMS_DTYPE] = "dtype", [XEP_NODE_SUMS_FP32] = "fp32"};
    return Py_BuildValue("(sKKIIIIKisKzN)", info.mode, info.bytes, info.recv_rows, info.slots, info.free_slots,
                         info.threads, info.mapped_peers, info.operations, info.device,
                         info.path == XEP_PATH_NODES ? "nodes" : "flat", info.pass_rows, sums[info.node_sums],
                         PyBool_FromLong((info.flags & XEP_BUFFER_PIECES) != 0));
}

/*
 * A new tuple, in the order of RankWaits; its arrays, [R] int64, are filled by the library. The GIL is kept: the call
 * copies numbers and does not wait. "N" of Py_BuildValue() gives the arrays away.
 */
static PyObject *waits(PyObject *self, PyObject *kind)
{
    const ext_buffer_t *buffer = (ext_buffer_t *)self;
    const ext_element_t element = {.kind = EXT_NUMPY, .dtype = XEP_INT64};
    xep_waits_t found = XEP_WAITS_INIT;
    uint64_t operations = 0, which = 0, **const places[3] = {&found.count, &found.sum_ns, &found.max_ns};
    PyObject *arrays[3] = {NULL, NULL, NULL};
    if (ext_buffer_get(buffer) == NULL || ext_args_number("kind", kind, XEP_OP_COMBINE, &which) != 0) return NULL;
    const Py_ssize_t nranks = buffer->group->nranks;
    for (int i = 0; i < 3; i++) {
        arrays[i] = ext_array_new(&element, 1, &nranks, (char **)places[i]);
        if (arrays[i] == NULL) goto failed;
    }
    found.operations = &operations;
    const xep_status_t status = lib.buffer_waits(buffer->buffer, (xep_op_kind_t)which, &found);
    if (status >= 0) return Py_BuildValue("(KNNN)", operations, arrays[0], arrays[1], arrays[2]);
    ext_raise(status);
failed:
    for (int i = 0; i < 3; i++) Py_XDECREF(arrays[i]);
    return NULL;
}

/* The buffer cannot be closed while somebody has this: close() asks arrays_left(), which counts it. */
static PyObject *memory(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return ext_buffer_get((ext_buffer_t *)self) != NULL ? ext_slots_whole((ext_buffer_t *)self) : NULL;
}

/* Numbers for tests and for error messages: who holds a slot is the first question after BusyError. */
static PyObject *slots_held(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (ext_buffer_get((ext_buffer_t *)self) == NULL) return NULL;
    ext_slots_drain(&((ext_buffer_t *)self)->slots);
    return PyLong_FromSsize_t(((ext_buffer_t *)self)->slots.held);
}

/* This one and the next ask nothing of the library, so they answer for a buffer that is closed, too. */
static PyObject *arrays_alive(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSsize_t(ext_slots_orphans(&((ext_buffer_t *)self)->slots));
}

static PyObject *slots_viewed(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSsize_t(ext_slots_viewed(&((ext_buffer_t *)self)->slots));
}

/* ---- ending ---- */

/* As a list of counted references: to forget a handle may end the last array of its rows, and with it others. */
static int end_handles(ext_buffer_t *buffer)
{
    PyObject *owners = ext_slots_owners(&buffer->slots);
    for (Py_ssize_t i = 0; owners != NULL && i < PyList_GET_SIZE(owners); i++)
        ext_handle_forget((ext_handle_t *)PyList_GET_ITEM(owners, i));
    Py_XDECREF(owners);
    return owners != NULL ? 0 : -1;
}

/* What close() asks: once all handles have ended, a slot that is still held is held by arrays of the program. */
static PyObject *arrays_left(PyObject *self, PyObject *unused)
{
    return end_handles((ext_buffer_t *)self) == 0 ? arrays_alive(self, unused) : NULL;
}

/* Those that have ended meanwhile keep their results; the rest get an error that says what became of the buffer. */
static int end_pending(ext_buffer_t *buffer, const char *reason)
{
    PyObject *requests = settle_pending(buffer) == 0 ? PySequence_List(buffer->pending) : NULL;
    for (Py_ssize_t i = 0; requests != NULL && i < PyList_GET_SIZE(requests); i++)
        if (ext_request_end((ext_request_t *)PyList_GET_ITEM(requests, i), reason) != 0) Py_CLEAR(requests);
    Py_XDECREF(requests);
    return requests != NULL ? 0 : -1;
}

/*
 * Requests end with an error, handles without the library, which ends its own in the call that follows, a reset or a
 * destroy. The memory stays, its contents do not. -1: an exception is set, and that call is not made.
 */
static int end_all(ext_buffer_t *buffer, const char *reason)
{
    if (end_pending(buffer, reason) != 0) return -1;
    ext_slots_drain(&buffer->slots);
    if (end_handles(buffer) != 0) return -1;
    ext_slots_forget(&buffer->slots);
    return 0;
}

/* left goes only when the reset has succeeded: until then the transport may go on reading it (xep_dispatch()). */
static PyObject *reset(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    xep_status_t status;
    if (buffer == NULL || end_all((ext_buffer_t *)self, "the buffer was reset") != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_reset(buffer);
    Py_END_ALLOW_THREADS
    if (status >= 0) Py_CLEAR(((ext_buffer_t *)self)->left);
    return ext_none_or_raise(status);
}

/* The GIL is given up, as it waits for another thread that is in a call on the buffer. */
static PyObject *abort_buffer(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    if (buffer == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.buffer_abort(buffer);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/*
 * NULL before the GIL is given up: another thread that comes now is told that the buffer is closed. What the transport
 * may still read goes to the group, as without a reset only the group's end is the end of that.
 */
static PyObject *destroy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_buffer_t *buffer = ext_buffer_get((ext_buffer_t *)self);
    if (buffer == NULL || end_all((ext_buffer_t *)self, "the buffer was closed") != 0) return NULL;
    ((ext_buffer_t *)self)->buffer = NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.buffer_destroy(buffer);
    Py_END_ALLOW_THREADS
    if (((ext_buffer_t *)self)->left != NULL) {
        ext_group_keep(&((ext_buffer_t *)self)->group->left, ((ext_buffer_t *)self)->left);
        ((ext_buffer_t *)self)->left = NULL;
    }
    Py_RETURN_NONE;
}

/* For a fork, and for an aborted group of whose rows arrays are alive: the library is not called, its memory stays. */
static PyObject *leave(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((ext_buffer_t *)self)->buffer = NULL;
    ext_slots_forget(&((ext_buffer_t *)self)->slots);
    Py_RETURN_NONE;
}

/* ---- its type ---- */

/* The slots are not part of the cycle: their memory holds the buffer, never the other way round. */
static int clear(PyObject *self)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    Py_CLEAR(buffer->pending);
    Py_CLEAR(buffer->left);
    Py_CLEAR(buffer->group);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(buffer->group);
    Py_VISIT(buffer->pending);
    Py_VISIT(buffer->left);
    return 0;
}

/* Does not destroy: as with a Group, that is a collective call. */
static void dealloc(PyObject *self)
{
    PyMem_Free(((ext_buffer_t *)self)->slots.ended); /* all memory that would note its end there has kept this */
    ext_dealloc(self, NULL, clear);
}

/* None is how close() knows that there is nothing left to do. */
static PyObject *get_address(PyObject *self, void *Py_UNUSED(unused))
{
    if (((ext_buffer_t *)self)->buffer == NULL) Py_RETURN_NONE;
    return PyLong_FromVoidPtr(((ext_buffer_t *)self)->buffer);
}

static PyMethodDef methods[] = {
    {"dispatch", EXT_KEYWORDS(ext_dispatch), ext_dispatch_doc},
    {"dispatch_async", EXT_KEYWORDS(ext_dispatch_async), ext_dispatch_async_doc},
    {"layout", EXT_KEYWORDS(ext_layout), ext_layout_doc},
    {"_create", EXT_KEYWORDS(create), NULL},
    {"_query", query, METH_NOARGS, NULL},
    {"_waits", waits, METH_O, NULL},
    {"_destroy", destroy, METH_NOARGS, NULL},
    {"_leave", leave, METH_NOARGS, NULL},
    {"_abort", abort_buffer, METH_NOARGS, NULL},
    {"reset", reset, METH_NOARGS,
     "reset($self)\n--\n\nMakes the buffer usable again after BrokenError. All handles end; arrays of their rows keep\n"
     "memory, not meaning. Collective, blocking."},
    {"memory", memory, METH_NOARGS,
     "memory($self)\n--\n\nThis rank's shared memory, all of it, as an object with the buffer protocol. Keeps the\n"
     "buffer from being closed."},
    {"send_memory", EXT_KEYWORDS(ext_in_place_send_memory), ext_in_place_send_memory_doc},
    {"_follow", ext_grow_follow, METH_VARARGS, NULL},
    {"slots_held", slots_held, METH_NOARGS, "slots_held($self)\n--\n\nSlots in use by handles and by arrays of rows."},
    {"slots_viewed", slots_viewed, METH_NOARGS, "slots_viewed($self)\n--\n\nSlots of which arrays look at rows."},
    {"arrays_alive", arrays_alive, METH_NOARGS,
     "arrays_alive($self)\n--\n\nSlots of which only arrays look at rows, as their handles have ended; and memory()."},
    {"arrays_left", arrays_left, METH_NOARGS, "arrays_left($self)\n--\n\nEnds every handle; then as arrays_alive()."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"_buffer", get_address, NULL, "Address of the library's buffer; None: closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"group", T_OBJECT, offsetof(ext_buffer_t, group), READONLY, "The Group it was made on."},
    {"experts", T_UINT, offsetof(ext_buffer_t, experts), READONLY, "E of the whole group."},
    {"topk", T_UINT, offsetof(ext_buffer_t, topk), READONLY, "Most selections of a token."},
    {"hidden", T_UINT, offsetof(ext_buffer_t, hidden), READONLY, "Most elements of a row."},
    {"tokens", T_ULONGLONG, offsetof(ext_buffer_t, tokens), READONLY, "Most tokens of a dispatch."},
    {"scales", T_UINT, offsetof(ext_buffer_t, scales), READONLY, "Most scales of a token."},
    {"slots", T_UINT, offsetof(ext_buffer_t, nslots), READONLY, "Handles that live at once."},
    {"local_experts", T_UINT, offsetof(ext_buffer_t, local_experts), READONLY, "L of this rank."},
    {"_dtype", T_INT, offsetof(ext_buffer_t, dtype), READONLY, NULL},
    {"_combine_dtype", T_INT, offsetof(ext_buffer_t, combine_dtype), READONLY, NULL},
    {"_base", T_ULONGLONG, offsetof(ext_buffer_t, base), READONLY, "Address of the shared memory."},
    {"_bytes", T_ULONGLONG, offsetof(ext_buffer_t, bytes), READONLY, "Its length."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {"xep._ext.Buffer", sizeof(ext_buffer_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

static PyMethodDef functions[] = {
    {"buffer_size", EXT_KEYWORDS(ext_params_size), ext_params_size_doc},
    {NULL, NULL, 0, NULL},
};

int ext_buffer_ready(PyObject *module)
{
    if (ext_slots_ready(module) != 0 || PyModule_AddFunctions(module, functions) != 0) return -1;
    return ext_add_type(module, &spec, 1, NULL);
}
