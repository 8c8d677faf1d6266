/* SPDX-License-Identifier: BSD-3-Clause */

/* What the user sees of a dispatch: views into the slot, known as soon as the rows are counted. */
#include <string.h>

#include "normal.h"

static void fill_expert_rows(normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = &mode->slots[op->slot];
    uint64_t alignment = op->dispatch->expert_alignment;
    uint32_t local = mode->kit.shape->local_experts;
    memcpy(slot->expert_rows, slot->routing->local, local * sizeof *slot->expert_rows);
    if (alignment <= 1) return; /* a division for each expert takes as long as a small batch */
    for (uint32_t e = 0; e < local; e++)
        slot->expert_rows[e] = (slot->expert_rows[e] + alignment - 1) / alignment * alignment;
}

static void fill_recv(normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_layout_t *at = &mode->layout;
    const normal_slot_t *slot = &mode->slots[op->slot];
    uint64_t rows = slot->routing->src_begin[mode->kit.shape->nranks];

    *op->recv = (xep_recv_t){
        .size = sizeof *op->recv,
        .arrangement = XEP_ROWS_BY_RANK,
        .rows = rows,
        .capacity = args->capacity ? args->capacity : rows,
        .x = xep_kit_own_area(&mode->kit, at->x, op->slot),
        .x_stride = xep_row_stride(normal_row_bytes(args)),
        .dtype = args->dtype,
        .hidden = args->hidden,
        .topk = args->topk,
        .topk_idx_dtype = args->topk_idx_dtype,
        .topk_idx = xep_kit_own_area(&mode->kit, at->idx, op->slot),
        .topk_weights =
            normal_state(op)->weighted ? (float *)xep_kit_own_area(&mode->kit, at->weights, op->slot) : NULL,
        .scales = args->nscales ? xep_kit_own_area(&mode->kit, at->scales, op->slot) : NULL,
        .nscales = args->nscales,
        .scales_dtype = args->scales_dtype,
        .scales_token_stride = (ptrdiff_t)args->nscales * 4,
        .scales_stride = 4,
        .src_token = (int32_t *)xep_kit_own_area(&mode->kit, at->tokens, op->slot),
        .src_begin = slot->routing->src_begin,
        .rank_rows = slot->routing->rank_rows,
        .first_expert = mode->kit.first_expert[mode->kit.shape->rank],
        .local_experts = mode->kit.shape->local_experts,
        .expert_rows = slot->expert_rows,
    };
}

void normal_show_rows(normal_t *mode, const xep_op_t *op)
{
    fill_expert_rows(mode, op);
    fill_recv(mode, op);
}

void normal_show_tail(const xep_op_t *op)
{
    const xep_recv_t *recv = op->recv;
    size_t row = recv->topk * normal_idx_bytes(op->dispatch);
    memset((char *)recv->topk_idx + recv->rows * row, 0xff, (recv->capacity - recv->rows) * row);
}
