/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A received row is copied to a slot for each of its experts here, and what they make of it is summed before it goes
 * back. Slots are in the order of expert, then received row; each expert begins at a multiple of an alignment, and the
 * slots between experts are gaps. What is copied, and in which order it is summed, is said by an array of slots: [N, K]
 * int64, -1 for what has no expert here. The GIL is given up where rows are moved.
 */
#include "ext_experts.h"

#include <string.h>

#include "ext_args.h"
#include "ext_module.h"

static int64_t index_at(const ext_matrix_t *indices, Py_ssize_t row, Py_ssize_t k)
{
    const char *at = indices->data + row * indices->stride + k * indices->step;
    int64_t wide;
    int32_t narrow;
    if (indices->dtype == XEP_INT32) {
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

/* ---- slots ---- */

/* next: of each expert the slot of its next row; at first, how many rows it has. */
static void fill_slots(const ext_matrix_t *indices, const ext_matrix_t *slots, int64_t *next, Py_ssize_t experts,
                       int64_t alignment)
{
    int64_t first = 0;
    for (Py_ssize_t e = 0; e < experts; e++) {
        const int64_t count = next[e];
        next[e] = first;
        first += (count + alignment - 1) / alignment * alignment;
    }
    for (Py_ssize_t row = 0; row < indices->rows; row++)
        for (Py_ssize_t k = 0; k < indices->columns; k++) {
            const int64_t expert = index_at(indices, row, k);
            ext_slots_of_row(slots, row)[k] = expert >= 0 && expert < experts ? next[expert]++ : -1;
        }
}

static int64_t *read_counts(PyObject *counts)
{
    const Py_ssize_t experts = PyList_GET_SIZE(counts);
    int64_t *next = PyMem_Calloc((size_t)experts + 1, sizeof *next);
    if (next == NULL) return (int64_t *)PyErr_NoMemory();
    for (Py_ssize_t e = 0; e < experts; e++) next[e] = PyLong_AsLongLong(PyList_GET_ITEM(counts, e));
    if (!PyErr_Occurred()) return next;
    PyMem_Free(next);
    return NULL;
}

/* ---- to the experts ---- */

/* Elements of columns that lie apart, as scales by column do, are copied one by one. */
static void copy_row(const ext_matrix_t *to, Py_ssize_t slot, const ext_matrix_t *from, const char *row)
{
    char *there = to->data + slot * to->stride;
    const size_t size = (size_t)ext_dtype_size(from->dtype);
    if (to->step == (Py_ssize_t)size && from->step == to->step) {
        memcpy(there, row, size * (size_t)to->columns);
        return;
    }
    for (Py_ssize_t i = 0; i < to->columns; i++) memcpy(there + i * to->step, row + i * from->step, size);
}

/* each: of a row that has K elements its k-th goes to the k-th slot; else all of it does. */
static void spread_rows(const ext_matrix_t *to, const ext_matrix_t *from, const ext_matrix_t *slots, int each)
{
    for (Py_ssize_t row = 0; row < slots->rows; row++)
        for (Py_ssize_t k = 0; k < slots->columns; k++) {
            const int64_t slot = ext_slots_of_row(slots, row)[k];
            if (slot < 0 || slot >= to->rows) continue;
            copy_row(to, (Py_ssize_t)slot, from, from->data + row * from->stride + (each ? k * from->step : 0));
        }
}

static void zero_gaps(const ext_matrix_t *to, const int64_t *counts, Py_ssize_t experts, int64_t alignment)
{
    const size_t size = (size_t)ext_dtype_size(to->dtype);
    int64_t slot = 0;
    for (Py_ssize_t e = 0; e < experts; e++) {
        const int64_t end = slot + (counts[e] + alignment - 1) / alignment * alignment;
        for (slot += counts[e]; slot < end; slot++)
            for (Py_ssize_t i = 0; slot < to->rows && i < to->columns; i++)
                memset(to->data + slot * to->stride + i * to->step, 0, size);
    }
}

/* Of the same element type; what is copied of each has as many columns. */
static int read_pair(PyObject *to, PyObject *from, PyObject *given, int each, ext_matrix_t *to_p, ext_matrix_t *from_p,
                     ext_matrix_t *slots_p)
{
    if (ext_args_strided("to", to, EXT_HOST, EXT_ANY, EXT_ALL_DTYPES, to_p) != 0 ||
        ext_args_strided("source", from, EXT_HOST, EXT_ANY, EXT_BIT(to_p->dtype), from_p) != 0 ||
        ext_args_matrix("slots", given, EXT_HOST, EXT_ANY, EXT_ANY, EXT_BIT(XEP_INT64), 0, slots_p) != 0)
        return -1;
    if (from_p->rows >= slots_p->rows && from_p->columns == (each ? slots_p->columns : to_p->columns)) return 0;
    PyErr_Format(PyExc_ValueError, "source: expected [%zd or more, %zd], got [%zd, %zd]", slots_p->rows,
                 each ? slots_p->columns : to_p->columns, from_p->rows, from_p->columns);
    return -1;
}

static PyObject *expert_spread(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *to_array, *from_array, *slots_array, *counts;
    ext_matrix_t to, from, slots;
    long long alignment;
    int each;
    if (!PyArg_ParseTuple(args, "OOOO!Lp", &to_array, &from_array, &slots_array, &PyList_Type, &counts, &alignment,
                          &each))
        return NULL;
    if (read_pair(to_array, from_array, slots_array, each, &to, &from, &slots) != 0) return NULL;
    int64_t *rows = read_counts(counts);
    if (rows == NULL) return NULL;
    const Py_ssize_t experts = PyList_GET_SIZE(counts);
    Py_BEGIN_ALLOW_THREADS
    spread_rows(&to, &from, &slots, each);
    if (alignment > 0) zero_gaps(&to, rows, experts, alignment);
    Py_END_ALLOW_THREADS
    PyMem_Free(rows);
    Py_RETURN_NONE;
}

/* A new array; columns EXT_NONE: of one dimension. */
static PyObject *new_rows(ext_kind_t kind, xep_dtype_t dtype, Py_ssize_t rows, Py_ssize_t columns, ext_matrix_t *rows_p)
{
    const ext_element_t element = {.kind = kind, .dtype = dtype, .where = EXT_HOST};
    const Py_ssize_t size = ext_dtype_size(dtype), shape[2] = {rows, columns};
    *rows_p = (ext_matrix_t){.element = element, .dtype = dtype, .rows = rows, .step = size};
    rows_p->columns = columns == EXT_NONE ? 1 : columns;
    rows_p->stride = rows_p->columns * size;
    return ext_array_new(&element, columns == EXT_NONE ? 1 : 2, shape, &rows_p->data);
}

typedef struct expand {
    ext_matrix_t x, weights, indices;      /* given; without a dtype: not */
    ext_matrix_t slots, rows, row_weights; /* made */
    int64_t *next;                         /* of each expert: see fill_slots() */
    Py_ssize_t experts;
    int64_t alignment;
} expand_t;

/* Nothing where it is not given. counts NULL: gaps stay as they are. */
static void spread_given(const expand_t *expand, const ext_matrix_t *to, const ext_matrix_t *from, int each,
                         const int64_t *counts)
{
    if (from->dtype == 0) return;
    spread_rows(to, from, &expand->slots, each);
    if (counts != NULL) zero_gaps(to, counts, expand->experts, expand->alignment);
}

static PyObject *none(void)
{
    Py_RETURN_NONE;
}

static PyObject *make_expanded(expand_t *expand, const int64_t *counts)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t e = 0; e < expand->experts; e++)
        total += (expand->next[e] + expand->alignment - 1) / expand->alignment * expand->alignment;
    const ext_kind_t kind = expand->indices.element.kind;
    const ext_matrix_t *x = &expand->x, *weights = &expand->weights, *indices = &expand->indices;
    PyObject *made[] = {
        new_rows(kind, XEP_INT64, indices->rows, indices->columns, &expand->slots),
        x->dtype != 0 ? new_rows(kind, x->dtype, total, x->columns, &expand->rows) : none(),
        weights->dtype != 0 ? new_rows(kind, XEP_FP32, total, EXT_NONE, &expand->row_weights) : none(),
    };
    if (made[0] != NULL && made[1] != NULL && made[2] != NULL) {
        Py_BEGIN_ALLOW_THREADS
        fill_slots(indices, &expand->slots, expand->next, expand->experts, expand->alignment);
        spread_given(expand, &expand->rows, x, 0, counts);
        spread_given(expand, &expand->row_weights, weights, 1, counts);
        Py_END_ALLOW_THREADS
        return Py_BuildValue("(NNN)", made[0], made[1], made[2]);
    }
    for (int i = 0; i < 3; i++) Py_XDECREF(made[i]);
    return NULL;
}

