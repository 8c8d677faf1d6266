/* SPDX-License-Identifier: BSD-3-Clause */

/* The begin and the end of operations, whatever memory the rows are in: what is refused, said, agreed and shown. */
#include "ll.h"

/* ---- what only the mode can check ---- */

/* Room for every token of every rank at each expert of the rank that has most: what padding promises. */
static uint64_t padded_rows(const ll_t *mode)
{
    return (uint64_t)mode->kit.shape->most_experts * mode->kit.shape->nranks * mode->kit.shape->tokens;
}

/*
 * Padded, every expert of a rank has room for every token of every rank, so that the shape alone says where its rows
 * begin.
 */
static xep_status_t check_arrangement(const ll_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const xep_dispatch_args_t *args = op->dispatch;
    if (args->arrangement != XEP_ROWS_BY_EXPERT_PADDED) return XEP_OK;
    if (args->capacity != 0)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED,
                         "invalid capacity: %llu (0 with XEP_ROWS_BY_EXPERT_PADDED: it follows from the shape)",
                         (unsigned long long)args->capacity);
    if (mode->layout.common.recv_rows < padded_rows(mode))
        return env->fail(env, op, XEP_ERR_UNSUPPORTED,
                         "too few rows in a slot for XEP_ROWS_BY_EXPERT_PADDED: %llu (params.recv_rows: at least %llu)",
                         (unsigned long long)mode->layout.common.recv_rows, (unsigned long long)padded_rows(mode));
    return XEP_OK;
}

static xep_status_t take_fields(const ll_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    xep_fields_t *fields = &ll_slot(mode, op->slot)->fields;
    xep_cast_format_t format = {.scale_words = args->nscales};
    xep_cast_format(args->quant, args->hidden, &format);
    return xep_fields_take(&mode->kit, op, (uint32_t)format.scale_words, mode->layout.words_beside, fields);
}

/* All that this mode refuses, it refuses here: after the first word the operation must end on all ranks. */
xep_status_t ll_check_dispatch(const ll_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    int weights =
        op->cached_slot == XEP_NO_SLOT ? args->topk_weights != NULL : ll_slot(mode, op->cached_slot)->weights_given;
    if ((args->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0 && args->tokens != 0 && !weights)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_INVALID,
                                   "topk_weights is NULL (needed with XEP_DISPATCH_SEND_WEIGHTS)");
    xep_fields_t *fields = &ll_slot(mode, op->slot)->fields;
    xep_status_t status = XEP_OK;
    fields->count = fields->bytes = fields->digest = 0;
    if ((args->quant | args->nscales | args->npayloads) != 0) status = take_fields(mode, op);
    return status == XEP_OK ? check_arrangement(mode, op) : status;
}

/* Weights that came with the rows the experts have applied. */
int ll_weights_are_owners(const ll_slot_t *slot)
{
    return slot->weights_sent || !slot->weights_given;
}

xep_status_t ll_check_sums(const ll_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    if (op->combine->weights == NULL && ll_weights_are_owners(slot)) return XEP_OK;
    return env->fail(env, op, XEP_ERR_UNSUPPORTED,
                     "invalid flags: XEP_COMBINE_SUM_AT_OWNER with weights that owners do not have (dispatch with "
                     "XEP_DISPATCH_SEND_WEIGHTS, or without topk_weights)");
}

/* ---- what is said, and agreed ---- */

