/* SPDX-License-Identifier: BSD-3-Clause */

/* The object outlives the library's buffer: the last array that looks at rows still notes its end in it. */
#include "ext_buffer.h"

#include "ext_args.h"
#include "ext_params.h"
#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *buffer_type;

/* ---- making one ---- */

/* Numbers that never change are kept here: asking the library for them at each operation would cost more than the call
 * that they are for. */
int ext_buffer_learn(ext_buffer_t *buffer)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    void *base = NULL;
    xep_status_t status = lib.buffer_memory(buffer->buffer, &base, &buffer->slots.bytes);
    if (status >= 0) status = lib.buffer_query(buffer->buffer, &info);
    if (status < 0) {
        ext_raise(status);
        return -1;
    }
    buffer->slots.base = base;
    buffer->where = info.memory == XEP_MEMORY_CUDA ? info.device + 1 : EXT_HOST;
    /* the mode for device memory, or that of the host, whose rows are staged */
    buffer->counts_there =
        buffer->where != EXT_HOST && (strcmp(info.mode, "ll_cuda") == 0 || strcmp(info.mode, "ll") == 0);
    buffer->experts = info.experts, buffer->topk = info.topk, buffer->hidden = info.hidden;
    buffer->scales = info.scales, buffer->tokens = info.tokens, buffer->nslots = info.slots;
    buffer->local_experts = info.local_experts, buffer->recv_rows = info.recv_rows;
    buffer->dtype = info.dtype, buffer->combine_dtype = info.combine_dtype;
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
    PyObject *given, *arrays;
    xep_status_t status;
    if (ext_params_read(args, nargs, keywords, &given, &arrays, &params) != 0) return NULL;
    xep_group_t *group = ext_group_get(given);
    if (group == NULL || (buffer->pending = PySet_New(NULL)) == NULL) {
        Py_XDECREF(arrays);
        return NULL;
    }
    Py_INCREF(given);
    buffer->group = (ext_group_t *)given;
    if (params.plan != NULL) {
        buffer->plan = PyList_GET_ITEM(arrays, PyList_GET_SIZE(arrays) - 1);
        Py_INCREF(buffer->plan);
    }
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_create(group, &params, &buffer->buffer);
    Py_END_ALLOW_THREADS
    Py_XDECREF(arrays);
    if (status < 0) return ext_raise(status);
    if (ext_buffer_learn(buffer) != 0) return NULL;
    Py_RETURN_NONE;
}

/* Also refuses a process that has inherited the buffer by fork(): its calls would be those of the parent's rank. */
xep_buffer_t *ext_buffer_get(const ext_buffer_t *buffer)
{
    if (buffer->buffer == NULL) PyErr_SetString(PyExc_ValueError, "the buffer is closed");
    else if (ext_group_is_own(buffer->group) == 0) return buffer->buffer;
    return NULL;
}

int ext_buffer_refuse_served(const ext_buffer_t *buffer)
{
    if (!buffer->is_serving) return 0;
    PyErr_SetString(PyExc_ValueError, "the buffer is being served: this rank begins nothing with it meanwhile");
    return -1;
}

int ext_buffer_check(PyObject *object)
{
    return PyObject_TypeCheck(object, buffer_type);
}

/* ---- what it says ---- */

/* Ended handles are released first, as they count as free; another thread may close the buffer meanwhile. */
static xep_buffer_t *get_drained(ext_buffer_t *buffer)
{
    if (ext_buffer_get(buffer) == NULL) return NULL;
    ext_slots_drain(&buffer->slots);
    return ext_buffer_get(buffer);
}

