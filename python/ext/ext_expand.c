/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows by expert on a device: kernels of the library, which nothing waits for; but a thread may be in the buffer. */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_handle.h"
#include "ext_python.h"

/* Arrays of the program's: nothing keeps them until the kernels have run, as with any kernel of its own. */

static const char expand_doc[] =
    "expand($self, slots, expert_begin, expert_count, x=None, topk_weights=None, scales=None, *, expert_alignment=1,\n"
    "zero=False, stream=None)\n--\n\n"
    "memory=\"cuda\", mode normal: copies each received row to one row for each of its selections, by local expert,\n"
    "then received row, then k; each expert begins at a multiple of expert_alignment. Returns at once. Local.\n\n"
    "slots: [N, K] int32, N rows that the handle has room for: filled with the row of each selection, or -1.\n"
    "expert_begin, expert_count: [L] int64, filled. Each of the others is filled, or None: x [M, H], topk_weights [M]\n"
    "float32, scales [M, S] int32 or float32 of any strides. zero: rows of no selection become 0.\n"
    "stream: as in dispatch.";

enum { SLOTS, BEGIN, EXPERT_COUNT, X, WEIGHTS, SCALES, ALIGNMENT, ZERO, STREAM, EXPAND_COUNT };

/* M is what the first of the arrays has that was given: the others are to have as many. */
static int read_filled(const ext_handle_t *handle, const xep_recv_t *recv, PyObject *const *values,
                       xep_expand_args_t *args)
{
    const ext_where_t where = handle->buffer->where;
    const unsigned words = EXT_BIT(XEP_INT32) | EXT_BIT(XEP_FP32);
    Py_ssize_t rows = EXT_ANY;
    ext_matrix_t matrix;
    if (values[X] != NULL) {
        if (ext_args_matrix("x", values[X], where, rows, (Py_ssize_t)recv->hidden, EXT_ALL_DTYPES, recv->dtype,
                            &matrix) != 0)
            return -1;
        if (ext_dtype_size(matrix.dtype) != ext_dtype_size(recv->dtype)) {
            PyErr_Format(PyExc_ValueError, "x: expected elements of %zu bytes, got %zu",
                         (size_t)ext_dtype_size(recv->dtype), (size_t)ext_dtype_size(matrix.dtype));
            return -1;
        }
        args->x = matrix.data, args->x_stride = (size_t)matrix.stride, rows = matrix.rows;
    }
    if (values[SCALES] != NULL) {
        if (ext_args_strided("scales", values[SCALES], where, rows, words, &matrix) != 0) return -1;
        if ((uint32_t)matrix.columns != recv->nscales) {
            PyErr_Format(PyExc_ValueError, "scales: expected %u columns, got %zd", recv->nscales, matrix.columns);
            return -1;
        }
        args->scales = matrix.data, args->scales_token_stride = matrix.stride, args->scales_stride = matrix.step;
        rows = matrix.rows;
    }
    if (values[WEIGHTS] != NULL && rows == EXT_ANY) {
        PyErr_SetString(PyExc_ValueError, "topk_weights: expected x or scales with it");
        return -1;
    }
    args->capacity = rows == EXT_ANY ? INT32_MAX : (uint64_t)rows;
    return ext_args_vector("topk_weights", values[WEIGHTS], where, rows, XEP_FP32, &args->topk_weights);
}

static PyObject *expand(PyObject *self, PyObject *const *given, Py_ssize_t nargs, PyObject *keywords)
{
    static ext_signature_t signature = {"expand", expand_doc, EXPAND_COUNT, 0, {NULL}};
    const ext_handle_t *handle = (const ext_handle_t *)self;
    const ext_where_t where = handle->buffer->where;
    xep_expand_args_t args = XEP_EXPAND_ARGS_INIT;
    PyObject *values[EXPAND_COUNT];
    ext_matrix_t slots;
    if (ext_args_read(&signature, given, nargs, keywords, values) != 0) return NULL;
    const xep_recv_t *recv = ext_handle_recv(handle);
    if (recv == NULL) return NULL;
    const Py_ssize_t experts = (Py_ssize_t)recv->local_experts;
    if (ext_args_output("slots", values[SLOTS], where, (Py_ssize_t)recv->capacity, (Py_ssize_t)recv->topk, XEP_INT32,
                        &slots) != 0 ||
        ext_args_vector("expert_begin", values[BEGIN], where, experts, XEP_INT64, &args.expert_begin) != 0 ||
        ext_args_vector("expert_count", values[EXPERT_COUNT], where, experts, XEP_INT64, &args.expert_count) != 0 ||
        read_filled(handle, recv, values, &args) != 0 ||
        ext_args_number32("expert_alignment", values[ALIGNMENT], &args.expert_alignment) != 0 ||
        ext_args_flag(values[ZERO], XEP_EXPAND_ZERO, &args.flags) != 0 ||
        ext_args_stream(values[STREAM], &slots.element, &args.stream) != 0)
        return NULL;
    args.slots = (int32_t *)(void *)slots.data;
    xep_handle_t *own = ext_handle_get(handle);
    PyObject *memory = (PyObject *)handle->memory;
    xep_status_t status;
    if (own == NULL) return NULL;
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    status = lib.handle_expand(own, &args);
    Py_END_ALLOW_THREADS
    Py_DECREF(memory);
    return ext_none_or_raise(status);
}

