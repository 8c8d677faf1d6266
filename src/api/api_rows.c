/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The calls on received rows: gather, expand and reduce. They check what the user passed. gather copies the rows here;
 * the buffer's mode does the other two.
 */
#include <string.h>

#include "api_check.h"
#include "error.h"
#include "packed_payloads.h"
#include "request.h"

/* Counts are not enough: the rows must be there. */
static xep_status_t check_ready(const xep_handle_t *handle)
{
    if (handle->state == XEP_HANDLE_READY && !handle->released) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid handle: it has no rows (in flight, failed or released)");
}

/* ---- gather ---- */

/* An array of rows from wherever they are. bytes: of a row; stride: from row to row of out. */
typedef struct gather {
    const xep_recv_t *recv;
    char *out;
    size_t bytes, stride;
    uint64_t rows;
} gather_t;

/* Each thread of the team copies a part of its own. Of a row that did not come, what is in out stays. */
static void gather_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const gather_t *gather = arg;
    const xep_recv_t *recv = gather->recv;
    uint64_t begin = gather->rows * thread / nthreads, end = gather->rows * (thread + 1) / nthreads;
    for (uint64_t i = begin; i < end; i++) {
        const void *row = recv->row != NULL ? recv->row[i] : (const char *)recv->x + i * recv->x_stride;
        if (row != NULL) memcpy(gather->out + i * gather->stride, row, gather->bytes);
    }
}

/* Padded rows have a place for each row of the capacity. */
static xep_status_t gather_all(const xep_handle_t *handle, void *out, size_t stride)
{
    const xep_recv_t *recv = &handle->recv;
    const int padded = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    gather_t gather = {.recv = recv,
                       .out = out,
                       .bytes = recv->hidden * xep_dtype_size(recv->dtype),
                       .stride = stride,
                       .rows = padded ? recv->capacity : recv->rows};
    xep_status_t status = check_ready(handle);
    if (status != XEP_OK) return status;
    if (handle->buffer->device != NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "rows in device memory are not gathered: they are in x");
    if (padded && recv->row == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "padded rows are not gathered: they are in x");
    status = gather.rows == 0 ? XEP_OK : xep_check_gather_memory(handle, out);
    if (status != XEP_OK) return status;
    if (stride == 0) gather.stride = gather.bytes;
    if (gather.stride < gather.bytes)
        return xep_fail(XEP_ERR_INVALID, "invalid stride: %zu bytes (at least the %zu of a row)", gather.stride,
                        gather.bytes);
    xep_team_run(handle->buffer->team, gather_rows, &gather);
    return XEP_OK;
}

/* Enters the buffer, as its team has one caller at a time. */
xep_status_t xep_handle_gather(const xep_handle_t *handle, void *out, size_t stride)
{
    xep_status_t status = xep_require_handle(handle);
    if (status != XEP_OK) return status;
    if (out == NULL) return xep_fail(XEP_ERR_INVALID, "out is NULL");
    if ((status = xep_buffer_claim(handle->buffer)) != XEP_OK) return status;
    status = gather_all(handle, out, stride);
    xep_buffer_leave(handle->buffer);
    return status;
}

/* ---- by expert ---- */

/* Rows of a device, one for each token. */
static xep_status_t check_handle(const xep_handle_t *handle, int is_there)
{
    xep_status_t status = check_ready(handle);
    if (status != XEP_OK) return status;
    if (handle->buffer->device == NULL || handle->buffer->staging != NULL || !is_there)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "rows of %s are not arranged by expert (mode normal in device memory, where "
                        "all ranks map one another)",
                        handle->buffer->device == NULL ? "host memory" : "this buffer");
    return XEP_OK;
}

/* What both calls begin with. is_there: whether the mode has the call. */
static xep_status_t read_args(const xep_handle_t *handle, int is_there, const void *args, void *own, size_t bytes)
{
    xep_status_t status = xep_buffer_usable(handle->buffer);
    if (status == XEP_OK) status = xep_check_struct("args", args, own, bytes);
    return status == XEP_OK ? check_handle(handle, is_there) : status;
}

/* ---- expand ---- */

/* Of words of 4 bytes, which kernels load whole. */
static xep_status_t check_scales(const xep_expand_args_t *a)
{
    if (a->scales_stride % 4 == 0 && a->scales_token_stride % 4 == 0) return xep_check_array("scales", a->scales, 0, 4);
    return xep_fail(XEP_ERR_INVALID, "invalid scales_stride: %td, scales_token_stride: %td (multiples of 4)",
                    a->scales_stride, a->scales_token_stride);
}

/* What is not given is left out; what was not received cannot be given. */
static xep_status_t check_arrays(const xep_recv_t *recv, const xep_expand_args_t *a)
{
    if (a->topk_weights != NULL && recv->topk_weights == NULL)
        return xep_fail(XEP_ERR_INVALID, "topk_weights must be NULL: none were received");
    if (a->scales != NULL && recv->scales == NULL)
        return xep_fail(XEP_ERR_INVALID, "scales must be NULL: none were received");
    const uint32_t experts = recv->local_experts;
    xep_status_t status = xep_check_array("slots", a->slots, recv->capacity, sizeof *a->slots);
    if (status == XEP_OK) status = xep_check_array("expert_begin", a->expert_begin, experts, sizeof *a->expert_begin);
    if (status == XEP_OK) status = xep_check_array("expert_count", a->expert_count, experts, sizeof *a->expert_count);
    if (status == XEP_OK) status = xep_check_array("topk_weights", a->topk_weights, 0, sizeof *a->topk_weights);
    return status == XEP_OK ? check_scales(a) : status;
}

