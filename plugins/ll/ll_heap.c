/* SPDX-License-Identifier: BSD-3-Clause */

/* Where things are in a heap. Signals come first, so that their places do not depend on sizes of rows. */
#include <carve.h>

#include "ll.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* a row and its scales, which are words */
static uint64_t record_stride(uint64_t row_bytes, uint64_t scale_words)
{
    return ((row_bytes + 3) / 4 * 4 + scale_words * 4 + 63) & ~(uint64_t)63;
}

/* The largest record: a row as it is with scales of the user, or the longest row that can be cast (of 2-byte elements). */
static uint64_t measure_records(const xep_shape_t *shape, ll_layout_t *layout)
{
    uint64_t room = (uint64_t)shape->hidden * shape->elem_bytes, cast = room / 2, groups = xep_cast_groups(cast);
    layout->scale_words = larger(shape->scales, groups);
    return larger(record_stride(room, shape->scales), record_stride(cast, groups));
}

static void lay_parcel(const xep_shape_t *shape, uint64_t record, xep_carve_t *parcel)
{
    uint64_t selections = shape->tokens * shape->topk; /* of less than 2^31 each */
    xep_carve_offset(parcel, selections, sizeof(int32_t));
    xep_carve_offset(parcel, selections, sizeof(float));
    xep_carve_offset(parcel, shape->tokens, record);
}

/*
 * Rows begin at pages: one of 4096 bytes that lies across two is two entries of the TLB and two beginnings for the
 * prefetcher, and combine took 1.3 times as long.
 */
static void lay_slot(const xep_shape_t *shape, ll_layout_t *layout, xep_carve_t *slot)
{
    uint64_t rows = layout->recv_rows;
    layout->tokens = xep_carve_offset(slot, rows, sizeof(int32_t));
    layout->idx = xep_carve_offset(slot, rows, sizeof(int64_t));
    layout->weights = xep_carve_offset(slot, rows, sizeof(float));
    layout->scales = xep_carve_offset(slot, rows, layout->scale_words * 4);
    xep_carve_page(slot);
    layout->x = xep_carve_offset(slot, rows, xep_row_stride((size_t)shape->hidden * shape->elem_bytes));
    xep_carve_page(slot);
    layout->input = xep_carve_offset(slot, rows, layout->combine_stride);
    xep_carve_page(slot);
    layout->returned = xep_carve_offset(slot, shape->tokens * shape->topk, layout->return_stride);
    xep_carve_page(slot);
    layout->slot_bytes = slot->end;
}

/* a row as it is, or in LogFMT, which begins with what it knows of each group and may have nothing to shorten then */
static uint64_t return_room(const xep_shape_t *shape)
{
    uint64_t bytes = (uint64_t)shape->hidden * shape->combine_elem_bytes;
    return larger(bytes, xep_logfmt_room(bytes / 2));
}

/* rows of a slot when the user leaves it to the mode: any routing in which no token selects an expert twice fits padded */
static int measure_rows(const xep_shape_t *shape, ll_layout_t *layout)
{
    layout->local_experts = (shape->experts + (uint64_t)shape->nranks - 1) / shape->nranks;
    layout->recv_rows = shape->recv_rows;
    if (shape->recv_rows == 0 &&
        __builtin_mul_overflow(shape->nranks * layout->local_experts, shape->tokens, &layout->recv_rows))
        return 0;
    return layout->recv_rows <= UINT32_MAX - shape->topk; /* rows are counted in 32 bits */
}

