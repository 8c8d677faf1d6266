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

enum { SOME = 64 }; /* elements that are summed at once: compilers know how many there are */

static int64_t *slots_of(const ext_matrix_t *slots, Py_ssize_t row)
{
    return (int64_t *)(void *)(slots->data + row * slots->stride);
}

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
            slots_of(slots, row)[k] = expert >= 0 && expert < experts ? next[expert]++ : -1;
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

static PyObject *expert_slots(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *topk_idx, *given, *counts;
    long long alignment;
    ext_matrix_t indices, slots;
    if (!PyArg_ParseTuple(args, "OO!LO", &topk_idx, &PyList_Type, &counts, &alignment, &given)) return NULL;
    if (ext_args_matrix("topk_idx", topk_idx, EXT_HOST, EXT_ANY, EXT_ANY, EXT_INDEX_DTYPES, 0, &indices) != 0 ||
        ext_args_output("slots", given, EXT_HOST, indices.rows, indices.columns, XEP_INT64, &slots) != 0)
        return NULL;
    int64_t *next = read_counts(counts);
    if (next == NULL) return NULL;
    fill_slots(&indices, &slots, next, PyList_GET_SIZE(counts), alignment > 0 ? alignment : 1);
    PyMem_Free(next);
    Py_RETURN_NONE;
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
            const int64_t slot = slots_of(slots, row)[k];
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

/* ---- and back ---- */

static float widen_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t bits = (rest << 13) + ((127 - 15) << 23);
    float value;
    if (rest >= 0x7c00) bits += (127 - 15) << 23; /* infinities and NaN */
    if (rest < 0x400) {
        value = (float)rest * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest, ties to even: the additions do it, of a number whose last place is that of the result. */
static uint16_t narrow_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {
        float small;
        memcpy(&small, &bits, sizeof small);
        small += 0.5f;
        memcpy(&bits, &small, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    return (uint16_t)(sign | ((bits + 0xfff + (bits >> 13 & 1)) - 0x38000000) >> 13);
}

static inline float widen(const char *at, Py_ssize_t i, xep_dtype_t dtype)
{
    const uint16_t *shorts = (const uint16_t *)(const void *)at;
    if (dtype == XEP_FP32) return ((const float *)(const void *)at)[i];
    if (dtype == XEP_FP16) return widen_half(shorts[i]);
    const uint32_t bits = (uint32_t)shorts[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void narrow(char *at, Py_ssize_t i, float value, xep_dtype_t dtype)
{
    uint16_t *shorts = (uint16_t *)(void *)at;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == XEP_FP32) ((float *)(void *)at)[i] = value;
    else if (dtype == XEP_FP16) shorts[i] = narrow_to_half(value);
    else shorts[i] = value != value ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define EXT_INLINE static inline __attribute__((always_inline))

/* Inlined with constants for all but the addresses it becomes vector code; first: nothing is in total yet. */
EXT_INLINE void add_some(float *total, int first, const char *const *terms, int count, xep_dtype_t type, Py_ssize_t at,
                         Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        float sum = first ? widen(terms[0], at + i, type) : total[i];
        for (int t = first; t < count; t++) sum += widen(terms[t], at + i, type);
        total[i] = sum;
    }
}

EXT_INLINE void sum_some(char *to, xep_dtype_t to_type, const char *const *terms, Py_ssize_t count, xep_dtype_t type,
                         Py_ssize_t at, Py_ssize_t n)
{
    float total[SOME];
    switch (count) {
    case 1: add_some(total, 1, terms, 1, type, at, n); break;
    case 2: add_some(total, 1, terms, 2, type, at, n); break;
    case 3: add_some(total, 1, terms, 3, type, at, n); break;
    default: add_some(total, 1, terms, 4, type, at, n);
    }
    for (Py_ssize_t t = 4; t < count; t += 2) {
        if (t + 1 < count) add_some(total, 0, terms + t, 2, type, at, n);
        else add_some(total, 0, terms + t, 1, type, at, n);
    }
    for (Py_ssize_t i = 0; i < n; i++) narrow(to, at + i, total[i], to_type);
}

EXT_INLINE void sum_row(char *to, xep_dtype_t to_type, const char *const *terms, Py_ssize_t count, xep_dtype_t type,
                        Py_ssize_t columns)
{
    Py_ssize_t at = 0;
    for (; at + SOME <= columns; at += SOME) sum_some(to, to_type, terms, count, type, at, SOME);
    if (at < columns) sum_some(to, to_type, terms, count, type, at, columns - at);
}

EXT_INLINE void sum_any(char *to, xep_dtype_t to_type, const char *const *terms, Py_ssize_t count, xep_dtype_t type,
                        Py_ssize_t columns)
{
    if (type == XEP_BF16 && to_type == XEP_BF16) sum_row(to, XEP_BF16, terms, count, XEP_BF16, columns);
    else if (type == XEP_BF16) sum_row(to, XEP_FP32, terms, count, XEP_BF16, columns);
    else sum_row(to, to_type, terms, count, type, columns);
}

typedef void (*sum_t)(char *to, xep_dtype_t to_type, const char *const *terms, Py_ssize_t count, xep_dtype_t type,
                      Py_ssize_t columns);

static void sum_plain(char *to, xep_dtype_t to_type, const char *const *terms, Py_ssize_t count, xep_dtype_t type,
                      Py_ssize_t columns)
{
    sum_any(to, to_type, terms, count, type, columns);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void sum_avx2(char *to, xep_dtype_t to_type, const char *const *terms,
                                                     Py_ssize_t count, xep_dtype_t type, Py_ssize_t columns)
{
    sum_any(to, to_type, terms, count, type, columns);
}
#endif

static sum_t choose_sum(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_plain;
}

static void sum_rows(const ext_matrix_t *to, const ext_matrix_t *from, const ext_matrix_t *slots, const char **terms)
{
    const sum_t sum = choose_sum();
    const size_t bytes = (size_t)(to->columns * to->step);
    for (Py_ssize_t row = 0; row < slots->rows; row++) {
        Py_ssize_t count = 0;
        for (Py_ssize_t k = 0; k < slots->columns; k++) {
            const int64_t slot = slots_of(slots, row)[k];
            if (slot >= 0 && slot < from->rows) terms[count++] = from->data + slot * from->stride;
        }
        char *there = to->data + row * to->stride;
        if (count == 0) memset(there, 0, bytes);
        else if (count == 1 && to->dtype == from->dtype) memcpy(there, terms[0], bytes);
        else sum(there, to->dtype, terms, count, from->dtype, to->columns);
    }
}

static PyObject *expert_sum(PyObject *Py_UNUSED(module), PyObject *args)
{
    const unsigned dtypes = EXT_BIT(XEP_BF16) | EXT_BIT(XEP_FP16) | EXT_BIT(XEP_FP32);
    PyObject *to_array, *from_array, *slots_array;
    ext_matrix_t to, from, slots;
    if (!PyArg_ParseTuple(args, "OOO", &to_array, &from_array, &slots_array)) return NULL;
    if (ext_args_matrix("slots", slots_array, EXT_HOST, EXT_ANY, EXT_ANY, EXT_BIT(XEP_INT64), 0, &slots) != 0 ||
        ext_args_matrix("source", from_array, EXT_HOST, EXT_ANY, EXT_ANY, dtypes, 0, &from) != 0 ||
        ext_args_matrix("to", to_array, EXT_HOST, slots.rows, from.columns, EXT_BIT(from.dtype) | EXT_BIT(XEP_FP32), 0,
                        &to) != 0)
        return NULL;
    const char **terms = PyMem_Malloc(sizeof *terms * (size_t)(slots.columns + 1));
    if (terms == NULL) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    sum_rows(&to, &from, &slots, terms);
    Py_END_ALLOW_THREADS
    PyMem_Free(terms);
    Py_RETURN_NONE;
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
            const int64_t slot = slots_of(&slots, row)[k];
            float weight = 0;
            if (slot >= 0 && slot < from.rows) memcpy(&weight, from.data + slot * from.stride, sizeof weight);
            memcpy(to.data + row * to.stride + k * to.step, &weight, sizeof weight);
        }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"expert_slots", expert_slots, METH_VARARGS,
     "expert_slots(topk_idx, counts, alignment, slots): fills slots, [N, K] int64, for topk_idx, [N, K] local expert\n"
     "or -1, of which counts, a list, says how many rows each expert has."},
    {"expert_spread", expert_spread, METH_VARARGS,
     "expert_spread(to, source, slots, counts, alignment, each): copies each row of source, [N, H], to its slots in\n"
     "to, [M, H]; each: of source, [N, K], the k-th element to the k-th slot. alignment above 0: gaps become 0."},
    {"expert_sum", expert_sum, METH_VARARGS,
     "expert_sum(to, source, slots): to, [N, H], becomes the sum of the slots of each row in source, [M, H], k\n"
     "ascending, in fp32, rounded once to the type of to."},
    {"expert_gather", expert_gather, METH_VARARGS,
     "expert_gather(to, source, slots): to, [N, K] float32, becomes source, [M, 1], at the slots, 0 where none is."},
    {NULL, NULL, 0, NULL},
};

int ext_experts_ready(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
