/* SPDX-License-Identifier: BSD-3-Clause */

/* The input of an operation on its way to the host. Arguments are refused before anything is enqueued. */
#include "staging.h"

#include <inttypes.h>
#include <string.h>

#include "packed_payloads.h"
#include "request.h"
#include "staging_slots.h"

/* ---- what both kinds do ---- */

static xep_status_t check_matrices(const xep_buffer_t *buffer, const staged_matrix_t *matrices, size_t count)
{
    xep_status_t status = XEP_OK;
    for (const staged_matrix_t *m = matrices; m < matrices + count && status == XEP_OK; m++)
        status = xep_staging_check(buffer, m->name, m->from, m->rows);
    return status;
}

/*
 * Puts the stream behind all operations that have ended, on whatever streams: from then on the slot's memory is free.
 */
static xep_status_t begin_on(const xep_buffer_t *buffer, void *stream)
{
    xep_device_t *device = &buffer->staging->to->device;
    xep_status_t status = xep_staging_check_stream(buffer, stream);
    return status == XEP_OK ? device->ops->after_mark(device, stream) : status;
}

/*
 * At most as many as there are rows, and at least one if there are any: the note of the last part says that all is
 * here.
 */
static uint32_t count_parts(const staged_matrix_t *rows)
{
    const uint64_t parts = rows->rows * rows->bytes / STAGED_PART_BYTES;
    const uint64_t most = rows->rows < STAGED_PARTS ? rows->rows : STAGED_PARTS;
    return (uint32_t)(parts > most ? most : parts == 0 ? most != 0 : parts);
}

static xep_status_t copy_part(const xep_buffer_t *buffer, const staged_matrix_t *rows, uint64_t begin, uint64_t end,
                              void *stream)
{
    staged_matrix_t part = *rows;
    part.from = (const char *)rows->from + begin * rows->from_stride;
    part.to = (char *)rows->to + begin * rows->to_stride;
    part.rows = end - begin;
    return xep_staging_copy(buffer, &part, 1, stream);
}

/*
 * Copies the rows of an operation, and what is needed only with the last of them, in parts that the mode does not wait
 * for. The mark comes after them: however the operation ends, the slot is not used again before they are there.
 */
static xep_status_t take_in_parts(xep_request_t *req, const staged_matrix_t *rows, const staged_matrix_t *behind,
                                  size_t count, void *stream)
{
    xep_buffer_t *buffer = req->buffer;
    xep_heap_device_t *device = buffer->staging->to;
    staged_slot_t *slot = &buffer->staging->slots[req->op.slot];
    xep_status_t status = XEP_OK;
    slot->coming = rows->rows;
    slot->parts = count_parts(rows);
    slot->parts_here = 0;
    req->op.coming = rows->rows;
    if (slot->parts == 0) status = xep_staging_copy(buffer, behind, count, stream);
    /* before the rows: the call waits for what was enqueued up to here, not for the rows */
    if (status == XEP_OK) status = xep_staging_note(buffer, stream);
    for (uint32_t i = 0; i < slot->parts && status == XEP_OK; i++) {
        status = copy_part(buffer, rows, staged_part_begin(slot, i), staged_part_begin(slot, i + 1), stream);
        if (status == XEP_OK && i + 1 == slot->parts) status = xep_staging_copy(buffer, behind, count, stream);
        if (status == XEP_OK) status = device->ops->note(device, staged_note(req->op.slot, i), stream);
    }
    return status == XEP_OK ? device->device.ops->mark(&device->device, stream) : status;
}

/* Of a padded input most rows are empty. */
static xep_status_t take_whole(const xep_request_t *req, const staged_matrix_t *rows, void *stream)
{
    const xep_recv_t *recv = &req->handle->recv;
    xep_status_t status = XEP_OK;
    if (req->op.kind == XEP_OP_DISPATCH || recv->arrangement != XEP_ROWS_BY_EXPERT_PADDED)
        return xep_staging_copy(req->buffer, rows, 1, stream);
    for (uint32_t e = 0; e < recv->local_experts && status == XEP_OK; e++)
        status =
            copy_part(req->buffer, rows, recv->expert_begin[e], recv->expert_begin[e] + recv->expert_count[e], stream);
    return status;
}

