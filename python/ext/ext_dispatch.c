/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a dispatch is given becomes the struct of the library. The Handle is made before the call: what the library
 * counts while it runs (recv_rows_p) is written into it, by whatever thread makes progress.
 */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_failed.h"
#include "ext_params.h"
#include "ext_python.h"
#include "ext_request.h"

#define EXT_PARAMETERS                                                                                              \
    "($self, x, topk_idx=None, topk_weights=None, *, scales=None, cached=None, capacity=0, expert_alignment=1,\n"   \
    "dtype=None, quant=0, quant_scale=0.0, arrangement=None, scales_by_column=False, send_weights=False,\n"         \
    "in_place=False, counts_there=False, expert_stats=None, wait_ns=None, after=None, timeout=None, stream=None,\n" \
    "pieces=False, balance=False, payloads=None, will_expand=False)\n--\n\n"

static const char dispatch_doc[] =
    "dispatch" EXT_PARAMETERS
    "Sends every token to the ranks of its experts, returns when this rank's rows are here. Collective, blocking.\n\n"
    "x: [T, H] rows, an array of the buffer's memory, any element type; T may be 0 and differ between ranks.\n"
    "topk_idx: [T, K] int64 or int32: expert, or -1. topk_weights: [T, K] float32, or None.\n"
    "scales: [T, S] of any type but float64 (memory=\"cuda\": float32 or int32), any strides, moved untouched.\n"
    "payloads: a tuple of up to 8 arrays [T, B] of any types, which travel beside the rows: recv.payloads.\n"
    "cached: a handle whose routing is used again, instead of topk_idx and topk_weights; T as there.\n"
    "capacity: rows the received arrays have, whatever comes (num_worst_tokens); 0: the rows received.\n"
    "expert_alignment: received counts of experts are rounded up to a multiple.\n"
    "dtype: what the bits of x are, where it is of uint8 or uint16: \"e4m3\", \"bfloat16\", ...; it casts nothing.\n"
    "quant: a Quant, or its name in small letters (\"mxfp8\"): x is cast on its way.\n"
    "quant_scale: the scale of \"e4m3_static\"; of the whole tensor, with \"nvfp4\" (0: each row has its own).\n"
    "arrangement: \"rank\", \"compact\" or \"padded\" (by expert), or a member of Rows; None: the mode's own.\n"
    "scales_by_column, send_weights: mode ll: received scales by column; weights travel with the rows.\n"
    "in_place: rows are not copied between ranks that map one another: recv.row_addresses says where each is, and\n"
    "    recv.x is None (Buffer.send_memory(), Handle.gather()).\n"
    "counts_there: memory=\"cuda\", mode normal, with capacity: the call waits for nothing. recv.rows is capacity,\n"
    "    the counts are on the device, and src_begin[R] is how many rows came; what would be an error of this call\n"
    "    is an XepError (Status.ERR_PROTOCOL) of a later one. Mode ll is so in any case.\n"
    "pieces: of a buffer with pieces=True: rows that a slot has no room for come when the one before are done with\n"
    "    (Handle.pieces()). x, topk_weights, scales and payloads must not change until the last have come; the\n"
    "    handle keeps them.\n"
    "will_expand: Handle.expand() is next on the stream; memory=\"cuda\", mode normal: it begins while rows come.\n"
    "balance: of a buffer with balance: selections go to ranks by its rule; waits for all ranks to make the call.\n"
    "expert_stats: mode ll: [L] int32, to which the rows received for each local expert are added.\n"
    "wait_ns: [R] int64, to which the nanoseconds are added that this rank waited for each rank, as waits() has it.\n"
    "after: a request to begin after. timeout: seconds; None: the buffer's.\n"
    "stream: memory=\"cuda\": that of torch or cupy, or its address; None: torch's current one for tensors, else the\n"
    "    default stream. The call returns when the rows are counted; they are there in the order of the stream.\n\n"
    "Errors: BusyError (no free slot), CapacityError (``rows`` says how many were sent here; pieces), MismatchError,\n"
    "...: nothing was moved. DeadlineError, PeerError: the buffer needs reset().";

static const char dispatch_async_doc[] =
    "dispatch_async" EXT_PARAMETERS
    "As dispatch(), but returns once it is begun; wait() has the handle. Arrays must not be changed before.";

#undef EXT_PARAMETERS

