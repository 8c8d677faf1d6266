/* SPDX-License-Identifier: BSD-3-Clause */

/* Where things are in a heap. Signals come first, so that their places do not depend on sizes of rows. */
#include "normal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void lay_slot(const xep_shape_t *shape, void *layout, xep_carve_t slot[XEP_REGIONS])
{
    normal_layout_t *at = layout;
    xep_carve_t *metadata = &slot[XEP_REGION_METADATA], *rows = &slot[XEP_REGION_ROWS];
    uint64_t received = at->recv_rows, returned = at->returned_rows, weights = shape->topk * sizeof(float);
    at->tokens = xep_carve_area(metadata, received, sizeof(int32_t));
    at->idx = xep_carve_area(metadata, received, shape->topk * sizeof(int64_t));
    at->weights = xep_carve_area(metadata, received, weights);
    at->scales = xep_carve_area(metadata, received, shape->scales * (uint64_t)4);
    at->input_weights = xep_carve_area(metadata, received, weights);
    at->returned_weights = xep_carve_area(metadata, returned, weights);
    at->x = xep_carve_area(rows, received, xep_row_stride((size_t)shape->hidden * shape->elem_bytes));
    at->input = xep_carve_area(rows, received, at->combine_stride);
    at->returned = xep_carve_area(rows, returned, at->combine_stride);
}

xep_status_t normal_make_layout(const xep_shape_t *shape, xep_region_t *regions, normal_layout_t *layout)
{
    xep_carve_t carve[XEP_REGIONS];
    uint64_t lines = (uint64_t)shape->slots * shape->nranks;

    /* rows and tokens are counted in 32 bits on the wire, experts and tokens are int32_t to the user */
    if (shape->tokens > INT32_MAX || shape->experts > INT32_MAX) return XEP_ERR_INVALID;
    layout->recv_rows = shape->recv_rows != 0 ? shape->recv_rows : shape->nranks * shape->tokens;
    layout->returned_rows = shape->tokens * least(shape->topk, xep_shape_unmapped(shape));
    layout->combine_stride = xep_row_stride((size_t)shape->hidden * shape->combine_elem_bytes);
    layout->record_bytes =
        xep_row_stride(sizeof(normal_record_t) + sizeof(uint32_t) * (shape->nranks + (uint64_t)shape->first_expert[1]));

    xep_carve_begin(carve, regions);
    layout->mail = xep_carve_offset(&carve[XEP_REGION_CONTROL], lines, sizeof(normal_mail_t));
    layout->combine_mail = xep_combine_lay_mail(shape, &carve[XEP_REGION_CONTROL]);
    layout->records = xep_carve_offset(&carve[XEP_REGION_METADATA], lines, layout->record_bytes);
    xep_carve_slots(shape, layout, carve, lay_slot);
    return xep_carve_end(carve, regions);
}

xep_status_t normal_heap_size(const xep_shape_t *shape, xep_region_t *regions, uint64_t *recv_rows_p)
{
    normal_layout_t layout;
    xep_status_t status = normal_make_layout(shape, regions, &layout);
    if (status == XEP_OK) *recv_rows_p = layout.recv_rows;
    return status;
}

uint64_t normal_mail_offset(const normal_t *mode, uint32_t index, uint32_t rank)
{
    return mode->layout.mail + ((uint64_t)index * mode->kit.shape->nranks + rank) * sizeof(normal_mail_t);
}

normal_mail_t *normal_mail(const normal_t *mode, uint32_t index, uint32_t rank)
{
    return xep_kit_own(&mode->kit, normal_mail_offset(mode, index, rank));
}

uint64_t normal_record_begin(const normal_t *mode, uint64_t turn, uint32_t rank)
{
    const xep_shape_t *shape = mode->kit.shape;
    return (turn % shape->slots * shape->nranks + rank) * mode->layout.record_bytes;
}

uint64_t normal_record_offset(const normal_t *mode, uint64_t turn, uint32_t rank)
{
    return mode->layout.records + normal_record_begin(mode, turn, rank);
}

uint64_t normal_returned_begin(const normal_t *mode, const normal_routing_t *routing, uint32_t reader, uint32_t owner)
{
    const uint32_t *rows = routing->rank_rows + (size_t)reader * mode->kit.shape->nranks;
    const uint32_t *node = mode->kit.shape->node;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < owner; i++)
        if (node[i] != node[reader]) begin += rows[i];
    return begin;
}