/* Takes the rows last. behind is needed only when all rows are there. */
static xep_status_t take_rows(xep_request_t *req, const staged_matrix_t *rows, const staged_matrix_t *behind,
                              size_t count, void *stream)
{
    const int is_padded = req->op.kind == XEP_OP_COMBINE && req->handle->recv.arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    if (req->buffer->plugin.plugin->begins_early && !is_padded) return take_in_parts(req, rows, behind, count, stream);
    xep_status_t status = take_whole(req, rows, stream);
    if (status == XEP_OK) status = xep_staging_copy(req->buffer, behind, count, stream);
    return status == XEP_OK ? xep_staging_note(req->buffer, stream) : status;
}

/* Rows stay where they are: the call waits until they are there, which a kernel or UCX will read. */
static xep_status_t leave_rows(const xep_request_t *req, void *stream)
{
    staged_slot_t *slot = &req->buffer->staging->slots[req->op.slot];
    slot->coming = slot->parts = slot->parts_here = 0;
    return xep_staging_note(req->buffer, stream);
}

/* ---- dispatch ---- */

/*
 * The caller's scales may have any strides. The copies are dense, by token or, if tokens are neighbours at the
 * caller's, by scale; for negative strides the copy begins at the other end.
 */
static xep_status_t fetch_scales(const xep_buffer_t *buffer, xep_dispatch_args_t *a, char *to)
{
    const char *from = a->scales;
    const size_t row = (size_t)a->nscales * 4, column = a->tokens * 4;
    ptrdiff_t apart = a->scales_token_stride, next = a->scales_stride;
    xep_status_t status = XEP_OK;
    if (a->tokens == 0 || from == NULL) return XEP_OK;
    a->scales = to;
    a->scales_stride = 4;
    a->scales_token_stride = (ptrdiff_t)row;
    if (next == 4 && apart >= (ptrdiff_t)row)
        return xep_staging_copy(buffer, &(staged_matrix_t){NULL, to, row, from, (size_t)apart, row, a->tokens}, 1,
                                a->stream);
    if (apart == 4 && next >= (ptrdiff_t)column) {
        a->scales_stride = (ptrdiff_t)column;
        a->scales_token_stride = 4;
        return xep_staging_copy(buffer, &(staged_matrix_t){NULL, to, column, from, (size_t)next, column, a->nscales}, 1,
                                a->stream);
    }
    if (apart < 0) {
        from += (ptrdiff_t)(a->tokens - 1) * apart;
        a->scales = to + (a->tokens - 1) * row;
        a->scales_token_stride = -(ptrdiff_t)row;
        apart = -apart;
    }
    for (uint32_t s = 0; s < a->nscales && status == XEP_OK; s++) {
        const staged_matrix_t m = {NULL, to + 4 * (size_t)s, row, from + s * next, (size_t)apart, 4, a->tokens};
        status = xep_staging_copy(buffer, &m, 1, a->stream);
    }
    return status;
}

/*
 * What a dispatch returns besides rows. The caller may want the number of rows on the host, where the mode writes it,
 * or on the device, as from modes for device memory.
 */
static xep_status_t check_told(const xep_buffer_t *buffer, const xep_dispatch_args_t *a, staged_slot_t *slot)
{
    xep_device_t *device = &buffer->staging->to->device;
    slot->stats = a->expert_stats;
    slot->rows = NULL;
    if (device->ops->check_host(device, "recv_rows_p", a->recv_rows_p) != XEP_OK) {
        xep_status_t status = device->ops->check(device, "recv_rows_p", a->recv_rows_p);
        if (status != XEP_OK) return status;
        slot->rows = a->recv_rows_p;
    }
    return xep_staging_check(buffer, "expert_stats", a->expert_stats, a->expert_stats != NULL);
}