enum {
    X,
    TOPK_IDX,
    TOPK_WEIGHTS,
    SCALES,
    CACHED,
    CAPACITY,
    EXPERT_ALIGNMENT,
    DTYPE,
    QUANT,
    QUANT_SCALE,
    ARRANGEMENT,
    SCALES_BY_COLUMN,
    SEND_WEIGHTS,
    IN_PLACE,
    COUNTS_THERE,
    EXPERT_STATS,
    WAIT_NS,
    AFTER,
    TIMEOUT,
    STREAM,
    PIECES,
    BALANCE,
    PAYLOADS,
    WILL_EXPAND,
    COUNT
};

_Static_assert(COUNT <= EXT_MOST_PARAMETERS, "no room for a name");
static ext_signature_t signature = {"dispatch", dispatch_doc, COUNT, 0, {NULL}};

/*
 * Checked here although the library does, too: these sentences name the arguments as Python has them. The handle is
 * borrowed: it may be released when the call has returned, and the library keeps its slot until the dispatch has begun.
 */
static int read_cached(const ext_buffer_t *buffer, PyObject *const *values, xep_dispatch_args_t *args)
{
    const ext_handle_t *cached = (const ext_handle_t *)values[CACHED];
    if (values[TOPK_IDX] != NULL || values[TOPK_WEIGHTS] != NULL) {
        PyErr_SetString(PyExc_ValueError, "topk_idx, topk_weights: expected None with cached, which has the routing");
        return -1;
    }
    if (!ext_handle_check(values[CACHED]) || cached->buffer != buffer) {
        PyErr_Format(PyExc_ValueError, "cached: expected a handle of this buffer, got %s",
                     ext_handle_check(values[CACHED]) ? "one of another" : Py_TYPE(values[CACHED])->tp_name);
        return -1;
    }
    if (cached->tokens != (Py_ssize_t)args->tokens) {
        PyErr_Format(PyExc_ValueError, "x: expected the %zd tokens of the cached dispatch, got %llu", cached->tokens,
                     (unsigned long long)args->tokens);
        return -1;
    }
    args->topk = (uint32_t)cached->topk;
    return 0;
}

/*
 * Comes last: what arguments are asked may run Python, which may close the buffer or release the handle. NULL: it has,
 * and an exception is set.
 */
static xep_buffer_t *take_own(const ext_buffer_t *buffer, PyObject *const *values, xep_dispatch_args_t *args)
{
    if (values[CACHED] != NULL && (args->cached = ext_handle_get((const ext_handle_t *)values[CACHED])) == NULL)
        return NULL;
    return ext_buffer_get(buffer);
}

/*
 * topk_idx may be int64 or int32, of any row stride: the library reads it where it is, nothing is converted. T is that
 * of x; K is what topk_idx has, and topk_weights, [T, K] float32 at a stride of their own, must have it, too.
 */
static int read_routing(ext_where_t where, PyObject *const *values, xep_dispatch_args_t *args)
{
    const Py_ssize_t tokens = (Py_ssize_t)args->tokens;
    ext_matrix_t matrix;
    if (values[TOPK_IDX] == NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "topk_idx: expected an array (or cached, a handle to route as before), got None");
        return -1;
    }
    if (ext_args_matrix("topk_idx", values[TOPK_IDX], where, tokens, EXT_ANY, EXT_INDEX_DTYPES, 0, &matrix) != 0)
        return -1;
    args->topk = (uint32_t)matrix.columns;
    args->topk_idx = matrix.data, args->topk_idx_stride = (size_t)matrix.stride, args->topk_idx_dtype = matrix.dtype;
    if (values[TOPK_WEIGHTS] == NULL) return 0;
    if (ext_args_matrix("topk_weights", values[TOPK_WEIGHTS], where, tokens, matrix.columns, EXT_BIT(XEP_FP32), 0,
                        &matrix))
        return -1;
    args->topk_weights = (const float *)(void *)matrix.data;
    args->topk_weights_stride = (size_t)matrix.stride;
    return 0;
}

/* [T, S] of any type. Any strides: scales by column, as some quantisers make them, are read in place. */
static int read_scales(ext_where_t where, PyObject *scales, xep_dispatch_args_t *args)
{
    ext_matrix_t matrix;
    if (scales == NULL) return 0;
    /* what numpy makes where nothing is said would be sent at twice its width */
    const unsigned dtypes = EXT_ALL_DTYPES & ~EXT_BIT(XEP_FP64);
    if (ext_args_strided("scales", scales, where, (Py_ssize_t)args->tokens, dtypes, &matrix) != 0) return -1;
    args->scales = matrix.data;
    args->nscales = (uint32_t)matrix.columns, args->scales_dtype = matrix.dtype;
    args->scales_token_stride = matrix.stride, args->scales_stride = matrix.step;
    return 0;
}

