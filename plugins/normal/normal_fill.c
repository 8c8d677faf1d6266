/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine, step 2: copies outputs to where others read them. */
#include <string.h>

#include "normal_steps.h"

typedef struct fill {
    const normal_t *mode;
    const xep_op_t *op;
    normal_filled_fn find;
    xep_copy_fn copy;
} fill_t;

/* Weights that travel back lie beside the rows, for mapped readers to pull. */
static void fill_weights(const fill_t *fill, const normal_place_t *to, uint64_t begin, uint64_t end)
{
    const xep_combine_args_t *args = fill->op->combine;
    for (uint64_t row = begin; row < end; row++)
        memcpy(to->weights + (row - begin) * to->weights_stride,
               (const char *)args->topk_weights + row * args->topk_weights_stride, to->weights_stride);
}

/*
 * Without x of the user they are in the input already. While a row is copied the next one is fetched, as the user's
 * rows may have any stride.
 */
static void fill_rows(const fill_t *fill, const normal_place_t *to, uint64_t begin, uint64_t end)
{
    size_t bytes = xep_combine_row_bytes(fill->op->combine), stride;
    const char *from = xep_combine_outputs(&fill->mode->kit, fill->op, &stride) + begin * stride;
    if (from == to->x) return;
    for (uint64_t i = 0; i < end - begin; i++, from += stride)
        fill->copy(to->x + i * to->x_stride, from, bytes, begin + i + 1 < end ? from + stride : from);
}

/* Copies a thread's share of the received rows, without those that no rank pulls. */
static void fill_input(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const normal_t *mode = fill->mode;
    const normal_slot_t *slot = normal_slot(mode, fill->op->slot);
    uint64_t rows = fill->op->recv->rows;
    uint64_t first = rows * thread / nthreads, last = rows * (thread + 1) / nthreads;

    for (uint32_t i = 0; i < fill->op->with.count; i++) {
        const uint32_t r = fill->op->with.rank[i];
        const normal_range_t range = normal_shows(mode, slot, r);
        uint64_t begin = range.at > first ? range.at : first, end = range.at + range.rows;
        normal_place_t to;
        if (end > last) end = last;
        if (begin >= end || !fill->find(mode, fill->op, r, &range, &to)) continue;
        to.x += (begin - range.at) * to.x_stride;
        to.weights += (begin - range.at) * to.weights_stride;
        fill_rows(fill, &to, begin, end);
        if (fill->op->combine->topk_weights != NULL) fill_weights(fill, &to, begin, end);
    }
    xep_stores_fence();
}

void normal_fill_all(normal_t *mode, const xep_op_t *op, normal_filled_fn find)
{
    const xep_env_t *env = mode->kit.env;
    fill_t fill = {mode, op, find, xep_copy_for(env, op->recv->rows * xep_combine_row_bytes(op->combine))};
    env->parallel(env, fill_input, &fill);
}

/* Own outputs are read where the user has them. */
static int find_input(const normal_t *mode, const xep_op_t *op, uint32_t reader, const normal_range_t *range,
                      normal_place_t *place)
{
    if (!mode->kit.pulls[reader]) return 0;
    *place = normal_input_place(mode, mode->kit.own, op->slot, normal_slot(mode, op->slot)->routing->topk, range->at);
    return 1;
}

/* Without x and weights of the user all is in the input already. */
xep_status_t normal_fill(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (op->coming != 0 && mode->kit.is_pulled) return XEP_INPROGRESS;
    if (op->combine->x != NULL || op->combine->topk_weights != NULL) normal_fill_all(mode, op, find_input);
    return XEP_OK;
}
