/* SPDX-License-Identifier: BSD-3-Clause */

/* What an operation has brought, on its way to the device. */
#include "staging.h"

#include "request.h"
#include "staging_slots.h"

/* ---- rows that came ---- */

/*
 * What the mode shows, with the addresses of the device. By expert, counts and places are on the device, too, as in
 * modes for device memory, and rows says how many the arrays hold.
 */
static void fill_shown(const xep_buffer_t *buffer, const xep_handle_t *handle)
{
    const staged_views_t *at = &buffer->staging->views;
    const uint32_t s = handle->slot;
    xep_recv_t *shown = &buffer->staging->slots[s].shown;
    *shown = handle->recv;
    shown->x = staged_there(buffer, s, at->x);
    if (buffer->staging->slots[s].is_direct) shown->x = xep_staging_twin(buffer, handle->recv.x);
    shown->topk_idx = staged_there(buffer, s, at->idx);
    if (shown->topk_weights != NULL) shown->topk_weights = (void *)staged_there(buffer, s, at->weights);
    if (shown->scales != NULL) shown->scales = staged_there(buffer, s, at->scales);
    shown->src_token = (void *)staged_there(buffer, s, at->src_token);
    if (shown->expert_begin == NULL) return;
    shown->rows = shown->capacity;
    shown->expert_rows = (void *)staged_there(buffer, s, at->expert_rows);
    shown->expert_begin = (void *)staged_there(buffer, s, at->expert_begin);
    shown->expert_count = (void *)staged_there(buffer, s, at->expert_count);
    shown->pair_begin = (void *)staged_there(buffer, s, at->pair_begin);
    shown->pair_count = (void *)staged_there(buffer, s, at->pair_count);
}

void xep_staging_show_counts(const xep_request_t *req)
{
    if (req->buffer->staging != NULL && req->op.kind == XEP_OP_DISPATCH) fill_shown(req->buffer, req->handle);
}

const xep_recv_t *xep_staging_recv(const xep_handle_t *handle)
{
    return &handle->buffer->staging->slots[handle->slot].shown;
}

void *xep_staging_input(const xep_handle_t *handle, size_t *stride_p)
{
    const xep_buffer_t *buffer = handle->buffer;
    *stride_p = buffer->staging->y_stride;
    return staged_there(buffer, handle->slot, buffer->staging->views.input);
}

/*
 * Copies count rows from begin on: their elements, and their scales, which lie together for an expert or for all rows.
 */
static xep_status_t show_range(const xep_request_t *req, uint64_t begin, uint64_t rows)
{
    const xep_recv_t *recv = &req->handle->recv, *shown = xep_staging_recv(req->handle);
    const uint64_t row = recv->nscales * UINT64_C(4), column = rows * 4;
    const size_t scales = begin * row;
    staged_matrix_t parts[] = {
        {.to = (char *)shown->x + begin * recv->x_stride,
         .to_stride = recv->x_stride,
         .from = (const char *)recv->x + begin * recv->x_stride,
         .from_stride = recv->x_stride,
         .bytes = recv->hidden * xep_dtype_size(recv->dtype),
         .rows = rows},
        {0},
    };
    if (req->buffer->staging->slots[req->op.slot].is_direct) parts[0].from = NULL;
    if (recv->scales != NULL)
        parts[1] = (staged_matrix_t){.to = (char *)shown->scales + scales, .from = (const char *)recv->scales + scales};
    if (recv->scales_stride == 4) {
        parts[1].to_stride = parts[1].from_stride = parts[1].bytes = row;
        parts[1].rows = rows;
    } else {
        parts[1].to_stride = parts[1].from_stride = (size_t)recv->scales_stride;
        parts[1].bytes = column;
        parts[1].rows = recv->nscales;
    }
    return xep_staging_copy(req->buffer, parts, 2, req->dispatch.stream);
}

/*
 * Copies the rows that are not on their way already. Ranks lie one behind the other, so all between two such ranks are
 * one copy.
 */
static xep_status_t show_by_rank(const xep_request_t *req)
{
    const xep_recv_t *recv = &req->handle->recv;
    const uint8_t *came = req->buffer->staging->slots[req->op.slot].came;
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0, end; r < req->buffer->shape.nranks && status == XEP_OK; r = end + 1) {
        for (end = r; end < req->buffer->shape.nranks && !came[end]; end++) {}
        status = show_range(req, recv->src_begin[r], recv->src_begin[end] - recv->src_begin[r]);
    }
    return status;
}

static xep_status_t show_rows(const xep_request_t *req)
{
    const xep_recv_t *recv = &req->handle->recv;
    xep_status_t status = XEP_OK;
    if (recv->arrangement == XEP_ROWS_BY_RANK) return show_by_rank(req);
    if (recv->arrangement != XEP_ROWS_BY_EXPERT_PADDED) return show_range(req, 0, recv->rows);
    for (uint32_t e = 0; e < recv->local_experts && status == XEP_OK; e++)
        status = show_range(req, recv->expert_begin[e], recv->expert_count[e]);
    return status;
}

/*
 * A copy that cannot be enqueued now is tried again at the end. Few rows are left for that copy, too: each copy has its
 * price.
 */