static xep_status_t take_dispatch(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    const staged_inputs_t *at = &buffer->staging->inputs;
    const uint32_t s = req->op.slot;
    staged_slot_t *slot = &buffer->staging->slots[s];
    xep_dispatch_args_t *a = &req->dispatch;
    char *const x = staged_here(buffer, s, at->x), *const idx = staged_here(buffer, s, at->idx),
                *const weights = staged_here(buffer, s, at->weights), *const stats = staged_here(buffer, s, at->stats);
    const uint64_t x_bytes = a->hidden * xep_dtype_size(a->dtype), weight_bytes = a->topk * sizeof(float),
                   idx_bytes = a->topk * xep_dtype_size(a->topk_idx_dtype),
                   stats_bytes = buffer->shape.local_experts * sizeof(int32_t);
    const staged_matrix_t matrices[] = {
        {"topk_idx", idx, idx_bytes, a->topk_idx, a->topk_idx_stride, idx_bytes, a->tokens},
        {"topk_weights", weights, weight_bytes, a->topk_weights, a->topk_weights_stride, weight_bytes, a->tokens},
        {"expert_stats", stats, stats_bytes, a->expert_stats, stats_bytes, stats_bytes, 1},
    };
    const staged_matrix_t rows = {"x", x, buffer->staging->x_stride, a->x, a->x_stride, x_bytes, a->tokens};
    const size_t count = sizeof matrices / sizeof matrices[0];
    memset(slot->came, 0, buffer->shape.nranks);
    xep_status_t status = check_matrices(buffer, &rows, 1);
    if (status == XEP_OK) status = check_matrices(buffer, matrices, count);
    if (status == XEP_OK) status = xep_staging_check(buffer, "scales", a->scales, a->tokens);
    if (status == XEP_OK) status = check_told(buffer, a, slot);
    if (status == XEP_OK) status = begin_on(buffer, a->stream);
    if (status == XEP_OK) status = xep_staging_copy(buffer, matrices, count, a->stream);
    if (status == XEP_OK) status = fetch_scales(buffer, a, staged_here(buffer, s, at->scales));
    slot->is_direct = xep_staging_goes_direct(req);
    if (status == XEP_OK)
        status = slot->is_direct ? leave_rows(req, a->stream) : take_rows(req, &rows, NULL, 0, a->stream);
    if (status != XEP_OK) return status;
    if (!slot->is_direct) {
        a->x = x;
        a->x_stride = buffer->staging->x_stride;
    }
    if (a->topk_idx != NULL) a->topk_idx = idx;
    a->topk_idx_stride = idx_bytes;
    if (a->topk_weights != NULL) a->topk_weights = (float *)(void *)weights;
    a->topk_weights_stride = weight_bytes;
    if (slot->stats != NULL) a->expert_stats = (int32_t *)(void *)stats;
    if (slot->rows != NULL) a->recv_rows_p = (uint64_t *)(void *)staged_here(buffer, s, at->rows);
    return XEP_OK;
}

/* ---- combine ---- */

/* Where the outputs are: in the caller's memory, or in the slot's device memory. */
static staged_matrix_t find_outputs(const xep_request_t *req)
{
    const xep_buffer_t *buffer = req->buffer;
    const xep_staging_t *staging = buffer->staging;
    const xep_combine_args_t *a = &req->combine;
    const int own = a->x == NULL;
    return (staged_matrix_t){.name = "x",
                             .to = staged_here(buffer, req->op.slot, staging->inputs.y),
                             .to_stride = staging->y_stride,
                             .from = own ? staged_there(buffer, req->op.slot, staging->views.input) : a->x,
                             .from_stride = own ? staging->y_stride : a->x_stride,
                             .bytes = a->hidden * xep_dtype_size(a->dtype),
                             .rows = req->handle->recv.rows};
}

/* Outputs are where the slot's input begins, or outside of it: others would be copied over themselves. */
static xep_status_t check_direct(const staged_matrix_t *y)
{
    const uint64_t within = (uintptr_t)y->from - (uintptr_t)y->to;
    if (within == 0 || within >= y->rows * y->to_stride) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid x: %" PRIu64 " bytes behind what xep_handle_combine_input() returned (that, "
                    "or other memory, with XEP_DIRECT=yes)",
                    within);
}

