/* SPDX-License-Identifier: BSD-3-Clause */

/* Where in a heap what passes lies, and how far it has come. */
#include "normal_nodes.h"

/* ---- the layout ---- */

void normal_lay_rings(const xep_shape_t *shape, normal_layout_t *at, xep_carve_t *metadata, xep_carve_t *rows)
{
    const uint64_t passing = shape->upstreams * shape->feed_rows;
    at->feed_metadata = xep_carve_area(metadata, passing, normal_most_metadata(shape));
    at->sum_weights = xep_carve_area(metadata, passing, shape->topk * sizeof(float));
    at->feed_rows = xep_carve_area(rows, passing, xep_row_stride((size_t)shape->hidden * shape->elem_bytes));
    at->sums = xep_carve_area(rows, passing, at->returned.bytes);
}

void normal_lay_words(const xep_shape_t *shape, normal_layout_t *at, xep_carve_t *control)
{
    at->passed = xep_carve_offset(control, (uint64_t)shape->slots * shape->upstreams, sizeof(uint64_t));
    at->taken = xep_carve_offset(control, (uint64_t)shape->slots * shape->nodes, sizeof(uint64_t));
    at->summed = xep_carve_offset(control, (uint64_t)shape->slots * shape->nodes, sizeof(uint64_t));
}

uint64_t normal_feed_record_bytes(const xep_shape_t *shape)
{
    return xep_row_stride(sizeof(normal_record_t) + sizeof(uint32_t) * (shape->nranks + (uint64_t)shape->experts) +
                          sizeof(normal_feed_tail_t));
}

/* ---- places ---- */

uint64_t normal_passed_offset(const normal_t *mode, uint32_t index, uint32_t line)
{
    return mode->layout.passed + ((uint64_t)index * mode->kit.shape->upstreams + line) * sizeof(uint64_t);
}

/* An entry has area.bytes as the heap was laid; stride is that of this operation's rows, which may be shorter. */
uint64_t normal_ring_offset(const normal_t *mode, xep_area_t area, uint32_t index, uint32_t line, uint64_t row,
                            size_t stride)
{
    uint64_t room = mode->kit.shape->feed_rows;
    return xep_area_at(area, index) + line * room * area.bytes + row % room * stride;
}

uint64_t normal_taken_offset(const normal_t *mode, uint32_t index, uint32_t node)
{
    return mode->layout.taken + ((uint64_t)index * mode->kit.shape->nodes + node) * sizeof(uint64_t);
}

uint64_t normal_summed_offset(const normal_t *mode, uint32_t slot, uint32_t node)
{
    return mode->layout.summed + ((uint64_t)slot * mode->kit.shape->nodes + node) * sizeof(uint64_t);
}
