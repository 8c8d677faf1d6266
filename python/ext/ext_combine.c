/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a combine is given becomes the struct of the library, borrowed; what must live until a begun one is done is kept
 * by its Request.
 */
#include "ext_combine.h"

#include "ext_args.h"
#include "ext_arrays.h"
#include "ext_failed.h"
#include "ext_module.h"
#include "ext_python.h"
#include "ext_request.h"

#define EXT_PARAMETERS                                                                                         \
    "($self, x=None, *, out=None, topk_weights=None, weights=None, bias=None, out_weights=None, dtype=None,\n" \
    "quant=0, quant_scale=0.0, sum_at_owner=False, wait_ns=None, missing=None, after=None, timeout=None,\n"    \
    "stream=None, slots=None)\n--\n\n"

static const char combine_doc[] =
    "combine" EXT_PARAMETERS
    "Brings rows back to their tokens and sums them: [T, H], or ([T, H], [T, K]) with topk_weights. Collective,\n"
    "blocking.\n\n"
    "x: [rows, H] expert outputs in the order received, bfloat16, float16 or float32; None: what give() was\n"
    "    told, else what was written to combine_input(). Rows beyond rows, up to capacity, are allowed and not read.\n"
    "topk_weights: [rows, K] float32, sent back and summed into out_weights.\n"
    "weights: mode ll: [T, K] float32 of this rank's own tokens, applied in the sum.\n"
    "bias: one or two [T, H] of x's type, added first.\n"
    "out, out_weights: [T, H] of x's type and [T, K] float32 to write to; None: allocated.\n"
    "dtype: what the bits of x are, where it is of uint16; it casts nothing. Without x: of combine_input(); None: as\n"
    "    that was asked for.\n"
    "quant: mode ll: a Quant, or its name in small letters (\"logfmt\"): how rows of bfloat16 travel to ranks that\n"
    "    are not mapped; lossy. quant_scale: as in dispatch().\n"
    "sum_at_owner: mode ll: ranks sum their experts' rows of a token first; without weights, or with those sent.\n"
    "wait_ns: [R] int64: the nanoseconds that this rank waited for each rank are added, as Buffer.waits() counts\n"
    "    them. after: a request to begin after. timeout: seconds; None: the buffer's.\n"
    "stream: memory=\"cuda\", as in dispatch(): the call does not wait for it. Of arrays that are no tensors, out and\n"
    "    out_weights have to be given.\n"
    "missing: mode ll: [T, K] uint8 to write to: 1 where a selection is not in the sum, as the rank of its expert is\n"
    "    out, else 0.\n"
    "slots: of expand(), memory=\"cuda\": x has rows by expert, [M, H], which are summed first, as reduce() does.";

static const char combine_async_doc[] =
    "combine_async" EXT_PARAMETERS
    "As combine(), but returns once it is begun; wait() has the result. Arrays must not be touched before.";

#undef EXT_PARAMETERS

enum {
    X,
    OUT,
    TOPK_WEIGHTS,
    WEIGHTS,
    BIAS,
    OUT_WEIGHTS,
    DTYPE,
    QUANT,
    QUANT_SCALE,
    SUM_AT_OWNER,
    WAIT_NS,
    MISSING,
    AFTER,
    TIMEOUT,
    STREAM,
    SLOTS,
    COUNT
};

_Static_assert(COUNT <= EXT_MOST_PARAMETERS, "no room for a name");
static ext_signature_t signature = {"combine", combine_doc, COUNT, 0, {NULL}};

/* ---- the struct ---- */

/* [L, N, H] as [L * N, H], without a copy: so each expert must begin where the last one ends. -1: ValueError. */
static int flatten(PyObject *x, ext_array_t *look)
{
    if (look->shape[0] > 1 && look->shape[1] > 0 && look->strides[0] != look->strides[1] * look->shape[1]) {
        Py_XDECREF(ext_call_helper("refuse_experts", "(O)", x));
        return -1;
    }
    look->ndim = 2;
    look->shape[0] *= look->shape[1], look->shape[1] = look->shape[2];
    look->strides[0] = look->strides[1], look->strides[1] = look->strides[2];
    return 0;
}

/* Of as many rows as were received, or as there is room for: arrays with a fixed capacity may be passed on whole. */
static int refuse_rows(const char *name, PyObject *object, const xep_recv_t *recv, const char *columns)
{
    Py_XDECREF(ext_call_helper("refuse_count", "(sOKs)", name, object, recv->rows, columns));
    return -1;
}

