/* SPDX-License-Identifier: BSD-3-Clause */

/* Where things are in a heap. */
#include "ll.h"

#include <math.h>

/* The largest item: a row as it is with all that the user may have beside it, or the longest row that can be cast (of
 * 2-byte elements), by whichever cast, with its scales or as much. */
static uint64_t measure_items(const xep_shape_t *shape, ll_layout_t *layout)
{
    uint64_t room = (uint64_t)shape->hidden * shape->elem_bytes,
             stride = ll_item_stride(room, shape->scales * UINT64_C(4));
    xep_cast_format_t format;
    layout->words_beside = shape->scales;
    for (unsigned quant = 0; quant < XEP_CAST_TABLE; quant++) {
        if (!xep_cast_format(quant, room / 2, &format)) continue;
        layout->words_beside = xep_most(layout->words_beside, format.scale_words);
        stride = xep_most(stride, ll_item_stride(format.row_bytes, xep_most(shape->scales, format.scale_words) * 4));
    }
    return stride;
}

/*
 * Packets of this rank, and those that others put here: heads are metadata, items rows. Room for the largest packet
 * that this shape allows: whether there are weights, and which cast, each dispatch decides. Of the items of others only
 * as many as the shape has room for.
 */
static void lay_packets(const xep_shape_t *shape, ll_layout_t *at, xep_carve_t *metadata, xep_carve_t *rows)
{
    xep_carve_t head = {0}, items = {0}, recv_ring = {0};
    uint64_t selections = shape->tokens * shape->topk; /* of less than 2^31 each */
    uint64_t ring = xep_notices_ring(shape), senders = shape->nodes > 1 ? xep_forwarders_most(shape) : 0;
    uint64_t room = shape->feed_rows != 0 && shape->feed_rows < shape->tokens ? shape->feed_rows : shape->tokens;
    xep_carve_offset(&head, selections, sizeof(int32_t));
    xep_carve_offset(&head, selections, sizeof(float));
    xep_carve_offset(&items, shape->tokens, measure_items(shape, at));
    xep_carve_offset(&recv_ring, room, measure_items(shape, at));
    metadata->overflow |= head.overflow;
    rows->overflow |= items.overflow;
    metadata->stride = head.end;
    rows->stride = items.end;
    at->heads = xep_carve_area(metadata, ring, head.end);
    at->delivered_heads = xep_carve_area(metadata, ring * senders, head.end);
    at->items = xep_carve_area(rows, ring, items.end);
    rows->stride = recv_ring.end;
    at->delivered_items = xep_carve_area(rows, ring * senders, recv_ring.end);
    at->recv_ring_bytes = senders != 0 && room < shape->tokens ? recv_ring.end : 0;
    xep_carve_page(rows);
}

/* The words that say how far rows were taken. */
static void lay_words(const xep_shape_t *shape, ll_layout_t *at, xep_carve_t *control)
{
    uint64_t lines = xep_notices_ring(shape) * shape->nranks, crowd = at->recv_ring_bytes != 0;
    at->most_locals = xep_forwarders_most_locals(shape);
    at->taken = xep_carve_offset(control, crowd ? lines : 0, sizeof(uint64_t));
    at->locals_taken =
        xep_carve_offset(control, crowd ? xep_notices_ring(shape) * xep_forwarders_most(shape) * at->most_locals : 0,
                         sizeof(uint64_t));
}

/*
 * Rows begin at pages: one of 4096 bytes that lies across two is two entries of the TLB and two beginnings for the
 * prefetcher, and combine took 1.3 times as long.
 */
static void lay_slot(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t slot[XEP_REGIONS])
{
    ll_layout_t *at = (ll_layout_t *)common;
    xep_carve_t *rows = &slot[XEP_REGION_ROWS];
    xep_carve_received(shape, common, 1, at->words_beside, slot);
    xep_carve_page(rows);
    common->input = xep_carve_area(rows, common->recv_rows, common->combine_stride);
    xep_carve_page(rows);
    at->returned =
        xep_carve_area(rows, shape->nodes > 1 || shape->in_pieces ? shape->tokens * shape->topk : 0, at->return_stride);
    xep_carve_page(rows);
}

/* A row as it is, or encoded. */
static uint64_t return_room(const xep_shape_t *shape)
{
    const uint64_t bytes = (uint64_t)shape->hidden * shape->combine_elem_bytes;
    return xep_most(bytes, xep_codec_room(bytes / 2));
}

/*
 * In pieces: what an even load brings to the rank with most experts, a quarter more, and what a random one has beside
 * that where few rows come.
 */
static double even_rows(const xep_shape_t *shape)
{
    double even = (double)shape->nranks * (double)shape->tokens * shape->topk * shape->most_experts / shape->experts;
    return 1.25 * even + 4 * sqrt(even) + 1;
}

/* rows of a slot when the user leaves it to the mode: any routing in which no token selects an expert twice fits
 * padded */
static int measure_rows(const xep_shape_t *shape, uint64_t *rows_p)
{
    double rows = (double)shape->nranks * shape->most_experts * (double)shape->tokens;
    if (shape->in_pieces && even_rows(shape) < rows) rows = even_rows(shape);
    if (shape->recv_rows != 0) rows = (double)shape->recv_rows;
    *rows_p = rows < UINT32_MAX ? (uint64_t)rows : UINT32_MAX;
    return *rows_p <= UINT32_MAX - shape->topk; /* rows are counted in 32 bits */
}

/* Regions in the order of the header: tables and heads before slots, items before rows. */
xep_status_t ll_lay_heap(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t region[XEP_REGIONS])
{
    ll_layout_t *at = (ll_layout_t *)common;
    xep_carve_t *metadata = &region[XEP_REGION_METADATA];
    if (!measure_rows(shape, &common->recv_rows)) return XEP_ERR_NO_MEMORY;
    at->return_stride = xep_row_stride(return_room(shape));
    at->table_bytes = xep_row_stride(shape->most_experts * sizeof(uint32_t));

    common->notices = xep_notices_lay(shape, &region[XEP_REGION_CONTROL]);
    at->tables = xep_carve_offset(metadata, shape->slots * (uint64_t)shape->nranks, at->table_bytes);
    lay_packets(shape, at, metadata, &region[XEP_REGION_ROWS]);
    /* behind the packets, whose recv_ring_bytes it looks at; the slots, too, need what was measured there */
    lay_words(shape, at, &region[XEP_REGION_CONTROL]);
    xep_carve_slots(shape, common, region, lay_slot);
    common->in_place.stride = measure_items(shape, at);
    return XEP_OK;
}