static int read_given(PyObject *topk_idx, PyObject *x, PyObject *weights, expand_t *expand)
{
    ext_matrix_t *indices = &expand->indices;
    if (ext_args_matrix("topk_idx", topk_idx, EXT_HOST, EXT_ANY, EXT_ANY, EXT_INDEX_DTYPES, 0, indices) != 0) return -1;
    if (x != Py_None && ext_args_strided("x", x, EXT_HOST, indices->rows, EXT_ALL_DTYPES, &expand->x) != 0) return -1;
    if (weights == Py_None) return 0;
    return ext_args_matrix("topk_weights", weights, EXT_HOST, indices->rows, indices->columns, EXT_BIT(XEP_FP32), 0,
                           &expand->weights);
}

static PyObject *expert_expand(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *topk_idx, *x, *weights, *given, *made = NULL;
    expand_t expand = {.x = {.dtype = 0}, .weights = {.dtype = 0}};
    int64_t *counts = NULL;
    long long alignment;
    int zero;
    if (!PyArg_ParseTuple(args, "OO!LOOp", &topk_idx, &PyList_Type, &given, &alignment, &x, &weights, &zero) ||
        read_given(topk_idx, x, weights, &expand) != 0)
        return NULL;
    expand.alignment = alignment > 0 ? alignment : 1, expand.experts = PyList_GET_SIZE(given);
    expand.next = read_counts(given);
    if (expand.next != NULL && (!zero || (counts = read_counts(given)) != NULL)) made = make_expanded(&expand, counts);
    PyMem_Free(expand.next);
    PyMem_Free(counts);
    return made;
}

