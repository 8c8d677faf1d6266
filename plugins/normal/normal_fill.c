/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine, step 2: what others will read is copied to where they do. */
#include <string.h>

#include "normal_nodes.h"
#include "normal_pieces.h"

typedef struct fill {
    const normal_t *mode;
    const xep_op_t *op;
    xep_copy_fn copy;
} fill_t;

/** Rows of the caller's, and where the first of them goes. */
typedef struct rows {
    uint64_t begin, end;
    char *x, *weights;
} rows_t;

/* Weights that travel back lie beside the rows, for mapped readers to pull. */
static void fill_weights(const fill_t *fill, const rows_t *rows)
{
    const xep_combine_args_t *args = fill->op->combine;
    size_t bytes = normal_slot(fill->mode, fill->op->slot)->routing->topk * sizeof(float);
    char *to = rows->weights;
    for (uint64_t row = rows->begin; row < rows->end; row++, to += bytes)
        memcpy(to, (const char *)args->topk_weights + row * args->topk_weights_stride, bytes);
}

/* While a row is copied the next one is fetched: strides of the user's memory need not be those of ours. */
static void fill_rows(const fill_t *fill, const rows_t *rows)
{
    size_t bytes = xep_combine_row_bytes(fill->op->combine), from_stride;
    const char *from = xep_combine_outputs(&fill->mode->kit, fill->op, &from_stride);
    char *to = rows->x;
    for (uint64_t row = rows->begin; row < rows->end; row++, to += fill->mode->layout.common.combine_stride) {
        const char *src = from + row * from_stride;
        fill->copy(to, src, bytes, row + 1 < rows->end ? src + from_stride : src);
    }
}

/*
 * Whether rows for this reader are copied: another rank reads them here, itself or the one that sums them for it; or,
 * of one of several pieces, they are stored in its memory.
 */
static int is_filled(const normal_t *mode, const normal_slot_t *slot, uint32_t reader)
{
    uint32_t self = mode->kit.shape->rank;
    if (mode->kit.base[reader] != NULL) return reader != self || slot->pieces > 1;
    return mode->nodes != NULL && mode->nodes->who.through[reader] != self;
}

/* Row "row" for reader, the first of which is shown at range->at, in the own input; of one of several pieces, there. */
static void find_filled(const normal_t *mode, const xep_op_t *op, uint32_t reader, const normal_range_t *range,
                        rows_t *rows)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_layout_t *at = &mode->layout;
    const int kept = slot->pieces > 1;
    char *heap = kept ? mode->kit.base[reader] : mode->kit.own;
    uint32_t there = kept ? slot->from[reader].slot : op->slot;
    uint64_t row = rows->begin;
    if (kept) row += normal_returned_begin(mode, slot, reader, mode->kit.shape->rank) + range->first - range->at;
    rows->x = heap + xep_area_at(kept ? at->returned : at->common.input, there) + row * at->common.combine_stride;
    rows->weights = heap + xep_area_at(kept ? at->returned_weights : at->input_weights, there) +
                    row * slot->routing->topk * sizeof(float);
}

/* A thread's share of the rows received, without those nobody pulls. */
static void fill_input(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const normal_t *mode = fill->mode;
    const normal_slot_t *slot = normal_slot(mode, fill->op->slot);
    uint64_t rows = fill->op->recv->rows;
    uint64_t begin = rows * thread / nthreads, end = rows * (thread + 1) / nthreads;

    for (uint32_t i = 0; i < fill->op->with.count; i++) {
        const uint32_t r = fill->op->with.rank[i];
        const normal_range_t range = normal_shows(mode, slot, r);
        uint64_t last = range.at + range.rows;
        rows_t share = {.begin = range.at > begin ? range.at : begin, .end = last < end ? last : end};
        if (share.begin >= share.end || !is_filled(mode, slot, r)) continue;
        find_filled(mode, fill->op, r, &range, &share);
        if (fill->op->combine->x != NULL || slot->pieces > 1) fill_rows(fill, &share);
        if (fill->op->combine->topk_weights != NULL) fill_weights(fill, &share);
    }
    xep_stores_fence();
}

/* Whether some rank pulls rows from this one. */
static int is_pulled_by_any(const normal_t *mode, const normal_slot_t *slot)
{
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        if (is_filled(mode, slot, r)) return 1;
    return 0;
}

/* Step 2: without x and weights of the user all is in the input already, and nothing is copied, but to be kept. */
xep_status_t normal_fill(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    const xep_combine_args_t *args = op->combine;
    if (op->coming != 0 && (mode->nodes != NULL || is_pulled_by_any(mode, normal_slot(mode, op->slot))))
        return XEP_INPROGRESS;
    uint64_t bytes = op->recv->rows * xep_combine_row_bytes(args);
    fill_t fill = {mode, op, xep_copy_for(env, bytes)};
    const int kept = normal_slot(mode, op->slot)->pieces > 1;
    if (kept || args->x != NULL || args->topk_weights != NULL) env->parallel(env, fill_input, &fill);
    return XEP_OK;
}
