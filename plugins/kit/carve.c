/* SPDX-License-Identifier: BSD-3-Clause */

#include "carve.h"

#include "rows.h"

/* The order is that of the fields, with metadata and rows each in a region of its own. */
void xep_carve_received(const xep_shape_t *shape, xep_heap_layout_t *layout, uint32_t topk, uint64_t words,
                        xep_carve_t slot[XEP_REGIONS])
{
    xep_carve_t *metadata = &slot[XEP_REGION_METADATA];
    uint64_t rows = layout->recv_rows;
    layout->tokens = xep_carve_area(metadata, rows, sizeof(int32_t));
    layout->idx = xep_carve_area(metadata, rows, topk * sizeof(int64_t)); /* the wider of the index types */
    layout->weights = xep_carve_area(metadata, rows, topk * sizeof(float));
    layout->beside = xep_carve_area(metadata, rows, words * 4);
    layout->x = xep_carve_area(&slot[XEP_REGION_ROWS], rows, xep_row_stride((size_t)shape->hidden * shape->elem_bytes));
}

/* Lays a slot first from 0, to measure it, then from where slot 0 begins; the others follow at this stride. */
void xep_carve_slots(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t region[XEP_REGIONS],
                     xep_carve_slot_fn lay)
{
    xep_carve_t slot[XEP_REGIONS] = {0};
    lay(shape, layout, slot);
    for (int i = 0; i < XEP_REGIONS; i++) {
        uint64_t bytes = slot[i].end;
        region[i].overflow |= slot[i].overflow;
        if (slot[i].alignment > region[i].alignment) region[i].alignment = slot[i].alignment;
        slot[i] = (xep_carve_t){.end = xep_carve_offset(&region[i], shape->slots, bytes), .stride = bytes};
    }
    lay(shape, layout, slot);
}