static xep_status_t take_combine(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    const staged_inputs_t *at = &buffer->staging->inputs;
    const uint32_t s = req->op.slot;
    xep_combine_args_t *a = &req->combine;
    const uint64_t rows = req->handle->recv.rows, tokens = req->handle->tokens, stride = buffer->staging->y_stride,
                   row = a->hidden * xep_dtype_size(a->dtype), weights = req->handle->topk * sizeof(float);
    const int is_direct = buffer->staging->slots[s].sums_direct = xep_staging_goes_direct(req);
    staged_matrix_t y = find_outputs(req);
    const staged_matrix_t matrices[] = {
        {"topk_weights", staged_here(buffer, s, at->y_weights), weights, a->topk_weights, a->topk_weights_stride,
         weights, rows},
        {"weights", staged_here(buffer, s, at->source_weights), weights, a->weights, a->weights_stride, weights,
         tokens},
        {"bias", staged_here(buffer, s, at->bias[0]), stride, a->bias[0], a->bias_stride[0], row, tokens},
        {"bias", staged_here(buffer, s, at->bias[1]), stride, a->bias[1], a->bias_stride[1], row, tokens},
    };
    const size_t count = sizeof matrices / sizeof matrices[0];
    /* UCX puts from the slot's input alone, whose memory it knows */
    if (is_direct) y.to = staged_there(buffer, s, buffer->staging->views.input);
    xep_status_t status = xep_staging_check(buffer, "out", a->out, tokens);
    if (status == XEP_OK) status = xep_staging_check(buffer, "out_weights", a->out_weights, tokens);
    if (status == XEP_OK) status = check_matrices(buffer, &y, 1);
    if (status == XEP_OK) status = check_matrices(buffer, matrices, count);
    if (status == XEP_OK && is_direct) status = check_direct(&y);
    if (status == XEP_OK) status = begin_on(buffer, a->stream);
    if (status == XEP_OK) status = xep_staging_copy(buffer, matrices, 2, a->stream);
    if (status == XEP_OK && is_direct && y.from != y.to) status = xep_staging_copy(buffer, &y, 1, a->stream);
    if (status == XEP_OK)
        status = is_direct ? leave_rows(req, a->stream) : take_rows(req, &y, &matrices[2], 2, a->stream);
    if (status != XEP_OK) return status;
    buffer->staging->slots[s].combine = *a;
    a->x = y.to;
    a->x_stride = y.to_stride;
    if (a->topk_weights != NULL) a->topk_weights = matrices[0].to;
    a->topk_weights_stride = weights;
    for (int b = 0; b < 2 && !is_direct; b++) {
        if (a->bias[b] != NULL) a->bias[b] = matrices[2 + b].to;
        a->bias_stride[b] = stride;
    }
    if (a->weights != NULL) a->weights = matrices[1].to;
    a->weights_stride = weights;
    if (!is_direct) {
        a->out = staged_here(buffer, s, at->out);
        a->out_stride = stride;
    }
    if (a->out_weights != NULL) a->out_weights = (void *)staged_here(buffer, s, at->out_weights);
    a->out_weights_stride = weights;
    return XEP_OK;
}

xep_status_t xep_staging_take_copies(xep_request_t *req)
{
    return req->op.kind == XEP_OP_DISPATCH ? take_dispatch(req) : take_combine(req);
}

/*
 * For what the operation uses before the mode has begun: another thread may release a handle at any time, and the slot
 * of this one must not be given back meanwhile. Whoever leaves the buffer, or the end of the operation, does that.
 */
static xep_status_t wait_for_stream(const xep_request_t *req)
{
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH;
    xep_handle_t *used = is_dispatch ? req->dispatch.cached : req->handle;
    if (used != NULL) used->awaited++;
    xep_status_t status = is_dispatch ? xep_staging_wait(req->buffer, XEP_WAITS_DISPATCH, req->dispatch.timeout_ms)
                                      : xep_staging_wait(req->buffer, XEP_WAITS_COMBINE, req->combine.timeout_ms);
    if (used != NULL) used->awaited--;
    return status;
}

void xep_staging_refused(const xep_request_t *req)
{
    const xep_graphs_doors_t *doors = req->buffer->staging->doors;
    if (doors != NULL) doors->refused(req);
}

/* If the mode refuses the operation, the copies were for nothing. */
xep_status_t xep_staging_take(xep_request_t *req)
{
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH;
    xep_buffer_t *buffer = req->buffer;
    if (is_dispatch && (req->dispatch.flags & XEP_DISPATCH_COUNTS_THERE) != 0)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid flags: XEP_DISPATCH_COUNTS_THERE (not on %u nodes: the host counts the rows)",
                        buffer->shape.nodes);
    const xep_graphs_doors_t *doors = buffer->staging->doors;
    if (doors != NULL && doors->want(req)) return doors->capture(req);
    xep_status_t status = is_dispatch ? xep_packed_take(req) : XEP_OK;
    if (status == XEP_OK) status = xep_staging_take_copies(req);
    if (status != XEP_OK) return status;
    status = wait_for_stream(req);
    if (status != XEP_OK || !is_dispatch || buffer->staging->take_on_host == NULL) return status;
    return buffer->staging->take_on_host(req);
}
