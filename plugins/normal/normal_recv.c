/* SPDX-License-Identifier: BSD-3-Clause */

/* What the user sees of a dispatch: views into the slot, known as soon as the rows are counted. */
#include <string.h>

#include "normal_recv.h"

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

/* Views into the slot: nothing is copied, and all of it stays until the handle is released. */
void normal_fill_recv(const normal_t *mode, const xep_op_t *op, uint64_t rows)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_recv_t *recv = op->recv;
    xep_kit_fill_recv(&mode->kit, op, rows);
    recv->arrangement = XEP_ROWS_BY_RANK;
    recv->x_stride = xep_row_stride(xep_dispatch_row_bytes(args));
    if (args->flags & XEP_DISPATCH_IN_PLACE) {
        recv->x = NULL;
        recv->x_stride = 0;
        recv->row = slot->row;
    }
    if (!normal_state(op)->weighted) recv->topk_weights = NULL;
    if (args->nscales) recv->scales = xep_kit_own_area(&mode->kit, mode->layout.common.scales, op->slot);
    recv->nscales = args->nscales;
    recv->scales_dtype = args->scales_dtype;
    recv->scales_token_stride = (ptrdiff_t)args->nscales * 4;
    recv->scales_stride = 4;
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