xep_status_t ll_layout_make(const xep_shape_t *shape, ll_layout_t *layout)
{
    xep_carve_t heap = {0}, slot = {0}, parcel = {0};
    uint64_t ranks = shape->nranks, ring = 2 * (uint64_t)shape->slots;

    if (shape->tokens > INT32_MAX || shape->experts > INT32_MAX) return XEP_ERR_INVALID;
    if (!measure_rows(shape, layout)) return XEP_ERR_NO_MEMORY;
    layout->combine_stride = xep_row_stride((size_t)shape->hidden * shape->combine_elem_bytes);
    layout->return_stride = xep_row_stride(return_room(shape));
    lay_parcel(shape, measure_records(shape, layout), &parcel);
    layout->parcel_bytes = parcel.end;
    layout->table_bytes = (layout->local_experts * sizeof(uint32_t) + 63) & ~(uint64_t)63;
    lay_slot(shape, layout, &slot);

    layout->notices = xep_carve_offset(&heap, ring * ranks, sizeof(ll_notice_t));
    layout->mail = xep_carve_offset(&heap, shape->slots * ranks, sizeof(ll_mail_t));
    layout->tables = xep_carve_offset(&heap, shape->slots * ranks, layout->table_bytes);
    layout->parcels = xep_carve_offset(&heap, ring, layout->parcel_bytes);
    layout->inboxes = xep_carve_offset(&heap, ring * ranks, layout->parcel_bytes);
    xep_carve_page(&heap);
    layout->slots = xep_carve_offset(&heap, shape->slots, layout->slot_bytes);
    layout->bytes = heap.end;
    return heap.overflow || slot.overflow || parcel.overflow ? XEP_ERR_NO_MEMORY : XEP_OK;
}

xep_status_t ll_heap_size(const xep_shape_t *shape, uint64_t *bytes_p, uint64_t *recv_rows_p)
{
    ll_layout_t layout;
    xep_status_t status = ll_layout_make(shape, &layout);
    if (status != XEP_OK) return status;
    *bytes_p = layout.bytes;
    *recv_rows_p = layout.recv_rows;
    return XEP_OK;
}

void ll_parcel_make(const ll_notice_t *notice, ll_parcel_t *parcel)
{
    uint64_t selections = (uint64_t)notice->tokens * notice->topk;
    size_t groups = xep_cast_groups(notice->hidden);
    xep_carve_t carve = {0};
    xep_carve_offset(&carve, selections, sizeof(int32_t));
    parcel->weights = xep_carve_offset(&carve, notice->sends_weights ? selections : 0, sizeof(float));
    parcel->rows = carve.end;
    if (notice->quant == XEP_QUANT_NONE) {
        parcel->row_bytes = notice->hidden * xep_elem_bytes((xep_dtype_t)notice->dtype);
        parcel->scale_words = notice->nscales;
    } else {
        parcel->row_bytes = notice->hidden;
        parcel->scale_words = notice->quant == XEP_QUANT_UE8M0 ? (groups + 3) / 4 : groups;
    }
    parcel->scales = (parcel->row_bytes + 3) / 4 * 4;
    parcel->stride = record_stride(parcel->row_bytes, parcel->scale_words);
}

uint64_t ll_area(const ll_t *mode, uint32_t slot, uint64_t area)
{
    return mode->layout.slots + slot * mode->layout.slot_bytes + area;
}

uint64_t ll_notice_offset(const ll_t *mode, uint64_t turn, uint32_t rank)
{
    return mode->layout.notices + (turn % mode->ring * mode->shape->nranks + rank) * sizeof(ll_notice_t);
}

uint64_t ll_parcel_offset(const ll_t *mode, uint64_t turn)
{
    return mode->layout.parcels + turn % mode->ring * mode->layout.parcel_bytes;
}

uint64_t ll_inbox_offset(const ll_t *mode, uint64_t turn, uint32_t rank)
{
    return mode->layout.inboxes + (turn % mode->ring * mode->shape->nranks + rank) * mode->layout.parcel_bytes;
}

uint64_t ll_mail_offset(const ll_t *mode, uint32_t slot, uint32_t rank)
{
    return mode->layout.mail + ((uint64_t)slot * mode->shape->nranks + rank) * sizeof(ll_mail_t);
}

uint64_t ll_table_offset(const ll_t *mode, uint32_t slot, uint32_t rank)
{
    return mode->layout.tables + ((uint64_t)slot * mode->shape->nranks + rank) * mode->layout.table_bytes;
}
