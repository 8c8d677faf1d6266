/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Arrays over the rows of a slot. Rows are views; counts are copies, since they lie in the mode's own memory, which no
 * array keeps alive. Counts in device memory are views, too: they are of the slot, and may not be there yet when they
 * are asked for.
 */
#include "ext_arrays.h"
#include "ext_received.h"

#include <stddef.h>

/*
 * stride: bytes from row to row. Padded rows, [L, N / L, columns], have an extent for the experts, all with the same
 * room, so what rows says is not asked; else [rows, columns].
 */
void ext_received_shape(const xep_recv_t *recv, uint64_t rows, size_t columns, ptrdiff_t stride, ext_array_t *look_p)
{
    const Py_ssize_t step = ext_dtype_size(look_p->element.dtype), experts = (Py_ssize_t)recv->local_experts;
    if (recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED && experts > 0) {
        const Py_ssize_t each = (Py_ssize_t)recv->capacity / experts;
        const Py_ssize_t shape[3] = {experts, each, (Py_ssize_t)columns}, strides[3] = {each * stride, stride, step};
        look_p->ndim = 3;
        memcpy(look_p->shape, shape, sizeof shape);
        memcpy(look_p->strides, strides, sizeof strides);
    } else {
        look_p->ndim = 2;
        look_p->shape[0] = (Py_ssize_t)rows, look_p->shape[1] = (Py_ssize_t)columns;
        look_p->strides[0] = stride, look_p->strides[1] = step;
    }
}

/* The library's words of a row: its element type, and how many. */
static void shape_words(const xep_recv_t *recv, void *data, xep_dtype_t dtype, size_t columns, ext_array_t *look)
{
    look->data = data;
    look->element.dtype = dtype;
    ext_received_shape(recv, recv->capacity, columns, (ptrdiff_t)columns * ext_dtype_size(dtype), look);
}

/* Elements are shown as they were sent where nothing has changed them: a numpy array of ml_dtypes comes back as one. */
static void shape_x(const ext_received_t *received, ext_array_t *look)
{
    const xep_recv_t *recv = &received->recv;
    const ext_element_t *sent = &received->handle->element;
    look->data = recv->x;
    look->element.dtype = recv->dtype;
    ext_received_shape(recv, recv->capacity, recv->hidden, (ptrdiff_t)recv->x_stride, look);
    if (recv->quant == XEP_QUANT_NONE && sent->kind == received->kind) look->element = *sent;
}

/* The library's own strides instead of those of dense words: by column they are the other way round. */
static void shape_scales(const xep_recv_t *recv, ext_array_t *look)
{
    shape_words(recv, recv->scales, recv->scales_dtype, recv->nscales, look);
    look->strides[look->ndim - 2] = recv->scales_token_stride;
    look->strides[look->ndim - 1] = recv->scales_stride;
}

/* One word for each row. */
static void shape_vector(const xep_recv_t *recv, const void *data, xep_dtype_t dtype, ext_array_t *look)
{
    look->data = (char *)(uintptr_t)data;
    look->element.dtype = dtype;
    look->ndim = 1;
    look->shape[0] = (Py_ssize_t)recv->capacity, look->strides[0] = ext_dtype_size(dtype);
}

/* Of capacity rows, which is what was asked for, or else the rows that came. */
static PyObject *make_view(const ext_received_t *received, int which)
{
    const xep_recv_t *recv = &received->recv;
    ext_array_t look = {.element = {.kind = received->kind, .where = received->handle->buffer->where}};
    switch (which) {
    case EXT_X: shape_x(received, &look); break;
    case EXT_TOPK_IDX: shape_words(recv, recv->topk_idx, recv->topk_idx_dtype, recv->topk, &look); break;
    case EXT_TOPK_WEIGHTS: shape_words(recv, recv->topk_weights, XEP_FP32, recv->topk, &look); break;
    case EXT_SCALES: shape_scales(recv, &look); break;
    case EXT_ROW: shape_vector(recv, recv->row, XEP_INT64, &look); break;
    default: shape_vector(recv, recv->src_token, XEP_INT32, &look);
    }
    return ext_array_view(&look, (PyObject *)received->handle->memory);
}

/* Counts: where they are in the struct, and their extents. */
typedef enum { NO_EXTENT, LOCAL, RANKS, RANKS_AND_ONE } extent_t;

