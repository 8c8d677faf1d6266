/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Shared by the modes for host and for device memory (plugins/cuda): whose routing is used, and what the user sees of a
 * dispatch.
 */
#include <cast.h>
#include <string.h>

#include "normal_shared.h"

/* ---- whose routing is used ---- */

xep_status_t normal_take_fields(const normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_status_t status = xep_fields_take(&mode->kit, op, args->nscales, mode->kit.shape->scales, &slot->fields);
    slot->record.params[NORMAL_PAYLOADS] = slot->fields.digest;
    return status;
}

/* The longest row that can be cast has elements of 2 bytes, of which at most 8 bits are left. */
static uint64_t cast_row_room(const xep_shape_t *shape)
{
    return xep_row_stride((size_t)shape->hidden * shape->elem_bytes / 2);
}

uint64_t normal_cast_room(const xep_shape_t *shape)
{
    return shape->tokens * (cast_row_room(shape) + shape->scales * UINT64_C(4));
}

xep_status_t normal_take_casts(normal_t *mode, xep_op_t *op, const char *memory)
{
    const xep_env_t *env = mode->kit.env;
    const xep_shape_t *shape = mode->kit.shape;
    xep_dispatch_args_t *to = &normal_slot(mode, op->slot)->cast;
    xep_cast_format_t format;
    xep_cast_format(op->dispatch->quant, op->dispatch->hidden, &format);
    if (format.scale_words > shape->scales)
        return env->fail(env, op, XEP_ERR_INVALID,
                         "too few scales in a row for quant %d: %u (params.scales: at least %llu for a hidden of %u)",
                         (int)op->dispatch->quant, shape->scales, (unsigned long long)format.scale_words,
                         op->dispatch->hidden);
    *to = *op->dispatch;
    to->x = memory;
    to->x_stride = xep_row_stride(format.row_bytes);
    to->dtype = format.dtype;
    to->hidden = (uint32_t)format.row_bytes;
    to->scales = memory + shape->tokens * cast_row_room(shape);
    to->nscales = (uint32_t)format.scale_words;
    to->scales_dtype = format.scales_dtype;
    to->scales_stride = 4;
    to->scales_token_stride = (ptrdiff_t)to->nscales * 4;
    normal_state(op)->given = op->dispatch;
    op->dispatch = to;
    xep_kit_state(op)->casts = XEP_STEPS_CASTS;
    return XEP_OK;
}

static xep_status_t check_cached(normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_routing_t *routing = normal_slot(mode, op->cached_slot)->routing;
    if (args->tokens != routing->tokens)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_INVALID,
                                   "invalid tokens: %llu (%llu, as in the cached handle)",
                                   (unsigned long long)args->tokens, (unsigned long long)routing->tokens);
    if (args->topk != routing->topk)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_INVALID, "invalid topk: %u (%u, as in the cached handle)",
                                   args->topk, routing->topk);
    return XEP_OK;
}

/* There are as many as slots, and every slot uses one at most: the slot that begins has given its own back. */
static normal_routing_t *find_free(normal_t *mode)
{
    uint32_t slot = 0;
    while (normal_slot(mode, slot)->own.refs) slot++;
    return &normal_slot(mode, slot)->own;
}

/* A slot's routing as it was made, with the rows of ranks that are out by now. */
static normal_routing_t *whole_routing(const normal_slot_t *slot)
{
    return slot->routing->whole != NULL ? slot->routing->whole : slot->routing;
}

/* The slot's routing is that of a handle long released; others may still use it. */
static void leave_routing(normal_slot_t *slot)
{
    if (slot->routing != NULL) whole_routing(slot)->refs--;
    slot->routing = NULL;
}

xep_status_t normal_choose_routing(normal_t *mode, xep_op_t *op, normal_routing_t **routing_p)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    if (op->cached_slot == XEP_NO_SLOT) {
        leave_routing(slot);
        *routing_p = find_free(mode);
        return XEP_OK;
    }
    xep_status_t status = check_cached(mode, op);
    if (status != XEP_OK) return status;
    leave_routing(slot);
    *routing_p = whole_routing(normal_slot(mode, op->cached_slot));
    return XEP_OK;
}

/*
 * The reference is the slot's. It is given back when the slot is used for another dispatch, not at the release: nobody
 * tells a mode of that.
 */
void normal_use_routing(normal_t *mode, const xep_op_t *op, normal_routing_t *routing)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    slot->routing = routing;
    slot->there = routing->there;
    slot->fields.count = slot->fields.bytes = 0;
    routing->refs++;
}

/* ---- what the user sees: views into the slot, known as soon as the rows are counted ---- */

