/* SPDX-License-Identifier: BSD-3-Clause */

/* Arrays are of one dimension here; weights.py gives them the shape of an expert. */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_arrays.h"
#include "ext_group.h"
#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

typedef struct ext_weights {
    PyObject_HEAD
    ext_group_t *group;
    xep_weights_t *weights; /* NULL: closed, or not made yet */
    ext_element_t element;
    Py_ssize_t count; /* elements of an expert */
    Py_ssize_t alive; /* arrays */
} ext_weights_t;

/* An expert's memory, which an array is based on. */
typedef struct part {
    PyObject_HEAD
    ext_weights_t *weights;
    void *base;
} part_t;

static PyTypeObject *part_type;

static xep_weights_t *get(const ext_weights_t *weights)
{
    if (weights->weights == NULL) PyErr_SetString(PyExc_ValueError, "the weights are closed");
    else if (ext_group_get((PyObject *)weights->group) != NULL) return weights->weights;
    return NULL;
}

/* ---- making them ---- */

/*
 * _create(group, experts, elements, dtype, owners, copies, gradients, timeout, torch). The group is kept from before
 * the call on. An error leaves an object that is closed.
 */
static PyObject *create(PyObject *self, PyObject *args)
{
    ext_weights_t *weights = (ext_weights_t *)self;
    xep_weights_params_t params = XEP_WEIGHTS_PARAMS_INIT;
    PyObject *given, *numbers[4], *dtype, *map, *timeout, *owners = NULL;
    uint64_t elements = 0;
    int torch;
    if (!PyArg_ParseTuple(args, "OOOOOOOOp", &given, &numbers[0], &numbers[1], &dtype, &map, &numbers[2], &numbers[3],
                          &timeout, &torch))
        return NULL;
    xep_group_t *group = ext_group_get(given);
    if (group == NULL || (torch && ext_tensor_kind(&weights->element.kind) != 0) ||
        ext_args_number32("experts", numbers[0], &params.experts) != 0 ||
        ext_args_number("shape", numbers[1], INT64_MAX / 8, &elements) != 0 ||
        ext_args_element("dtype", dtype, &weights->element) != 0 ||
        ext_args_number32("copies", numbers[2], &params.copies) != 0 ||
        ext_args_number32("gradients", numbers[3], &params.gradients) != 0 ||
        ext_args_timeout(timeout, &params.timeout_ms) != 0 ||
        ext_args_ranks("owners", map != Py_None ? map : NULL, params.experts, &owners) != 0)
        return NULL;
    weights->count = (Py_ssize_t)elements;
    params.bytes = elements * (uint64_t)ext_dtype_size(weights->element.dtype);
    params.elements = params.gradients != 0 ? elements : 0;
    if (owners != NULL) params.owners = (const uint32_t *)(const void *)PyBytes_AS_STRING(owners);
    Py_INCREF(given);
    weights->group = (ext_group_t *)given;
    xep_status_t status;
    Py_BEGIN_ALLOW_THREADS
    status = lib.weights_create(group, &params, &weights->weights);
    Py_END_ALLOW_THREADS
    Py_XDECREF(owners);
    return ext_none_or_raise(status);
}

/* ---- an expert ---- */

static PyObject *view(ext_weights_t *weights, void *base, int is_to_write)
{
    const ext_array_t look = {.element = weights->element,
                              .data = base,
                              .ndim = 1,
                              .writable = 1,
                              .shape = {weights->count},
                              .strides = {ext_dtype_size(weights->element.dtype)}};
    part_t *part = (part_t *)part_type->tp_alloc(part_type, 0);
    if (part == NULL) return NULL;
    Py_INCREF(weights);
    weights->alive++;
    part->weights = weights;
    part->base = base;
    PyObject *array =
        is_to_write ? ext_array_view_to_write(&look, (PyObject *)part) : ext_array_view(&look, (PyObject *)part);
    Py_DECREF(part);
    return array;
}

/* NULL: an exception is set. */
static xep_weights_t *get_for(PyObject *self, PyObject *arg, uint32_t *expert_p)
{
    xep_weights_t *weights = get((ext_weights_t *)self);
    return weights != NULL && ext_args_number32("expert", arg, expert_p) == 0 ? weights : NULL;
}

static PyObject *change(PyObject *self, PyObject *arg)
{
    uint32_t expert = 0;
    void *base = NULL;
    xep_weights_t *weights = get_for(self, arg, &expert);
    if (weights == NULL) return NULL;
    const xep_status_t status = lib.weights_change(weights, expert, &base);
    return status < 0 ? ext_raise(status) : view((ext_weights_t *)self, base, 1);
}

static PyObject *publish(PyObject *self, PyObject *arg)
{
    uint32_t expert = 0;
    xep_weights_t *weights = get_for(self, arg, &expert);
    return weights != NULL ? ext_none_or_raise(lib.weights_publish(weights, expert)) : NULL;
}

