/* SPDX-License-Identifier: BSD-3-Clause */

/* Where things are in a heap. Signals come first, so that their places do not depend on sizes of rows. */
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

/* The largest record: a row as it is with scales of the user, or the longest row that can be cast (of 2-byte
 * elements). */
static uint64_t measure_records(const xep_shape_t *shape, ll_layout_t *layout)
{
    uint64_t room = (uint64_t)shape->hidden * shape->elem_bytes, cast = room / 2, groups = xep_cast_groups(cast);
    layout->scale_words = larger(shape->scales, groups);
    return larger(record_stride(room, shape->scales), record_stride(cast, groups));
}

/* Parcels of this rank, and those that others put here: heads are metadata, records rows. */
static void lay_parcels(const xep_shape_t *shape, ll_layout_t *at, xep_carve_t *metadata, xep_carve_t *rows)
{
    xep_carve_t head = {0}, records = {0};
    uint64_t selections = shape->tokens * shape->topk; /* of less than 2^31 each */
    uint64_t ring = xep_notices_ring(shape), senders = shape->nodes > 1 ? shape->nranks : 0;
    xep_carve_offset(&head, selections, sizeof(int32_t));
    xep_carve_offset(&head, selections, sizeof(float));
    xep_carve_offset(&records, shape->tokens, measure_records(shape, at));
    metadata->overflow |= head.overflow;
    rows->overflow |= records.overflow;
    metadata->stride = head.end;
    rows->stride = records.end;
    at->heads = xep_carve_area(metadata, ring, head.end);
    at->delivered_heads = xep_carve_area(metadata, ring * senders, head.end);
    at->records = xep_carve_area(rows, ring, records.end);
    at->delivered_records = xep_carve_area(rows, ring * senders, records.end);
    xep_carve_page(rows);
}

/*
 * Rows begin at pages: one of 4096 bytes that lies across two is two entries of the TLB and two beginnings for the
 * prefetcher, and combine took 1.3 times as long.
 */
static void lay_slot(const xep_shape_t *shape, void *layout, xep_carve_t slot[XEP_REGIONS])
{
    ll_layout_t *at = layout;
    xep_carve_t *metadata = &slot[XEP_REGION_METADATA], *rows = &slot[XEP_REGION_ROWS];
    uint64_t received = at->recv_rows;
    at->tokens = xep_carve_area(metadata, received, sizeof(int32_t));
    at->idx = xep_carve_area(metadata, received, sizeof(int64_t));
    at->weights = xep_carve_area(metadata, received, sizeof(float));
    at->scales = xep_carve_area(metadata, received, at->scale_words * 4);
    at->x = xep_carve_area(rows, received, xep_row_stride((size_t)shape->hidden * shape->elem_bytes));
    xep_carve_page(rows);
    at->input = xep_carve_area(rows, received, at->combine_stride);
    xep_carve_page(rows);
    at->returned = xep_carve_area(rows, shape->nodes > 1 ? shape->tokens * shape->topk : 0, at->return_stride);
    xep_carve_page(rows);
}

/* a row as it is, or in LogFMT, which begins with what it knows of each group and may have nothing to shorten then */
static uint64_t return_room(const xep_shape_t *shape)
{
    uint64_t bytes = (uint64_t)shape->hidden * shape->combine_elem_bytes;
    return larger(bytes, xep_logfmt_room(bytes / 2));
}

/* rows of a slot when the user leaves it to the mode: any routing in which no token selects an expert twice fits
 * padded */
static int measure_rows(const xep_shape_t *shape, ll_layout_t *layout)
{
    layout->recv_rows = shape->recv_rows;
    if (shape->recv_rows == 0 &&
        __builtin_mul_overflow((uint64_t)shape->nranks * shape->first_expert[1], shape->tokens, &layout->recv_rows))
        return 0;
    return layout->recv_rows <= UINT32_MAX - shape->topk; /* rows are counted in 32 bits */
}

xep_status_t ll_make_layout(const xep_shape_t *shape, xep_region_t *regions, ll_layout_t *layout)
{
    xep_carve_t carve[XEP_REGIONS];
    xep_carve_t *control = &carve[XEP_REGION_CONTROL], *metadata = &carve[XEP_REGION_METADATA];
    uint64_t ranks = shape->nranks;

    if (shape->tokens > INT32_MAX || shape->experts > INT32_MAX) return XEP_ERR_INVALID;
    if (!measure_rows(shape, layout)) return XEP_ERR_NO_MEMORY;
    layout->combine_stride = xep_row_stride((size_t)shape->hidden * shape->combine_elem_bytes);
    layout->return_stride = xep_row_stride(return_room(shape));
    layout->table_bytes = xep_row_stride(shape->first_expert[1] * sizeof(uint32_t));

    xep_carve_begin(carve, regions);
    layout->notices = xep_notices_lay(shape, control);
    layout->combine_mail = xep_combine_lay_mail(shape, control);
    layout->tables = xep_carve_offset(metadata, shape->slots * ranks, layout->table_bytes);
    lay_parcels(shape, layout, metadata, &carve[XEP_REGION_ROWS]);
    xep_carve_slots(shape, layout, carve, lay_slot);
    regions[XEP_REGION_ROWS].alignment = 4096;
    return xep_carve_end(carve, regions);
}

xep_status_t ll_heap_size(const xep_shape_t *shape, xep_region_t *regions, uint64_t *recv_rows_p)
{
    ll_layout_t layout;
    xep_status_t status = ll_make_layout(shape, regions, &layout);
    if (status == XEP_OK) *recv_rows_p = layout.recv_rows;
    return status;
}

void ll_make_parcel(const ll_notice_t *notice, ll_parcel_t *parcel)
{
    uint64_t selections = (uint64_t)notice->tokens * notice->topk;
    size_t groups = xep_cast_groups(notice->hidden);
    xep_carve_t carve = {0};
    xep_carve_offset(&carve, selections, sizeof(int32_t));
    parcel->weights = xep_carve_offset(&carve, notice->sends_weights ? selections : 0, sizeof(float));
    parcel->head_bytes = carve.end;
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

uint64_t ll_table_offset(const ll_t *mode, uint32_t slot, uint32_t rank)
{
    return mode->layout.tables + ((uint64_t)slot * mode->kit.shape->nranks + rank) * mode->layout.table_bytes;
}