/** What payloads are, for the call and for those that are received. */
typedef struct payloads {
    xep_payload_t list[XEP_PAYLOADS_MOST];
    ext_element_t elements[XEP_PAYLOADS_MOST];
} payloads_t;

/* A tuple keeps its arrays, and whoever keeps the arguments of a call keeps it. */
static int read_payloads(ext_where_t where, PyObject *given, xep_dispatch_args_t *args, payloads_t *payloads)
{
    ext_matrix_t matrix;
    if (given == NULL) return 0;
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) > XEP_PAYLOADS_MOST) {
        PyErr_Format(PyExc_TypeError, "payloads: expected a tuple of at most %d arrays, got %R", XEP_PAYLOADS_MOST,
                     Py_TYPE(given));
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        if (ext_args_matrix("payloads", PyTuple_GET_ITEM(given, i), where, (Py_ssize_t)args->tokens, EXT_ANY,
                            EXT_ALL_DTYPES, 0, &matrix) != 0)
            return -1;
        const Py_ssize_t width = ext_dtype_size(matrix.dtype);
        payloads->elements[i] = matrix.element;
        payloads->list[i] = (xep_payload_t){.data = matrix.data,
                                            .stride = (size_t)matrix.stride,
                                            .bytes = (uint32_t)(matrix.columns * width),
                                            .alignment = (uint32_t)width};
    }
    args->payloads = payloads->list;
    args->npayloads = (uint32_t)PyTuple_GET_SIZE(given);
    return 0;
}

/*
 * What most calls leave out: each function leaves its field alone for a value that was not given. expert_stats, [L]
 * int32, are where the rows are; wait_ns, [R] int64, is in host memory in any case, as the host writes it.
 */
static int read_options(const ext_buffer_t *buffer, PyObject *const *values, xep_dispatch_args_t *args)
{
    if (read_scales(buffer->where, values[SCALES], args) != 0 ||
        ext_args_number("capacity", values[CAPACITY], INT64_MAX, &args->capacity) != 0 ||
        ext_args_number32("expert_alignment", values[EXPERT_ALIGNMENT], &args->expert_alignment) != 0 ||
        ext_args_word(EXT_QUANT, values[QUANT], &args->quant) != 0 ||
        ext_args_quant_scale(values[QUANT_SCALE], &args->quant_scale) != 0 ||
        ext_args_word(EXT_ARRANGEMENT, values[ARRANGEMENT], &args->arrangement) != 0 ||
        ext_args_flag(values[SCALES_BY_COLUMN], XEP_DISPATCH_SCALES_BY_COLUMN, &args->flags) != 0 ||
        ext_args_flag(values[SEND_WEIGHTS], XEP_DISPATCH_SEND_WEIGHTS, &args->flags) != 0 ||
        ext_args_flag(values[IN_PLACE], XEP_DISPATCH_IN_PLACE, &args->flags) != 0 ||
        ext_args_flag(values[COUNTS_THERE], XEP_DISPATCH_COUNTS_THERE, &args->flags) != 0 ||
        ext_args_flag(values[PIECES], XEP_DISPATCH_PIECES, &args->flags) != 0 ||
        ext_args_flag(values[BALANCE], XEP_DISPATCH_BALANCE, &args->flags) != 0 ||
        ext_args_flag(values[WILL_EXPAND], XEP_DISPATCH_WILL_EXPAND, &args->flags) != 0)
        return -1;
    if (ext_args_vector("expert_stats", values[EXPERT_STATS], buffer->where, (Py_ssize_t)buffer->local_experts,
                        XEP_INT32, &args->expert_stats) != 0 ||
        ext_args_vector("wait_ns", values[WAIT_NS], EXT_HOST, (Py_ssize_t)buffer->group->nranks, XEP_INT64,
                        &args->wait_ns) != 0)
        return -1;
    if (ext_request_read_after(values[AFTER], &args->after) != 0) return -1;
    return ext_args_timeout(values[TIMEOUT], &args->timeout_ms);
}

/*
 * x_p: of which the received rows are shown. x comes first: all other arrays are checked against its T, and its kind
 * says which stream is the current one. -1: an exception is set, and nothing has begun.
 */