void normal_align_experts(const normal_t *mode, const xep_op_t *op, uint64_t *rows)
{
    uint64_t alignment = op->dispatch->expert_alignment;
    if (alignment <= 1) return; /* a division for each expert takes as long as a small batch */
    for (uint32_t e = 0; e < mode->kit.shape->local_experts; e++)
        rows[e] = (rows[e] + alignment - 1) / alignment * alignment;
}

/* The indices lie where peers can write. */
void normal_count_selections(const normal_t *mode, const xep_op_t *op, uint64_t *local)
{
    const xep_recv_t *recv = op->recv;
    uint32_t experts = mode->kit.shape->local_experts;
    int wide = op->dispatch->topk_idx_dtype == XEP_INT64;
    memset(local, 0, experts * sizeof *local);
    for (uint64_t i = 0; i < recv->rows * recv->topk; i++) {
        uint64_t expert = wide ? ((const uint64_t *)recv->topk_idx)[i] : ((const uint32_t *)recv->topk_idx)[i];
        if (expert < experts) local[expert]++;
    }
}

static void fill_expert_rows(normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    memcpy(slot->expert_rows, slot->routing->local, mode->kit.shape->local_experts * sizeof *slot->expert_rows);
    normal_align_experts(mode, op, slot->expert_rows);
}

void normal_show_weights(const normal_t *mode, const xep_op_t *op)
{
    if (normal_state(op)->weighted)
        op->recv->topk_weights = (float *)(void *)xep_kit_own_area(&mode->kit, mode->layout.common.weights, op->slot);
}

/* Views into the slot: nothing is copied, and all of it stays until the handle is released. */
void normal_fill_recv(const normal_t *mode, const xep_op_t *op, uint64_t rows)
{
    const xep_dispatch_args_t *args = op->dispatch;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_recv_t *recv = op->recv;
    xep_kit_fill_recv(&mode->kit, op, rows);
    recv->arrangement = XEP_ROWS_BY_RANK;
    recv->x_stride = xep_row_stride(xep_dispatch_row_bytes(args));
    if (args->flags & XEP_DISPATCH_IN_PLACE) {
        recv->x = NULL;
        recv->x_stride = 0;
        recv->row = slot->row;
    }
    recv->topk_weights = NULL;
    normal_show_weights(mode, op);
    recv->nscales = args->nscales;
    recv->scales_dtype = args->scales_dtype;
    recv->scales_stride = (ptrdiff_t)xep_elem_bytes(args->scales_dtype);
    recv->scales_token_stride = (ptrdiff_t)args->nscales * recv->scales_stride;
    recv->quant = args->quant;
    if (slot->fields.count != 0)
        xep_fields_show(&slot->fields, xep_kit_own_area(&mode->kit, mode->layout.common.beside, op->slot),
                        mode->layout.common.recv_rows, recv);
}

void normal_show_rows(normal_t *mode, const xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    fill_expert_rows(mode, op);
    normal_fill_recv(mode, op, slot->routing->src_begin[mode->kit.shape->nranks]);
    op->recv->src_begin = slot->routing->src_begin;
    op->recv->rank_rows = slot->routing->rank_rows;
    op->recv->expert_rows = slot->expert_rows;
}

/* -1 is all ones in either width: rows that nobody sent select no expert. */
void normal_show_tail(const xep_op_t *op)
{
    const xep_recv_t *recv = op->recv;
    size_t row = recv->topk * xep_elem_bytes(op->dispatch->topk_idx_dtype);
    memset((char *)recv->topk_idx + recv->rows * row, 0xff, (recv->capacity - recv->rows) * row);
}

/*
 * The rows are counted already, so nobody who asks for counts waits for peers. Where they do not fit, agreement says
 * so, or in how many pieces they come. Where ranks may be left out, it says whose rows count.
 */
void normal_show_cached(normal_t *mode, const xep_op_t *op)
{
    uint64_t capacity = op->dispatch->capacity;
    if (mode->kit.env->out != NULL || (op->dispatch->flags & XEP_DISPATCH_PIECES) != 0) return;
    if (capacity != 0 && capacity < normal_slot(mode, op->slot)->routing->src_begin[mode->kit.shape->nranks]) return;
    normal_show_rows(mode, op);
    normal_state(op)->shown = 1;
}

/* After an overflow, too: the caller wants to know how much room would have been enough. */
xep_status_t normal_tell_rows(void *mode, xep_op_t *op)
{
    xep_status_t verdict = xep_kit_state(op)->verdict;
    (void)mode;
    if (verdict == XEP_OK || verdict == XEP_ERR_OVERFLOW) xep_kit_tell_rows(op, op->recv->rows);
    return XEP_OK;
}