void xep_staging_rows_came(const xep_env_t *env, const xep_op_t *op, uint32_t rank)
{
    const xep_request_t *req = xep_request_of(op);
    uint8_t *came = req->buffer->staging->slots[op->slot].came;
    const uint64_t begin = op->recv->src_begin[rank], rows = op->recv->src_begin[rank + 1] - begin;
    (void)env;
    if (came[rank] || rows * op->recv->x_stride < STAGED_PART_BYTES) return;
    fill_shown(req->buffer, req->handle);
    came[rank] =
        xep_staging_check_stream(req->buffer, req->dispatch.stream) == XEP_OK && show_range(req, begin, rows) == XEP_OK;
}

/* An array without gaps. */
static staged_matrix_t dense(const void *to, const void *from, uint64_t bytes)
{
    return (staged_matrix_t){NULL, (void *)(uintptr_t)to, bytes, from, bytes, bytes, 1};
}

/* What the mode does not show is not copied. Indices are, to the end: those behind the rows say that there is none. */
static xep_status_t show_metadata(const xep_request_t *req)
{
    const xep_recv_t *recv = &req->handle->recv, *shown = xep_staging_recv(req->handle);
    const uint64_t rows = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED ? recv->capacity : recv->rows;
    const uint64_t experts = recv->local_experts, pairs = experts * req->buffer->shape.nranks;
    const staged_matrix_t arrays[] = {
        dense(shown->topk_idx, recv->topk_idx, recv->capacity * recv->topk * xep_dtype_size(recv->topk_idx_dtype)),
        dense(shown->topk_weights, recv->topk_weights, rows * recv->topk * sizeof(float)),
        dense(shown->src_token, recv->src_token, rows * sizeof(int32_t)),
        dense(shown->expert_rows, recv->expert_rows, experts * sizeof *recv->expert_rows),
        dense(shown->expert_begin, recv->expert_begin, experts * sizeof *recv->expert_begin),
        dense(shown->expert_count, recv->expert_count, experts * sizeof *recv->expert_count),
        dense(shown->pair_begin, recv->pair_begin, pairs * sizeof *recv->pair_begin),
        dense(shown->pair_count, recv->pair_count, pairs * sizeof *recv->pair_count),
    };
    const size_t count = recv->expert_begin == NULL ? 3 : sizeof arrays / sizeof arrays[0];
    return xep_staging_copy(req->buffer, arrays, count, req->dispatch.stream);
}

/* Writes the number of rows even if there was too little room for them. */
static xep_status_t show_told(const xep_request_t *req, int moved)
{
    const xep_buffer_t *buffer = req->buffer;
    const staged_slot_t *slot = &buffer->staging->slots[req->op.slot];
    const staged_matrix_t arrays[] = {
        dense(slot->rows, staged_here(buffer, req->op.slot, buffer->staging->inputs.rows), sizeof *slot->rows),
        dense(slot->stats, staged_here(buffer, req->op.slot, buffer->staging->inputs.stats),
              buffer->shape.local_experts * sizeof *slot->stats),
    };
    return xep_staging_copy(buffer, arrays, moved ? 2 : 1, req->dispatch.stream);
}

/* A launch shows what its capture has shown: the program may be reading it. */
static xep_status_t show_dispatch(const xep_request_t *req)
{
    if (req->buffer->staging->to == req->buffer->device) fill_shown(req->buffer, req->handle);
    xep_status_t status = show_metadata(req);
    return status == XEP_OK ? show_rows(req) : status;
}

/* ---- sums ---- */

static xep_status_t show_combine(const xep_request_t *req)
{
    const xep_buffer_t *buffer = req->buffer;
    const staged_slot_t *slot = &buffer->staging->slots[req->op.slot];
    const xep_combine_args_t *a = &req->combine, *to = &slot->combine;
    const uint64_t tokens = req->handle->tokens, weights = req->handle->topk * sizeof(float);
    const void *out = slot->sums_direct ? NULL : a->out;
    const staged_matrix_t sums[] = {
        {NULL, to->out, to->out_stride, out, a->out_stride, a->hidden * xep_dtype_size(a->dtype), tokens},
        {NULL, to->out_weights, to->out_weights_stride, a->out_weights, weights, weights, tokens},
    };
    return xep_staging_copy(buffer, sums, 2, a->stream);
}

/*
 * The mark is last: after it the slot's memory is free again. The stream is checked again, as the caller may have begun
 * to capture it since the call.
 */
xep_status_t xep_staging_show_copies(xep_request_t *req, xep_status_t status)
{
    xep_device_t *device = &req->buffer->staging->to->device;
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH;
    void *stream = is_dispatch ? req->dispatch.stream : req->combine.stream;
    if (status != XEP_OK && (!is_dispatch || status != XEP_ERR_OVERFLOW)) return status;
    xep_status_t shown = xep_staging_check_stream(req->buffer, stream);
    if (shown == XEP_OK) shown = device->ops->after_mark(device, stream);
    if (shown == XEP_OK && is_dispatch) shown = show_told(req, status == XEP_OK);
    if (shown == XEP_OK && status == XEP_OK) shown = is_dispatch ? show_dispatch(req) : show_combine(req);
    if (shown == XEP_OK) shown = device->ops->mark(device, stream);
    if (shown == XEP_OK) return status;
    return shown == XEP_ERR_INVALID ? XEP_ERR_TRANSPORT : shown; /* which no other rank gets */
}

xep_status_t xep_staging_show(xep_request_t *req, xep_status_t status)
{
    const xep_graphs_doors_t *doors = req->buffer->staging->doors;
    return doors != NULL && doors->have(req) ? doors->show(req, status) : xep_staging_show_copies(req, status);
}