/* A new tuple, in the order of BufferInfo. */
static PyObject *query(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const xep_buffer_t *buffer = get_drained((ext_buffer_t *)self);
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    if (buffer == NULL) return NULL;
    const xep_status_t status = lib.buffer_query(buffer, &info);
    if (status < 0) return ext_raise(status);
    return Py_BuildValue("(sKKIIIIKisKNI)", info.mode, info.bytes, info.recv_rows, info.slots, info.free_slots,
                         info.threads, info.mapped_peers, info.operations, info.device,
                         info.path == XEP_PATH_NODES ? "nodes" : "flat", info.pass_rows,
                         PyBool_FromLong((info.flags & XEP_BUFFER_PIECES) != 0), info.multiprocessors);
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

/* A new tuple, in the order of OpCounters. As with waits() the GIL is kept. */
static PyObject *counters(PyObject *self, PyObject *kind)
{
    const ext_buffer_t *buffer = (ext_buffer_t *)self;
    xep_counters_t found = XEP_COUNTERS_INIT;
    uint64_t which = 0;
    if (ext_buffer_get(buffer) == NULL || ext_args_number("kind", kind, XEP_OP_NEXT, &which) != 0) return NULL;
    const xep_status_t status = lib.buffer_counters(buffer->buffer, (xep_op_kind_t)which, &found);
    if (status < 0) return ext_raise(status);
    return Py_BuildValue("(KKKKKKKKKK)", found.operations, found.errors, found.peer_errors, found.rows, found.bytes,
                         found.waits, found.wait_ns, found.wire_bytes, found.ranks_out, found.age_ns);
}

/* A new tuple, in the order of Loads. */
static PyObject *loads(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const ext_buffer_t *buffer = (ext_buffer_t *)self;
    xep_loads_t found = XEP_LOADS_INIT;
    if (ext_buffer_get(buffer) == NULL) return NULL;
    const xep_status_t status = lib.buffer_loads(buffer->buffer, &found);
    if (status < 0) return ext_raise(status);
    return Py_BuildValue("(KKKK)", found.dispatches, found.selections, found.most_before, found.most_after);
}

/* The buffer cannot be closed while somebody has this: close() asks arrays_left(), which counts it. */
static PyObject *memory(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return ext_buffer_get((ext_buffer_t *)self) != NULL ? ext_slots_whole(&((ext_buffer_t *)self)->slots, self) : NULL;
}

/* Numbers for tests and for error messages: who holds a slot is the first question after BusyError. */
static PyObject *slots_held(PyObject *self, PyObject *Py_UNUSED(unused))
{
    if (get_drained((ext_buffer_t *)self) == NULL) return NULL;
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

/* ---- its type ---- */

/* The slots are not part of the cycle: their memory holds the buffer, never the other way round. */
static int clear(PyObject *self)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    Py_CLEAR(buffer->pending);
    Py_CLEAR(buffer->left);
    Py_CLEAR(buffer->plan);
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
    Py_VISIT(buffer->plan);
    return 0;
}

/* Does not destroy: as with a Group, that is a collective call. */
static void dealloc(PyObject *self)
{
    PyMem_Free(((ext_buffer_t *)self)->recent.handles);
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
    {"_create", EXT_KEYWORDS(create), NULL},
    {"_query", query, METH_NOARGS, NULL},
    {"_counters", counters, METH_O, NULL},
    {"_loads", loads, METH_NOARGS, NULL},
    {"_waits", waits, METH_O, NULL},
    {"memory", memory, METH_NOARGS,
     "memory($self)\n--\n\nThis rank's shared memory, all of it, as an object with the buffer protocol. Keeps the\n"
     "buffer from being closed."},
    {"slots_held", slots_held, METH_NOARGS, "slots_held($self)\n--\n\nSlots in use by handles and by arrays of rows."},
    {"slots_viewed", slots_viewed, METH_NOARGS, "slots_viewed($self)\n--\n\nSlots of which arrays look at rows."},
    {"arrays_alive", arrays_alive, METH_NOARGS,
     "arrays_alive($self)\n--\n\nSlots of which only arrays look at rows, as their handles have ended; and memory()."},
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
    {"recv_rows", T_ULONGLONG, offsetof(ext_buffer_t, recv_rows), READONLY, "Most rows a rank receives at once."},
    {"slots", T_UINT, offsetof(ext_buffer_t, nslots), READONLY, "Handles that live at once."},
    {"local_experts", T_UINT, offsetof(ext_buffer_t, local_experts), READONLY, "L of this rank."},
    {"_dtype", T_INT, offsetof(ext_buffer_t, dtype), READONLY, NULL},
    {"_combine_dtype", T_INT, offsetof(ext_buffer_t, combine_dtype), READONLY, NULL},
    {"_base", T_ULONGLONG, offsetof(ext_buffer_t, slots.base), READONLY, "Address of the shared memory."},
    {"_bytes", T_ULONGLONG, offsetof(ext_buffer_t, slots.bytes), READONLY, "Its length."},
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

int ext_buffer_ready(PyObject *module)
{
    return ext_slots_ready(module) == 0 ? ext_add_type(module, &spec, 1, &buffer_type) : -1;
}