static const char reduce_doc[] =
    "reduce($self, x, slots, out, topk_weights=None, out_weights=None, *, stream=None)\n--\n\n"
    "Sums the rows of x, [M, H], that expand() made of each received row, k ascending, in fp32, and rounds once:\n"
    "what combine() takes. Returns at once. Local.\n\n"
    "slots: of expand(). out: [rows, H] of x's type or float32, filled; may be combine_input(). topk_weights: [M]\n"
    "float32, of which out_weights, [rows, K], is filled, 0 where a selection is another rank's. stream: as in\n"
    "dispatch.";

enum { SUM_X, SUM_SLOTS, OUT, SUM_WEIGHTS, OUT_WEIGHTS, SUM_STREAM, REDUCE_COUNT };

static int read_weights(const ext_handle_t *handle, const xep_recv_t *recv, PyObject *const *values, Py_ssize_t rows,
                        xep_reduce_args_t *args)
{
    const ext_where_t where = handle->buffer->where;
    ext_matrix_t matrix;
    if (values[OUT_WEIGHTS] != NULL) {
        if (ext_args_output("out_weights", values[OUT_WEIGHTS], where, (Py_ssize_t)recv->rows, (Py_ssize_t)recv->topk,
                            XEP_FP32, &matrix) != 0)
            return -1;
        args->out_weights = (float *)(void *)matrix.data;
    }
    return ext_args_vector("topk_weights", values[SUM_WEIGHTS], where, rows, XEP_FP32, &args->topk_weights);
}

static PyObject *reduce(PyObject *self, PyObject *const *given, Py_ssize_t nargs, PyObject *keywords)
{
    static ext_signature_t signature = {"reduce", reduce_doc, REDUCE_COUNT, 0, {NULL}};
    const unsigned dtypes = EXT_BIT(XEP_BF16) | EXT_BIT(XEP_FP16) | EXT_BIT(XEP_FP32);
    const ext_handle_t *handle = (const ext_handle_t *)self;
    const ext_where_t where = handle->buffer->where;
    xep_reduce_args_t args = XEP_REDUCE_ARGS_INIT;
    PyObject *values[REDUCE_COUNT];
    ext_matrix_t x, slots, out;
    if (ext_args_read(&signature, given, nargs, keywords, values) != 0) return NULL;
    const xep_recv_t *recv = ext_handle_recv(handle);
    if (recv == NULL) return NULL;
    if (ext_args_matrix("x", values[SUM_X], where, EXT_ANY, EXT_ANY, dtypes, handle->buffer->combine_dtype, &x) != 0 ||
        ext_args_output("slots", values[SUM_SLOTS], where, (Py_ssize_t)recv->capacity, (Py_ssize_t)recv->topk,
                        XEP_INT32, &slots) != 0 ||
        ext_args_matrix("out", values[OUT], where, (Py_ssize_t)recv->rows, x.columns,
                        EXT_BIT(x.dtype) | EXT_BIT(XEP_FP32), x.dtype, &out) != 0 ||
        read_weights(handle, recv, values, x.rows, &args) != 0 ||
        ext_args_stream(values[SUM_STREAM], &slots.element, &args.stream) != 0)
        return NULL;
    args.x = x.data, args.x_stride = (size_t)x.stride, args.dtype = x.dtype, args.hidden = (uint32_t)x.columns;
    args.slots = (const int32_t *)(const void *)slots.data;
    args.out = out.data, args.out_stride = (size_t)out.stride, args.out_dtype = out.dtype;
    xep_handle_t *own = ext_handle_get(handle);
    PyObject *memory = (PyObject *)handle->memory;
    xep_status_t status;
    if (own == NULL) return NULL;
    Py_INCREF(memory);
    Py_BEGIN_ALLOW_THREADS
    status = lib.handle_reduce(own, &args);
    Py_END_ALLOW_THREADS
    Py_DECREF(memory);
    return ext_none_or_raise(status);
}

PyMethodDef ext_expand_methods[] = {
    {"expand", EXT_KEYWORDS(expand), expand_doc},
    {"reduce", EXT_KEYWORDS(reduce), reduce_doc},
    {NULL, NULL, 0, NULL},
};