static xep_status_t check_expand(const xep_recv_t *recv, xep_expand_args_t *a)
{
    const size_t row = recv->hidden * xep_dtype_size(recv->dtype);
    if (a->expert_alignment == 0) a->expert_alignment = 1;
    if (a->scales_stride == 0) a->scales_stride = 4;
    if (a->scales_token_stride == 0) a->scales_token_stride = (ptrdiff_t)recv->nscales * 4;
    if ((a->flags & ~(uint32_t)XEP_EXPAND_ZERO) != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid flags: %#x (XEP_EXPAND_ZERO)", a->flags);
    if (a->capacity > INT32_MAX)
        return xep_fail(XEP_ERR_INVALID, "invalid capacity: %llu (0 to %d)", (unsigned long long)a->capacity,
                        INT32_MAX);
    xep_status_t status = xep_check_matrix("x", a->x, &a->x_stride, 0, row, 1);
    return status == XEP_OK ? check_arrays(recv, a) : status;
}

static xep_status_t expand(const xep_handle_t *handle, const xep_expand_args_t *args)
{
    const xep_plugin_t *plugin = handle->buffer->plugin.plugin;
    xep_expand_args_t own;
    xep_status_t status = read_args(handle, plugin->expand != NULL, args, &own, sizeof own);
    if (status == XEP_OK) status = check_expand(xep_packed_recv(handle), &own);
    return status == XEP_OK ? plugin->expand(handle->buffer->mode, xep_packed_recv(handle), &own) : status;
}

xep_status_t xep_handle_expand(const xep_handle_t *handle, const xep_expand_args_t *args)
{
    xep_status_t status = xep_require_handle(handle);
    if (status != XEP_OK || (status = xep_buffer_claim(handle->buffer)) != XEP_OK) return status;
    status = expand(handle, args);
    xep_buffer_leave(handle->buffer);
    return status;
}

/* ---- reduce ---- */

static xep_status_t check_types(const xep_handle_t *handle, xep_reduce_args_t *a)
{
    if (a->reserved != 0) return xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", a->reserved);
    if (a->dtype == XEP_DTYPE_DEFAULT) a->dtype = handle->buffer->params.combine_dtype;
    if (a->out_dtype == XEP_DTYPE_DEFAULT) a->out_dtype = a->dtype;
    if (a->hidden == 0) a->hidden = handle->buffer->shape.hidden;
    if (a->dtype != XEP_BF16 && a->dtype != XEP_FP16 && a->dtype != XEP_FP32)
        return xep_fail(XEP_ERR_INVALID, "invalid dtype: %d (XEP_BF16, XEP_FP16, XEP_FP32)", (int)a->dtype);
    if (a->out_dtype != a->dtype && a->out_dtype != XEP_FP32)
        return xep_fail(XEP_ERR_INVALID, "invalid out_dtype: %d (that of x, %d, or XEP_FP32)", (int)a->out_dtype,
                        (int)a->dtype);
    if ((a->topk_weights == NULL) != (a->out_weights == NULL))
        return xep_fail(XEP_ERR_INVALID, "%s is NULL, the other of topk_weights and out_weights is not",
                        a->topk_weights == NULL ? "topk_weights" : "out_weights");
    return XEP_OK;
}

static xep_status_t check_reduce(const xep_handle_t *handle, xep_reduce_args_t *a)
{
    xep_status_t status = check_types(handle, a);
    if (status != XEP_OK) return status;
    const uint64_t rows = handle->recv.rows;
    const size_t element = xep_dtype_size(a->dtype), out_element = xep_dtype_size(a->out_dtype);
    status = xep_check_array("slots", a->slots, rows, sizeof *a->slots);
    if (status == XEP_OK) status = xep_check_matrix("x", a->x, &a->x_stride, rows, a->hidden * element, element);
    if (status == XEP_OK)
        status = xep_check_matrix("out", a->out, &a->out_stride, rows, a->hidden * out_element, out_element);
    if (status == XEP_OK) status = xep_check_array("topk_weights", a->topk_weights, 0, sizeof *a->topk_weights);
    return status == XEP_OK ? xep_check_array("out_weights", a->out_weights, 0, sizeof *a->out_weights) : status;
}

static xep_status_t reduce(const xep_handle_t *handle, const xep_reduce_args_t *args)
{
    const xep_plugin_t *plugin = handle->buffer->plugin.plugin;
    xep_reduce_args_t own;
    xep_status_t status = read_args(handle, plugin->reduce != NULL, args, &own, sizeof own);
    if (status == XEP_OK) status = check_reduce(handle, &own);
    return status == XEP_OK ? plugin->reduce(handle->buffer->mode, &handle->recv, &own) : status;
}

xep_status_t xep_handle_reduce(const xep_handle_t *handle, const xep_reduce_args_t *args)
{
    xep_status_t status = xep_require_handle(handle);
    if (status != XEP_OK || (status = xep_buffer_claim(handle->buffer)) != XEP_OK) return status;
    status = reduce(handle, args);
    xep_buffer_leave(handle->buffer);
    return status;
}
