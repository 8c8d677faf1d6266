/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that are sent lie in memory of the whole buffer, so an array over them keeps the buffer open and no slot. Those
 * that are received lie at addresses, in the memory of other ranks or of this one, until the handle is released.
 */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_arrays.h"
#include "ext_python.h"
#include "ext_received.h"
#include "ext_request.h"

/* ---- before a dispatch ---- */

static const char send_memory_doc[] =
    "send_memory($self, dtype=None, torch=False)\n--\n\n"
    "[T, H]: memory for the rows of this rank's next dispatch with in_place, as an array of numpy or, with torch, a\n"
    "tensor; T and H are those of the buffer, dtype is its own unless one is given. Dispatch these rows, or the first\n"
    "of them: x[:n, :h]. As in Handle.combine_input(), bits of bfloat16 refuse floats.\n\n"
    "Blocks until peers have released the handles, and the arrays, of an earlier dispatch whose rows were there.\n"
    "Rows must not change after their dispatch until this memory is returned again: ask before each dispatch.\n\n"
    "UnsupportedError: the buffer was made without send_memory=True. DeadlineError: peers keep handles.";

enum { DTYPE, TORCH, SEND_COUNT };

/*
 * [T, H] of the buffer, at the stride that the library has for rows: an element type so wide that a row would reach
 * into the next one is refused. -1: ValueError.
 */
static int shape_rows(const ext_buffer_t *buffer, char *data, size_t stride, ext_array_t *look)
{
    const Py_ssize_t bytes = ext_dtype_size(look->element.dtype);
    if ((size_t)buffer->hidden * (size_t)bytes > stride) {
        PyErr_Format(PyExc_ValueError, "dtype: expected one of at most the buffer's %zd bytes, got one of %zd",
                     ext_dtype_size(buffer->dtype), bytes);
        return -1;
    }
    look->data = data;
    look->ndim = 2;
    look->shape[0] = (Py_ssize_t)buffer->tokens, look->shape[1] = (Py_ssize_t)buffer->hidden;
    look->strides[0] = (Py_ssize_t)stride, look->strides[1] = bytes;
    return 0;
}

/*
 * A new array. Waits for peers, so the GIL is given up. What keeps the buffer open is had before, as memory() has it.
 * This is no operation of all ranks, so none of its errors is counted as a call that this rank refused.
 */
static PyObject *send_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static ext_signature_t signature = {"send_memory", send_memory_doc, SEND_COUNT, 0, {NULL}};
    ext_buffer_t *buffer = (ext_buffer_t *)self;
    ext_array_t look = {.element = {.kind = EXT_NUMPY, .dtype = buffer->dtype}};
    PyObject *values[SEND_COUNT];
    uint32_t torch = 0;
    void *base = NULL;
    size_t stride = 0;
    xep_status_t status;
    if (ext_args_read(&signature, args, nargs, names, values) != 0 ||
        ext_args_element("dtype", values[DTYPE], &look.element) != 0 || ext_args_flag(values[TORCH], 1, &torch) != 0 ||
        (torch && ext_tensor_kind(&look.element.kind) != 0))
        return NULL;
    xep_buffer_t *own = ext_request_begin(buffer);
    PyObject *memory = own != NULL ? ext_slots_whole(&buffer->slots, self) : NULL;
    if (memory == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.buffer_send_memory(own, &base, &stride);
    Py_END_ALLOW_THREADS
    PyObject *view = NULL;
    if (status < 0) ext_raise(status);
    else if (shape_rows(buffer, base, stride, &look) == 0) view = ext_array_view_to_write(&look, memory);
    Py_DECREF(memory);
    return view;
}

/* ---- before a combine ---- */

static const char combine_input_doc[] =
    "combine_input($self, dtype=None)\n--\n\n"
    "[rows, H] of the buffer's combine type, or of dtype: expert outputs written here need no copy; then combine()\n"
    "without x. bfloat16 is uint16 bits in numpy, and floats are refused (to_bfloat16()), where the rows that were\n"
    "dispatched are none of package ml_dtypes; dtype=ml_dtypes.bfloat16 takes floats.\n\n"
    "Waits until peers have read what an earlier combine left there. Ask again before writing again.";

enum { INPUT_DTYPE, INPUT_COUNT };

/*
 * Waits for peers, so the GIL is given up; meanwhile another thread may release the handle, and the reference to its
 * memory keeps the slot until the view has one of its own.
 */