/*
 * Rows by expert, padded, come back in the places in which they were received, so there all of the capacity is needed;
 * in the other arrangements the rows beyond recv->rows are not looked at.
 */
static int read_x(const ext_handle_t *handle, PyObject *x, xep_dtype_t as, xep_combine_args_t *args,
                  ext_element_t *made)
{
    const xep_recv_t *recv = ext_handle_recv(handle);
    const unsigned dtypes = EXT_BIT(XEP_BF16) | EXT_BIT(XEP_FP16) | EXT_BIT(XEP_FP32);
    ext_array_t look;
    ext_matrix_t rows;
    if (recv == NULL || ext_array_look("x", x, handle->buffer->where, &look) != 0) return -1;
    const int is_padded = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    if (is_padded && look.ndim == 3 && flatten(x, &look) != 0) return -1;
    if (ext_args_rows("x", x, &look, EXT_ANY, EXT_ANY, dtypes, as, &rows) != 0 || ext_args_said(x, &rows, as) != 0 ||
        ext_args_fits(x, &rows, handle->buffer->hidden, "combine_dtype", handle->buffer->combine_dtype) != 0)
        return -1;
    const uint64_t count = (uint64_t)rows.rows, least = is_padded ? recv->capacity : recv->rows;
    if (args->slots == NULL && (count > recv->capacity || count < least)) return refuse_rows("x", x, recv, "H");
    args->x = rows.data, args->x_stride = (size_t)rows.stride;
    args->dtype = rows.dtype, args->hidden = (uint32_t)rows.columns;
    *made = rows.element;
    return 0;
}

