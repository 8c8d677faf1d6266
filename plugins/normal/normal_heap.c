/* SPDX-License-Identifier: BSD-3-Clause */

/* Where things are in a heap. Signals come first, so that their places do not depend on sizes of rows. */
#include <carve.h>

#include "normal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void lay_slot(const xep_shape_t *shape, normal_layout_t *layout, xep_carve_t *slot)
{
    uint64_t rows = layout->recv_rows, returned = layout->returned_rows;
    layout->tokens = xep_carve_offset(slot, rows, sizeof(int32_t));
    layout->idx = xep_carve_offset(slot, rows, shape->topk * sizeof(int64_t));
    layout->weights = xep_carve_offset(slot, rows, shape->topk * sizeof(float));
    layout->scales = xep_carve_offset(slot, rows, shape->scales * (uint64_t)4);
    layout->x = xep_carve_offset(slot, rows, xep_row_stride((size_t)shape->hidden * shape->elem_bytes));
    layout->input_weights = xep_carve_offset(slot, rows, shape->topk * sizeof(float));
    layout->input = xep_carve_offset(slot, rows, layout->combine_stride);
    layout->returned_weights = xep_carve_offset(slot, returned, shape->topk * sizeof(float));
    layout->returned = xep_carve_offset(slot, returned, layout->combine_stride);
    layout->slot_bytes = slot->end;
}

xep_status_t normal_layout_make(const xep_shape_t *shape, normal_layout_t *layout)
{
    xep_carve_t heap = {0}, slot = {0};
    uint64_t lines = (uint64_t)shape->slots * shape->nranks;
    uint64_t local = shape->experts / shape->nranks + (shape->experts % shape->nranks != 0);

    /* rows and tokens are counted in 32 bits on the wire, experts and tokens are int32_t to the user */
    if (shape->tokens > INT32_MAX || shape->experts > INT32_MAX) return XEP_ERR_INVALID;
    layout->recv_rows = shape->recv_rows ? shape->recv_rows : shape->nranks * shape->tokens;
    layout->returned_rows = shape->tokens * least(shape->topk, shape->nranks - 1);
    layout->combine_stride = xep_row_stride((size_t)shape->hidden * shape->combine_elem_bytes);
    layout->record_bytes = xep_row_stride(sizeof(normal_record_t) + sizeof(uint32_t) * (shape->nranks + local));

    layout->mail = xep_carve_offset(&heap, lines, sizeof(normal_mail_t));
    layout->records = xep_carve_offset(&heap, lines, layout->record_bytes);
    lay_slot(shape, layout, &slot);
    layout->slots = xep_carve_offset(&heap, shape->slots, layout->slot_bytes);
    layout->bytes = heap.end;
    return heap.overflow || slot.overflow ? XEP_ERR_NO_MEMORY : XEP_OK;
}

xep_status_t normal_heap_size(const xep_shape_t *shape, uint64_t *bytes_p, uint64_t *recv_rows_p)
{
    normal_layout_t layout;
    xep_status_t status = normal_layout_make(shape, &layout);
    if (status != XEP_OK) return status;
    *bytes_p = layout.bytes;
    *recv_rows_p = layout.recv_rows;
    return XEP_OK;
}

uint64_t normal_area(const normal_t *mode, uint32_t slot, uint64_t area)
{
    return mode->layout.slots + slot * mode->layout.slot_bytes + area;
}

uint64_t normal_mail_offset(const normal_t *mode, uint32_t index, uint32_t rank)
{
    return mode->layout.mail + ((uint64_t)index * mode->shape->nranks + rank) * sizeof(normal_mail_t);
}

normal_mail_t *normal_mail(const normal_t *mode, uint32_t index, uint32_t rank)
{
    return (normal_mail_t *)((char *)mode->env->heap + normal_mail_offset(mode, index, rank));
}

uint64_t normal_record_offset(const normal_t *mode, uint64_t turn, uint32_t rank)
{
    const xep_shape_t *shape = mode->shape;
    return mode->layout.records + (turn % shape->slots * shape->nranks + rank) * mode->layout.record_bytes;
}

uint64_t normal_returned_begin(const normal_t *mode, const normal_routing_t *routing, uint32_t reader, uint32_t owner)
{
    const uint32_t *rows = routing->rank_rows + (size_t)reader * mode->shape->nranks;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < owner; i++)
        if (i != reader) begin += rows[i];
    return begin;
}