static PyObject *combine_input(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static ext_signature_t signature = {"combine_input", combine_input_doc, INPUT_COUNT, 0, {NULL}};
    ext_handle_t *handle = (ext_handle_t *)self;
    ext_array_t look = {.element = {.kind = handle->element.kind,
                                    .dtype = handle->buffer->combine_dtype,
                                    .where = handle->buffer->where}};
    PyObject *values[INPUT_COUNT];
    void *base = NULL;
    size_t stride = 0;
    xep_status_t status;
    if (ext_args_read(&signature, args, nargs, names, values) != 0 ||
        ext_args_element("dtype", values[INPUT_DTYPE], &look.element) != 0)
        return NULL;
    xep_handle_t *own = ext_handle_get(handle);
    if (own == NULL) return NULL;
    PyObject *memory = (PyObject *)handle->memory;
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    status = lib.handle_combine_input(own, &base, &stride);
    Py_END_ALLOW_THREADS
    const xep_recv_t *recv;
    PyObject *view = NULL;
    if (status == XEP_OK) status = lib.handle_recv(own, &recv);
    if (status != XEP_OK) {
        ext_raise(status);
    } else {
        look.data = base;
        ext_received_shape(recv, recv->rows, (size_t)handle->hidden, (ptrdiff_t)stride, &look);
        view = ext_array_view_to_write(&look, memory);
        handle->input = look.element; /* of the combine that follows */
    }
    Py_DECREF(memory);
    return view;
}

/* ---- after a dispatch ---- */

static const char gather_doc[] =
    "gather($self, out=None)\n--\n\n"
    "The received rows, wherever they are, as a dense array of its own, [rows, H], of the kind that was dispatched;\n"
    "padded ones that are read in place: [N, H]. Rows that did not come are left as they are there.\n"
    "out: an array of that shape and type into which they go instead. The buffer's threads copy. Local.";

/* Rows at so many addresses are of no use to numpy or torch; a kernel that reads them in place needs none of this. */
enum { OUT, GATHER_COUNT };

/*
 * Takes array over: returns it filled, or drops it and sets an exception. stride: bytes between its rows; 0: dense. The
 * memory of the handle is kept: another thread may release it meanwhile.
 */
static PyObject *gather_into(const ext_handle_t *handle, PyObject *array, char *data, size_t stride)
{
    xep_handle_t *own = ext_handle_get(handle); /* to ask an array for its memory may have released it */
    ext_memory_t *memory = handle->memory;
    xep_status_t status;
    if (own == NULL) {
        Py_DECREF(array);
        return NULL;
    }
    Py_INCREF(memory);
    Py_BEGIN_ALLOW_THREADS
    status = lib.handle_gather(own, data, stride);
    Py_END_ALLOW_THREADS
    Py_DECREF(memory);
    if (status >= 0) return array;
    Py_DECREF(array);
    return ext_raise(status);
}

/*
 * A new reference, to out or to a new array in host memory: from that of a device the library gathers nothing. Nothing
 * is copied where there is nothing: the library wants an address also of no bytes.
 */
static PyObject *gather(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static ext_signature_t signature = {"gather", gather_doc, GATHER_COUNT, 0, {NULL}};
    const ext_handle_t *handle = (const ext_handle_t *)self;
    PyObject *values[GATHER_COUNT];
    ext_matrix_t matrix;
    if (ext_args_read(&signature, args, nargs, names, values) != 0) return NULL;
    const xep_recv_t *recv = ext_handle_recv(handle);
    if (recv == NULL) return NULL;
    const int padded = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED && recv->row != NULL;
    const Py_ssize_t shape[2] = {(Py_ssize_t)(padded ? recv->capacity : recv->rows), (Py_ssize_t)recv->hidden};
    if (values[OUT] != NULL) {
        if (ext_args_output("out", values[OUT], EXT_HOST, shape[0], shape[1], recv->dtype, &matrix) != 0) return NULL;
        Py_INCREF(values[OUT]);
        return recv->rows == 0 ? values[OUT] : gather_into(handle, values[OUT], matrix.data, (size_t)matrix.stride);
    }
    ext_element_t element = handle->element;
    element.dtype = recv->dtype, element.where = EXT_HOST;
    char *data = NULL;
    PyObject *array = ext_array_new(&element, 2, shape, &data);
    return array == NULL || recv->rows == 0 ? array : gather_into(handle, array, data, 0);
}

PyMethodDef ext_in_place_buffer_methods[] = {
    {"send_memory", EXT_KEYWORDS(send_memory), send_memory_doc},
    {NULL, NULL, 0, NULL},
};

PyMethodDef ext_in_place_handle_methods[] = {
    {"combine_input", EXT_KEYWORDS(combine_input), combine_input_doc},
    {"gather", EXT_KEYWORDS(gather), gather_doc},
    {NULL, NULL, 0, NULL},
};