static int fill_args(const ext_buffer_t *buffer, PyObject *const *values, xep_dispatch_args_t *args, ext_matrix_t *x_p,
                     payloads_t *payloads)
{
    PyObject *x = values[X] != NULL ? values[X] : Py_None;
    xep_dtype_t as = 0;
    if (ext_args_dtype("dtype", values[DTYPE], &as) != 0 ||
        ext_args_matrix("x", x, buffer->where, EXT_ANY, EXT_ANY, EXT_ALL_DTYPES, as, x_p) != 0 ||
        ext_args_said(x, x_p, as) != 0 || ext_args_fits(x, x_p, buffer->hidden, "dtype", buffer->dtype) != 0)
        return -1;
    args->tokens = (uint64_t)x_p->rows, args->hidden = (uint32_t)x_p->columns;
    args->x = x_p->data, args->x_stride = (size_t)x_p->stride, args->dtype = x_p->dtype;
    if ((values[CACHED] != NULL ? read_cached(buffer, values, args) : read_routing(buffer->where, values, args)) != 0)
        return -1;
    if (ext_args_stream(values[STREAM], &x_p->element, &args->stream) != 0 ||
        read_payloads(buffer->where, values[PAYLOADS], args, payloads) != 0)
        return -1;
    return read_options(buffer, values, args);
}

/* Also of a dispatch that is refused: that of another rank, which fails by that, has made room, too. */
static int make_room(ext_buffer_t *buffer, PyObject *const *values)
{
    if (values[CACHED] != NULL && ext_handle_check(values[CACHED]))
        ext_recent_use(&buffer->recent, (ext_handle_t *)values[CACHED]);
    return values[X] != NULL ? ext_park_make_room(buffer) : 0;
}

/*
 * The Handle's memory gets the slot by handle_p in the moment in which the library gives it, so whatever goes wrong
 * behind it, the end of that memory releases the slot. The Handle and sent are made before the call: where there
 * is no memory for them, that is still a refusal. With counts_there no count comes to the host, so recv_rows_p stays
 * NULL.
 *
 * Returns a new reference to the Handle, or to a Request. values are borrowed, and the GIL is given up: the caller's
 * frame holds them while a call waits, the Request once one has begun, and sent for as long as pieces are to come.
 */
static PyObject *dispatch_by(PyObject *self, PyObject *const *given, Py_ssize_t nargs, PyObject *keywords,
                             int begin_only)
{
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    xep_request_t *request = NULL;
    PyObject *values[COUNT];
    ext_matrix_t x;
    payloads_t payloads;
    xep_status_t status;
    if (ext_args_read(&signature, given, nargs, keywords, values) != 0) return ext_failed_refuse(buffer);
    if (make_room(buffer, values) != 0 || ext_request_begin(buffer) == NULL) return NULL;
    if (fill_args(buffer, values, &args, &x, &payloads) != 0) return ext_failed_refuse(buffer);
    ext_handle_t *handle = ext_handle_new(buffer, &x.element, x.rows, (Py_ssize_t)args.topk, x.columns);
    if (handle == NULL) return ext_failed_refuse(buffer);
    memcpy(handle->payloads, payloads.elements, args.npayloads * sizeof *handle->payloads);
    const int is_kept =
        (args.flags & XEP_DISPATCH_PIECES) == 0 || (handle->sent = ext_args_keep(NULL, values, COUNT)) != NULL;
    xep_buffer_t *own = is_kept ? take_own(buffer, values, &args) : NULL;
    if (own == NULL) {
        Py_DECREF(handle);
        return ext_failed_refuse(buffer);
    }
    xep_handle_t **handle_p = &handle->memory->handle;
    handle->counts_there = buffer->counts_there || (args.flags & XEP_DISPATCH_COUNTS_THERE) != 0;
    if (!handle->counts_there) args.recv_rows_p = &handle->rows; /* of one that goes on, the Request keeps the Handle */
    Py_BEGIN_ALLOW_THREADS
    status = lib.dispatch(own, &args, handle_p, begin_only ? &request : NULL);
    Py_END_ALLOW_THREADS
    if (status < 0) {
        if (!ext_plan_raise(buffer->plan)) ext_failed_raise(buffer, status, handle->rows);
        ext_failed_keep_values(buffer, status, values, COUNT);
        Py_DECREF(handle); /* which has no slot: handle_p is written on success only */
        return NULL;
    }
    ext_recent_add(&buffer->recent, handle);
    if (!begin_only) {
        ext_handle_came(handle);
        return (PyObject *)handle;
    }
    return ext_request_new(buffer, request, (PyObject *)handle, NULL, values, COUNT);
}

static PyObject *dispatch(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    return dispatch_by(self, args, nargs, keywords, 0);
}

static PyObject *dispatch_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    return dispatch_by(self, args, nargs, keywords, 1);
}

PyMethodDef ext_dispatch_methods[] = {
    {"dispatch", EXT_KEYWORDS(dispatch), dispatch_doc},
    {"dispatch_async", EXT_KEYWORDS(dispatch_async), dispatch_async_doc},
    {NULL, NULL, 0, NULL},
};
