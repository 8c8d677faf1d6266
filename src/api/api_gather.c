/* SPDX-License-Identifier: BSD-3-Clause */

/* xep_handle_gather(): received rows as one array. */

#include <string.h>

#include "api_check.h"
#include "error.h"
#include "handle.h"

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

/* Counts are not enough: the rows must be there. Padded rows have a place for each row of the capacity. */
static xep_status_t gather_all(const xep_handle_t *handle, void *out, size_t stride)
{
    const xep_recv_t *recv = &handle->recv;
    const int padded = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    gather_t gather = {.recv = recv,
                       .out = out,
                       .bytes = recv->hidden * xep_dtype_size(recv->dtype),
                       .stride = stride,
                       .rows = padded ? recv->capacity : recv->rows};
    if (handle->state != XEP_HANDLE_READY || handle->released)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: it has no rows (in flight, failed or released)");
    if (handle->buffer->device != NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "rows in device memory are not gathered: they are in x");
    if (padded && recv->row == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "padded rows are not gathered: they are in x");
    xep_status_t status = gather.rows == 0 ? XEP_OK : xep_check_gather_memory(handle, out);
    if (status != XEP_OK) return status;
    if (stride == 0) gather.stride = gather.bytes;
    if (gather.stride < gather.bytes)
        return xep_fail(XEP_ERR_INVALID, "invalid stride: %zu bytes (at least the %zu of a row)", stride, gather.bytes);
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