/* ---- and back ---- */

static PyObject *expert_sum(PyObject *Py_UNUSED(module), PyObject *args)
{
    const unsigned dtypes = EXT_BIT(XEP_BF16) | EXT_BIT(XEP_FP16) | EXT_BIT(XEP_FP32);
    PyObject *from_array, *slots_array;
    ext_matrix_t to, from, slots;
    if (!PyArg_ParseTuple(args, "OO", &from_array, &slots_array) ||
        ext_args_matrix("slots", slots_array, EXT_HOST, EXT_ANY, EXT_ANY, EXT_BIT(XEP_INT64), 0, &slots) != 0 ||
        ext_args_matrix("source", from_array, EXT_HOST, EXT_ANY, EXT_ANY, dtypes, 0, &from) != 0)
        return NULL;
    const char **terms = PyMem_Malloc(sizeof *terms * (size_t)(slots.columns + 1));
    PyObject *made = terms != NULL ? new_rows(from.element.kind, from.dtype, slots.rows, from.columns, &to) : NULL;
    if (terms == NULL) return PyErr_NoMemory();
    if (made != NULL) {
        Py_BEGIN_ALLOW_THREADS
        ext_sum_rows(&to, &from, &slots, terms);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(terms);
    return made;
}

/* Of each selection the float32 of its slot; 0 where it has none. */
static PyObject *expert_gather(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *to_array, *from_array, *slots_array;
    ext_matrix_t to, from, slots;
    if (!PyArg_ParseTuple(args, "OOO", &to_array, &from_array, &slots_array)) return NULL;
    if (ext_args_matrix("slots", slots_array, EXT_HOST, EXT_ANY, EXT_ANY, EXT_BIT(XEP_INT64), 0, &slots) != 0 ||
        ext_args_strided("source", from_array, EXT_HOST, EXT_ANY, EXT_BIT(XEP_FP32), &from) != 0 ||
        ext_args_output("to", to_array, EXT_HOST, slots.rows, slots.columns, XEP_FP32, &to) != 0)
        return NULL;
    for (Py_ssize_t row = 0; row < slots.rows; row++)
        for (Py_ssize_t k = 0; k < slots.columns; k++) {
            const int64_t slot = ext_slots_of_row(&slots, row)[k];
            float weight = 0;
            if (slot >= 0 && slot < from.rows) memcpy(&weight, from.data + slot * from.stride, sizeof weight);
            memcpy(to.data + row * to.stride + k * to.step, &weight, sizeof weight);
        }
    Py_RETURN_NONE;
}

PyMethodDef ext_experts_functions[] = {
    {"expert_expand", expert_expand, METH_VARARGS,
     "expert_expand(topk_idx, counts, alignment, x, topk_weights, zero): new (slots, rows, weights): slots, [N, K]\n"
     "int64, of topk_idx, [N, K] local expert or -1, of which counts, a list, says how many rows each expert has;\n"
     "x and topk_weights, or None, by expert. zero: gaps become 0."},
    {"expert_spread", expert_spread, METH_VARARGS,
     "expert_spread(to, source, slots, counts, alignment, each): copies each row of source, [N, H], to its slots in\n"
     "to, [M, H]; each: of source, [N, K], the k-th element to the k-th slot. alignment above 0: gaps become 0."},
    {"expert_sum", expert_sum, METH_VARARGS,
     "expert_sum(source, slots): new, [N, H]: the sum of the slots of each row in source, [M, H], k ascending, in\n"
     "fp32, rounded once to the type of source."},
    {"expert_gather", expert_gather, METH_VARARGS,
     "expert_gather(to, source, slots): to, [N, K] float32, becomes source, [M, 1], at the slots, 0 where none is."},
    {NULL, NULL, 0, NULL},
};