static const struct {
    size_t offset;
    xep_dtype_t dtype;
    extent_t extents[2];
} counts[EXT_COUNTS] = {
    {offsetof(xep_recv_t, src_begin), XEP_INT64, {RANKS_AND_ONE}},
    {offsetof(xep_recv_t, rank_rows), XEP_INT32, {RANKS, RANKS}},
    {offsetof(xep_recv_t, expert_rows), XEP_INT64, {LOCAL}},
    {offsetof(xep_recv_t, expert_begin), XEP_INT64, {LOCAL}},
    {offsetof(xep_recv_t, expert_count), XEP_INT64, {LOCAL}},
    {offsetof(xep_recv_t, pair_begin), XEP_INT32, {LOCAL, RANKS}},
    {offsetof(xep_recv_t, pair_count), XEP_INT32, {LOCAL, RANKS}},
    {offsetof(xep_recv_t, out), XEP_U8, {RANKS}},
};

static Py_ssize_t extent_of(const ext_received_t *received, extent_t extent)
{
    const Py_ssize_t nranks = received->handle->nranks;
    return extent == LOCAL ? (Py_ssize_t)received->recv.local_experts : extent == RANKS ? nranks : nranks + 1;
}

/* Copied as bytes: the fields are pointers to different types. */
static const char *address_at(const ext_received_t *received, size_t offset)
{
    const char *address;
    memcpy(&address, (const char *)&received->recv + offset, sizeof address);
    return address;
}

/* Where the counts are, and their extents; dense. Returns how many bytes they are. */
static Py_ssize_t shape_counts(const ext_received_t *received, int which, ext_array_t *look)
{
    Py_ssize_t bytes = ext_dtype_size(counts[which].dtype);
    look->ndim = counts[which].extents[1] == NO_EXTENT ? 1 : 2;
    for (int i = look->ndim; i-- > 0;) {
        look->shape[i] = extent_of(received, counts[which].extents[i]);
        look->strides[i] = bytes;
        bytes *= look->shape[i];
    }
    look->data = (char *)(uintptr_t)address_at(received, counts[which].offset);
    return bytes;
}

/*
 * In the kind of array that was asked for. Before the rows are counted there is no Received at all, so the counts are
 * there. In host memory a DeviceArray has nothing to show them as but numpy's arrays.
 */
static PyObject *make_counts(const ext_received_t *received, int which)
{
    const ext_buffer_t *buffer = received->handle->buffer;
    ext_array_t look = {.element = {.kind = received->kind, .dtype = counts[which].dtype}};
    const Py_ssize_t bytes = shape_counts(received, which, &look);
    if (received->handle->counts_there) {
        look.element.where = buffer->where;
        return ext_array_view(&look, (PyObject *)received->handle->memory);
    }
    if (look.element.kind == EXT_DEVICE) look.element.kind = EXT_NUMPY;
    char *data;
    PyObject *array = ext_array_new(&look.element, look.ndim, look.shape, &data);
    if (array != NULL && bytes > 0) memcpy(data, look.data, (size_t)bytes);
    return array;
}

PyObject *ext_received_array(const ext_received_t *received, int which)
{
    return which < EXT_VIEWS ? make_view(received, which) : make_counts(received, which - EXT_VIEWS);
}

PyObject *ext_received_payload(const ext_received_t *received, uint32_t i)
{
    const xep_recv_t *recv = &received->recv;
    const xep_payload_t *payload = &recv->payloads[i];
    const ext_element_t *sent = &received->handle->payloads[i];
    ext_array_t look = {.element = {.kind = received->kind,
                                    .dtype = sent->dtype,
                                    .where = received->handle->buffer->where},
                        .data = payload->data};
    if (sent->kind == received->kind) look.element = *sent;
    ext_received_shape(recv, recv->capacity, payload->bytes / (size_t)ext_dtype_size(look.element.dtype),
                       (ptrdiff_t)payload->stride, &look);
    return ext_array_view(&look, (PyObject *)received->handle->memory);
}

/*
 * A rank without experts has arrays of no elements, and the library may give NULL for these: they are empty, not
 * absent.
 */
int ext_received_lacks(const ext_received_t *received, int which)
{
    const xep_recv_t *recv = &received->recv;
    if (which == EXT_X) return recv->row != NULL;
    if (which == EXT_ROW) return recv->row == NULL;
    if (which == EXT_TOPK_WEIGHTS) return recv->topk_weights == NULL;
    if (which == EXT_SCALES) return recv->scales == NULL;
    if (which < EXT_VIEWS || address_at(received, counts[which - EXT_VIEWS].offset) != NULL) return 0;
    return counts[which - EXT_VIEWS].extents[0] != LOCAL || recv->local_experts > 0;
}