/* One bias may come without a list around it, as DeepEP has it. */
static int read_biases(const ext_handle_t *handle, PyObject *bias, xep_combine_args_t *args)
{
    static const char *const bias_names[] = {"bias[0]", "bias[1]"};
    const int is_sequence = bias != NULL && (PyTuple_Check(bias) || PyList_Check(bias));
    const Py_ssize_t count = bias == NULL ? 0 : is_sequence ? PySequence_Fast_GET_SIZE(bias) : 1;
    ext_matrix_t rows;
    if (count > 2) {
        PyErr_Format(PyExc_ValueError, "bias: expected at most 2, got %zd", count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = is_sequence ? PySequence_Fast_GET_ITEM(bias, i) : bias;
        if (ext_args_matrix(bias_names[i], one, handle->buffer->where, handle->tokens, args->hidden,
                            EXT_BIT(args->dtype), args->dtype, &rows) != 0)
            return -1;
        args->bias[i] = rows.data, args->bias_stride[i] = (size_t)rows.stride;
    }
    return 0;
}

/* [rows, K] float32, a row for each row received. There may be more, up to the capacity, which are not read. */
static int read_sent_back(const ext_handle_t *handle, PyObject *weights, xep_combine_args_t *args)
{
    ext_matrix_t rows;
    const xep_recv_t *recv = ext_handle_recv(handle);
    if (recv == NULL || ext_args_matrix("topk_weights", weights, handle->buffer->where, EXT_ANY, handle->topk,
                                        EXT_BIT(XEP_FP32), 0, &rows) != 0)
        return -1;
    if ((uint64_t)rows.rows < recv->rows ||
        (uint64_t)rows.rows > (recv->capacity > recv->rows ? recv->capacity : recv->rows)) {
        char columns[24];
        snprintf(columns, sizeof columns, "%zd", handle->topk);
        return refuse_rows("topk_weights", weights, recv, columns);
    }
    args->topk_weights = (const float *)(void *)rows.data, args->topk_weights_stride = (size_t)rows.stride;
    return 0;
}

/*
 * [T, K], a row for each token of this rank: mixing them up with those that are sent back is what the shapes are
 * checked for. out_weights alone would be left as it is without a word, so it is refused.
 */
static int read_weights(const ext_handle_t *handle, PyObject *const *values, xep_combine_args_t *args)
{
    ext_matrix_t rows;
    if (values[WEIGHTS] != NULL) {
        if (ext_args_matrix("weights", values[WEIGHTS], handle->buffer->where, handle->tokens, handle->topk,
                            EXT_BIT(XEP_FP32), 0, &rows) != 0)
            return -1;
        args->weights = (const float *)(void *)rows.data, args->weights_stride = (size_t)rows.stride;
    }
    if (values[OUT_WEIGHTS] == NULL || values[TOPK_WEIGHTS] != NULL) return 0;
    PyErr_SetString(PyExc_ValueError, "topk_weights: expected an array, as out_weights is given");
    return -1;
}

/* [T, K] uint8, in host memory: buffers elsewhere do not go on without ranks. */
static int read_missing(const ext_handle_t *handle, PyObject *missing, xep_combine_args_t *args)
{
    ext_matrix_t rows;
    if (missing == NULL) return 0;
    if (ext_args_output("missing", missing, EXT_HOST, handle->tokens, handle->topk, XEP_U8, &rows) != 0) return -1;
    args->missing = (uint8_t *)rows.data, args->missing_stride = (size_t)rows.stride;
    return 0;
}

/* As expand() has filled them: then x may have any number of rows. */
static int read_slots(const ext_handle_t *handle, PyObject *slots, xep_combine_args_t *args)
{
    const xep_recv_t *recv;
    ext_matrix_t rows;
    if (slots == NULL) return 0;
    if ((recv = ext_handle_recv(handle)) == NULL ||
        ext_args_output("slots", slots, handle->buffer->where, (Py_ssize_t)recv->capacity, handle->topk, XEP_INT32,
                        &rows) != 0)
        return -1;
    args->slots = (const int32_t *)(const void *)rows.data;
    return 0;
}

/* What was written as one type would be summed as another; bits may be any of their width. */
static int check_input(const ext_handle_t *handle, PyObject *dtype, xep_dtype_t as)
{
    const ext_element_t *input = &handle->input;
    if (as == input->dtype) return 0;
    if (ext_element_is_bits(input) && ext_dtype_size(as) == ext_dtype_size(input->dtype)) return 0;
    PyErr_Format(PyExc_TypeError, "dtype: expected None or that of combine_input(), got %R (nothing is cast)", dtype);
    return -1;
}

/*
 * Without x the outputs are in the slot already: they have the H of the dispatch and the type that combine_input() has
 * shown, if no other one is given.
 */
int ext_combine_read(const ext_handle_t *handle, PyObject *x, PyObject *topk_weights, PyObject *dtype,
                     xep_combine_args_t *args, ext_element_t *made)
{
    xep_dtype_t as = 0;
    if (ext_args_dtype("dtype", dtype, &as) != 0) return -1;
    args->hidden = (uint32_t)handle->hidden;
    *made = handle->input;
    if (x == NULL && as != 0 && check_input(handle, dtype, as) != 0) return -1;
    if (as != 0) made->dtype = as;
    args->dtype = made->dtype;
    if (x != NULL && read_x(handle, x, as, args, made) != 0) return -1;
    return topk_weights != NULL ? read_sent_back(handle, topk_weights, args) : 0;
}

/* made: what results are made like. */
static int fill_args(const ext_handle_t *handle, PyObject *const *values, xep_combine_args_t *args, ext_element_t *made)
{
    if (read_slots(handle, values[SLOTS], args) != 0 ||
        ext_combine_read(handle, values[X], values[TOPK_WEIGHTS], values[DTYPE], args, made) != 0 ||
        read_biases(handle, values[BIAS], args) != 0 || read_weights(handle, values, args) != 0 ||
        read_missing(handle, values[MISSING], args) != 0 ||
        ext_args_vector("wait_ns", values[WAIT_NS], EXT_HOST, handle->nranks, XEP_INT64, &args->wait_ns) != 0 ||
        ext_args_word(EXT_QUANT, values[QUANT], &args->quant) != 0 ||
        ext_args_quant_scale(values[QUANT_SCALE], &args->quant_scale) != 0 ||
        ext_args_flag(values[SUM_AT_OWNER], XEP_COMBINE_SUM_AT_OWNER, &args->flags) != 0 ||
        ext_request_read_after(values[AFTER], &args->after) != 0 ||
        ext_args_stream(values[STREAM], made, &args->stream) != 0)
        return -1;
    return ext_args_timeout(values[TIMEOUT], &args->timeout_ms);
}

/* ---- the result ---- */

/* A new reference, to the array of the call, checked, or to a new one; NULL: an exception is set. Strides in bytes. */
static PyObject *take_output(const char *name, PyObject *given, const ext_element_t *made, Py_ssize_t rows,
                             Py_ssize_t columns, xep_dtype_t dtype, char **data_p, size_t *stride_p)
{
    const Py_ssize_t shape[2] = {rows, columns};
    ext_matrix_t output;
    if (given == NULL) {
        *stride_p = (size_t)(columns * ext_dtype_size(dtype));
        return ext_array_new(made, 2, shape, data_p);
    }
    if (ext_args_output(name, given, made->where, rows, columns, dtype, &output) != 0) return NULL;
    *data_p = output.data, *stride_p = (size_t)output.stride;
    Py_INCREF(given);
    return given;
}

/*
 * What combine returns, put into the struct: out, or a tuple of it and out_weights where topk_weights go back. A new
 * reference, which keeps the memory that the struct then points to.
 */
static PyObject *take_result(const ext_handle_t *handle, PyObject *const *values, const ext_element_t *made,
                             xep_combine_args_t *args)
{
    const ext_element_t fp32 = {.kind = made->kind, .dtype = XEP_FP32, .where = made->where};
    char *data = NULL;
    PyObject *out =
        take_output("out", values[OUT], made, handle->tokens, args->hidden, args->dtype, &data, &args->out_stride);
    args->out = data;
    if (out == NULL || args->topk_weights == NULL) return out;
    PyObject *weights = take_output("out_weights", values[OUT_WEIGHTS], &fp32, handle->tokens, handle->topk, XEP_FP32,
                                    &data, &args->out_weights_stride);
    args->out_weights = (float *)(void *)data;
    PyObject *both = weights != NULL ? PyTuple_Pack(2, out, weights) : NULL;
    Py_DECREF(out);
    Py_XDECREF(weights);
    return both;
}

/*
 * The result is made before the call and belongs to it; a new array that a failed call has written half is dropped
 * unseen. values are borrowed, and the GIL is given up: the caller's frame holds them for a call that waits, the
 * Request for one that was only begun.
 */
static PyObject *bring_back(ext_handle_t *handle, PyObject *const *values, int begin_only)
{
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;
    xep_request_t *request = NULL;
    ext_element_t made;
    xep_status_t status;
    if (ext_handle_get(handle) == NULL) return ext_failed_refuse(handle->buffer);
    if (ext_request_begin(handle->buffer) == NULL) return NULL;
    /* again: what was settled may have been its dispatch, which failed; and what arrays are asked may release it */
    if (ext_handle_get(handle) == NULL || fill_args(handle, values, &args, &made) != 0)
        return ext_failed_refuse(handle->buffer);
    PyObject *result = take_result(handle, values, &made, &args);
    xep_handle_t *own = result != NULL ? ext_handle_get(handle) : NULL;
    if (own == NULL) {
        Py_XDECREF(result);
        return ext_failed_refuse(handle->buffer);
    }
    PyObject *memory = (PyObject *)handle->memory;
    ext_recent_use(&handle->buffer->recent, handle);
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    status = lib.combine(own, &args, begin_only ? &request : NULL);
    Py_END_ALLOW_THREADS
    if (status < 0) {
        ext_failed_raise(handle->buffer, status, EXT_UNKNOWN_ROWS);
        ext_failed_keep_values(handle->buffer, status, values, COUNT);
        Py_CLEAR(result);
    } else {
        Py_CLEAR(handle->given); /* used up: after an error a second try finds it again */
    }
    Py_DECREF(memory);
    if (result == NULL || !begin_only) return result;
    return ext_request_new(handle->buffer, request, result, (PyObject *)handle, values, COUNT);
}

/* What the call names itself goes first. values borrow their items from the tuple that is returned. */
PyObject *ext_combine_given(const ext_handle_t *handle, PyObject **values, const int at[3])
{
    if (handle->given == NULL || values[at[0]] != NULL) return NULL;
    for (int i = 0; i < 3; i++) {
        PyObject *item = PyTuple_GET_ITEM(handle->given, i);
        if (item != Py_None && values[at[i]] == NULL) values[at[i]] = item;
    }
    Py_INCREF(handle->given);
    return handle->given;
}

static PyObject *combine_by(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords, int begin_only)
{
    static const int at[3] = {X, TOPK_WEIGHTS, DTYPE};
    ext_handle_t *handle = (ext_handle_t *)self;
    PyObject *values[COUNT];
    if (ext_args_read(&signature, args, nargs, keywords, values) != 0) return ext_failed_refuse(handle->buffer);
    PyObject *given = ext_combine_given(handle, values, at);
    PyObject *result = bring_back(handle, values, begin_only);
    Py_XDECREF(given);
    return result;
}

static PyObject *combine(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    return combine_by(self, args, nargs, keywords, 0);
}

static PyObject *combine_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    return combine_by(self, args, nargs, keywords, 1);
}

PyMethodDef ext_combine_methods[] = {
    {"combine", EXT_KEYWORDS(combine), combine_doc},
    {"combine_async", EXT_KEYWORDS(combine_async), combine_async_doc},
    {NULL, NULL, 0, NULL},
};