/* What it counts is there. */
void ll_fill_notice(const ll_t *mode, const xep_op_t *op, ll_notice_t *notice)
{
    const xep_dispatch_args_t *args = op->dispatch;
    int padded = args->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    uint64_t room = args->capacity;
    /* padded: rows of one expert, which is also what the verdict compares with it */
    if (padded) room = (uint64_t)mode->kit.shape->nranks * mode->kit.shape->tokens;
    else if (room == 0) room = mode->layout.common.recv_rows;
    *notice = (ll_notice_t){.word = xep_rows_word(op->epoch, args->tokens),
                            .capacity = (uint32_t)room, /* fewer than 2^32: there is room for them */
                            .most = notice->most,
                            .tokens = (uint32_t)args->tokens,
                            .slot = (uint16_t)op->slot,
                            .alignment = args->expert_alignment,
                            .hidden = args->hidden,
                            .topk = args->topk,
                            .nscales = args->nscales,
                            .outputs_hidden = ll_slot(mode, op->slot)->fields.digest,
                            .dtype = (uint8_t)args->dtype,
                            .quant = (uint8_t)args->quant,
                            .scales_dtype = (uint8_t)args->scales_dtype,
                            .sends_weights = (args->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0,
                            .padded = (uint8_t)padded,
                            .piece = (args->flags & XEP_DISPATCH_PIECES) != 0,
                            .refused = op->refused};
}

void ll_make_packet(const ll_notice_t *notice, uint64_t beside, ll_packet_t *packet)
{
    uint64_t selections = (uint64_t)notice->tokens * notice->topk;
    xep_cast_format_t format;
    xep_carve_t carve = {0};
    xep_carve_offset(&carve, selections, sizeof(int32_t));
    packet->weights = xep_carve_offset(&carve, notice->sends_weights ? selections : 0, sizeof(float));
    packet->head_bytes = carve.end;
    packet->row_bytes = notice->hidden * xep_elem_bytes((xep_dtype_t)notice->dtype);
    if (notice->quant != XEP_QUANT_NONE && xep_cast_format(notice->quant, notice->hidden, &format))
        packet->row_bytes = format.row_bytes;
    packet->beside = (packet->row_bytes + 3) / 4 * 4;
    packet->stride = ll_item_stride(packet->row_bytes, beside);
}

/* Step 4, in the order in which users should hear of what differs. */
xep_status_t ll_compare_notices(const ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    static const xep_agree_param_t params[] = {
        XEP_AGREE_PARAM("dtype", XEP_AGREE_DTYPE, ll_notice_t, dtype),
        XEP_AGREE_PARAM("hidden", XEP_AGREE_NUMBER, ll_notice_t, hidden),
        XEP_AGREE_PARAM("topk", XEP_AGREE_NUMBER, ll_notice_t, topk),
        XEP_AGREE_PARAM("quant", XEP_AGREE_NUMBER, ll_notice_t, quant),
        XEP_AGREE_PARAM("nscales", XEP_AGREE_NUMBER, ll_notice_t, nscales),
        XEP_AGREE_PARAM("scales_dtype", XEP_AGREE_DTYPE, ll_notice_t, scales_dtype),
        XEP_AGREE_PARAM("XEP_DISPATCH_SEND_WEIGHTS", XEP_AGREE_YES_NO, ll_notice_t, sends_weights),
        XEP_AGREE_PARAM("whether rows are read in place", XEP_AGREE_YES_NO, ll_notice_t, in_place),
        XEP_AGREE_PARAM(XEP_FIELDS_DIGEST, XEP_AGREE_NUMBER, ll_notice_t, outputs_hidden), /* not of a next piece */
    };
    const size_t count = sizeof params / sizeof params[0] - (op->kind == XEP_OP_NEXT);
    /* all that is compared, and what may differ between, but seldom does: slots, and who pads */
    const size_t said = offsetof(ll_notice_t, in_place) + sizeof from->in_place - offsetof(ll_notice_t, hidden);
    if (xep_agree_are_same(op, &from->hidden, said, sizeof *from)) return XEP_OK;
    xep_status_t verdict = xep_agree_calls(mode->kit.env, op, &from->refused, sizeof *from);
    if (verdict != XEP_OK) return verdict;
    return xep_agree(mode->kit.env, op, params, count, from, sizeof *from);
}

/* ---- what is shown ---- */

/* Views into the slot. A cast changes the type of rows and scales, but not what the user asked for besides. */
void ll_fill_recv(ll_t *mode, const xep_op_t *op, uint64_t rows)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const xep_dispatch_args_t *args = op->dispatch;
    const ll_packet_t *packet = &ll_state(op)->packet;
    const int padded = args->arrangement == XEP_ROWS_BY_EXPERT_PADDED,
              by_column = (args->flags & XEP_DISPATCH_SCALES_BY_COLUMN) != 0;
    const uint64_t of_expert = mode->kit.shape->nranks * mode->kit.shape->tokens;
    xep_recv_t *recv = op->recv;
    xep_cast_format_t format;
    xep_kit_fill_recv(&mode->kit, op, rows);
    recv->arrangement = padded ? XEP_ROWS_BY_EXPERT_PADDED : XEP_ROWS_BY_EXPERT_COMPACT;
    if (padded) recv->capacity = mode->kit.shape->local_experts * of_expert;
    recv->x_stride = xep_row_stride(packet->row_bytes);
    recv->topk = 1; /* a row for each selection */
    recv->scales_dtype = args->scales_dtype;
    recv->nscales = args->nscales;
    if (args->quant != XEP_QUANT_NONE && xep_cast_format(args->quant, args->hidden, &format)) {
        recv->dtype = format.dtype;
        recv->hidden = (uint32_t)format.row_bytes;
        recv->scales_dtype = format.scales_dtype;
        recv->nscales = (uint32_t)format.scale_words;
    }
    const ptrdiff_t width = (ptrdiff_t)xep_elem_bytes(recv->scales_dtype);
    recv->quant = args->quant;
    recv->scales_token_stride = by_column ? width : (ptrdiff_t)recv->nscales * width;
    recv->scales_stride = by_column ? (ptrdiff_t)(padded ? of_expert : recv->capacity) * width : width;
    if (slot->fields.count != 0)
        xep_fields_show(&slot->fields, xep_kit_own_area(&mode->kit, mode->layout.common.beside, op->slot),
                        mode->layout.common.recv_rows, recv);
    recv->expert_rows = slot->expert_rows;
    recv->expert_begin = slot->expert_begin;
    recv->expert_count = slot->expert_count;
    recv->pair_begin = slot->pair_begin;
    recv->pair_count = slot->pair_count;
}