static PyObject *of(PyObject *self, PyObject *arg)
{
    uint32_t expert = 0;
    const void *base = NULL;
    xep_status_t status;
    xep_weights_t *weights = get_for(self, arg, &expert);
    if (weights == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.weights_of(weights, expert, &base);
    Py_END_ALLOW_THREADS
    return status < 0 ? ext_raise(status) : view((ext_weights_t *)self, (void *)(uintptr_t)base, 0);
}

static PyObject *prefetch(PyObject *self, PyObject *arg)
{
    uint32_t expert = 0;
    xep_status_t status;
    xep_weights_t *weights = get_for(self, arg, &expert);
    if (weights == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.weights_prefetch(weights, expert);
    Py_END_ALLOW_THREADS
    return ext_none_or_raise(status);
}

/* ---- gradients ---- */

/* numbers: of experts. [count] of each, in memory of the caller: NULL: an exception is set. */
static int read_gradients(const ext_weights_t *weights, PyObject *numbers, PyObject *arrays, uint32_t *experts,
                          const float **x)
{
    char name[32];
    ext_matrix_t matrix;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        if (ext_args_number32("gradients: expert", PyTuple_GET_ITEM(numbers, i), &experts[i]) != 0) return -1;
        PyOS_snprintf(name, sizeof name, "gradients[%u]", experts[i]);
        if (ext_args_matrix(name, PyTuple_GET_ITEM(arrays, i), EXT_HOST, 1, weights->count, EXT_BIT(XEP_FP32), 0,
                            &matrix) != 0)
            return -1;
        x[i] = (const float *)(const void *)matrix.data;
    }
    return 0;
}

/* _reduce(experts, arrays [1, elements] of each, out [L, elements] or None): two tuples of the same length. */
static PyObject *reduce(PyObject *self, PyObject *given)
{
    ext_weights_t *weights = (ext_weights_t *)self;
    xep_weights_reduce_args_t args = XEP_WEIGHTS_REDUCE_ARGS_INIT;
    PyObject *numbers, *arrays, *out, *result = NULL;
    ext_matrix_t sums;
    xep_status_t status;
    xep_weights_t *own = get(weights);
    if (own == NULL || !PyArg_ParseTuple(given, "O!O!O", &PyTuple_Type, &numbers, &PyTuple_Type, &arrays, &out))
        return NULL;
    if (out != Py_None) {
        if (ext_args_output("out", out, EXT_HOST, EXT_ANY, weights->count, XEP_FP32, &sums) != 0) return NULL;
        args.out = (float *)(void *)sums.data;
    }
    args.count = (uint32_t)PyTuple_GET_SIZE(numbers);
    uint32_t *experts = PyMem_Calloc(args.count + (size_t)1, sizeof *experts);
    const float **x = PyMem_Calloc(args.count + (size_t)1, sizeof *x);
    if (experts == NULL || x == NULL) PyErr_NoMemory();
    else if (read_gradients(weights, numbers, arrays, experts, x) == 0) {
        args.experts = experts, args.x = x;
        Py_BEGIN_ALLOW_THREADS
        status = lib.weights_reduce(own, &args);
        Py_END_ALLOW_THREADS
        result = ext_none_or_raise(status);
    }
    PyMem_Free(experts);
    PyMem_Free(x);
    return result;
}

/* ---- their end ---- */

/* Forgotten first, as with a group. */
static PyObject *destroy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_weights_t *weights = get((ext_weights_t *)self);
    if (weights == NULL) return NULL;
    ((ext_weights_t *)self)->weights = NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.weights_destroy(weights);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((ext_weights_t *)self)->weights = NULL;
    Py_RETURN_NONE;
}

static PyObject *arrays_left(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSsize_t(((ext_weights_t *)self)->alive);
}

static PyObject *is_open(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(((ext_weights_t *)self)->weights != NULL);
}

/* ---- types ---- */

static int clear(PyObject *self)
{
    Py_CLEAR(((ext_weights_t *)self)->group);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((ext_weights_t *)self)->group);
    return 0;
}

/* Does not destroy: that is collective. */
static void dealloc(PyObject *self)
{
    ext_dealloc(self, NULL, clear);
}

static PyMethodDef methods[] = {
    {"_create", create, METH_VARARGS, NULL},
    {"_change", change, METH_O, NULL},
    {"_of", of, METH_O, NULL},
    {"_reduce", reduce, METH_VARARGS, NULL},
    {"_destroy", destroy, METH_NOARGS, NULL},
    {"_leave", leave, METH_NOARGS, NULL},
    {"publish", publish, METH_O,
     "publish($self, expert)\n--\n\n"
     "Ends a change(): the weights are whole, and copies of earlier ones are fetched again when asked for. Local."},
    {"prefetch", prefetch, METH_O,
     "prefetch($self, expert)\n--\n\n"
     "Begins to fetch weights for a later of(); calls that wait go on with it. Of a rank that is mapped: a no-op.\n"
     "BusyError: all copies are being fetched. Local."},
    {"arrays_left", arrays_left, METH_NOARGS, "arrays_left($self)\n--\n\nArrays of weights that are alive."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {{"_open", is_open, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef members[] = {
    {"group", T_OBJECT, offsetof(ext_weights_t, group), READONLY, "The Group they were made on."},
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

static PyType_Spec spec = {"xep._ext.Weights", sizeof(ext_weights_t), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

/* For torch without DLPack's exchange interface. */
static int get_part(PyObject *self, Py_buffer *memory, int flags)
{
    const part_t *part = (part_t *)self;
    const Py_ssize_t bytes = part->weights->count * ext_dtype_size(part->weights->element.dtype);
    return PyBuffer_FillInfo(memory, self, part->base, bytes, 0, flags);
}

static void end_part(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((part_t *)self)->weights->alive--;
    Py_DECREF(((part_t *)self)->weights);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot part_slots[] = {{Py_tp_dealloc, end_part}, {Py_bf_getbuffer, get_part}, {0, NULL}};
static PyType_Spec part_spec = {"xep._ext.WeightsMemory", sizeof(part_t), 0, Py_TPFLAGS_DEFAULT, part_slots};

int ext_weights_ready(PyObject *module)
{
    if (ext_add_type(module, &part_spec, 0, &part_type) != 0) return -1;
    return ext_add_type(module, &spec, 1, NULL);
}
