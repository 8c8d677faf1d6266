/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Combine by nodes: what the ranks of this node have for the tokens of a feeder goes back as one row. Sums are made in
 * "sums", as many as fit; it is used again from its begin when the wire has sent what is there.
 */
#include <string.h>

#include "normal_nodes.h"

/** Sums of one piece, whose terms are listed. */
typedef struct summing {
    const normal_t *mode;
    const xep_op_t *op;
    xep_weigh_fn weigh;
    xep_weigh_mixed_fn widen; /* instead, where sums are fp32 and rows are not */
    uint64_t rows, sum;       /* so many, from this row of "sums" on */
} summing_t;

/* ---- outputs of mates ---- */

const _Atomic uint64_t *normal_mates_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    const _Atomic uint64_t *word = xep_combine_ready_word(opaque, op, rank, value_p);
    if (mode->kit.base[rank] == NULL) *value_p = 0;
    return word;
}

static uint64_t summed_offset(const normal_t *mode, uint32_t slot, uint32_t node)
{
    return mode->layout.summed + ((uint64_t)slot * mode->kit.shape->nodes + node) * sizeof(uint64_t);
}

const _Atomic uint64_t *normal_summed_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    uint32_t node = mode->kit.shape->node[rank];
    const uint64_t *begin = normal_slot(mode, op->slot)->routing->passing->begin;
    *value_p = mode->nodes->who.forwarder[node] == rank && begin[node] != begin[node + 1] ? op->epoch : 0;
    return xep_kit_own(&mode->kit, summed_offset(mode, op->slot, node));
}

/* Of this rank where its user has them; of others in the input of the slot that they chose. */
static void fill_mates(const normal_t *mode, const xep_op_t *op)
{
    const normal_nodes_t *nodes = mode->nodes;
    const normal_layout_t *at = &mode->layout;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const xep_combine_args_t *args = op->combine;
    for (uint32_t p = 0; p < nodes->who.mates; p++) {
        const char *heap = mode->kit.base[nodes->who.mate[p]];
        uint32_t there = *xep_combine_slot_there(&mode->kit, op->slot, nodes->who.mate[p]);
        normal_source_t *source = &nodes->mate_sources[p];
        *source = (normal_source_t){.x = heap + xep_area_at(at->common.input, there),
                                    .x_stride = at->common.combine_stride,
                                    .weights = heap + xep_area_at(at->input_weights, there),
                                    .weights_stride = slot->routing->topk * sizeof(float)};
        if (p != nodes->who.place) continue;
        source->x = xep_combine_outputs(&mode->kit, op, &source->x_stride);
        if (args->topk_weights == NULL) continue;
        source->weights = (const char *)args->topk_weights;
        source->weights_stride = args->topk_weights_stride;
    }
}

/* ---- sums ---- */

static void sum_row(const summing_t *summing, uint64_t row, const void **rows, const uint8_t *none_wide)
{
    const normal_t *mode = summing->mode;
    const normal_nodes_t *nodes = mode->nodes;
    size_t n = 0;
    for (uint32_t d = nodes->piece.first[row]; d < nodes->piece.first[row + 1]; d++) {
        const normal_source_t *source = &nodes->mate_sources[nodes->piece.dests[d].rank];
        rows[n++] = source->x + nodes->piece.dests[d].row * source->x_stride;
    }
    char *sums = xep_kit_own_area(&mode->kit, mode->layout.sums, summing->op->slot);
    char *out = sums + (summing->sum + row) * mode->layout.returned_stride;
    if (summing->widen != NULL) summing->widen(out, rows, none_wide, n, summing->op->combine->hidden);
    else summing->weigh(out, rows, NULL, n, summing->op->combine->hidden);
}

/* Each selection by itself, mates ascending; not rounded. */
static void sum_weights(const summing_t *summing, uint64_t row)
{
    const normal_t *mode = summing->mode;
    const normal_nodes_t *nodes = mode->nodes;
    uint32_t topk = normal_slot(mode, summing->op->slot)->routing->topk;
    char *sums = xep_kit_own_area(&mode->kit, mode->layout.sum_weights, summing->op->slot);
    float *out = (float *)(void *)sums + (summing->sum + row) * topk;
    for (uint32_t k = 0; k < topk; k++) {
        out[k] = 0;
        for (uint32_t d = nodes->piece.first[row]; d < nodes->piece.first[row + 1]; d++) {
            const normal_source_t *source = &nodes->mate_sources[nodes->piece.dests[d].rank];
            float weight;
            memcpy(&weight, source->weights + nodes->piece.dests[d].row * source->weights_stride + k * sizeof weight,
                   sizeof weight);
            out[k] += weight;
        }
    }
}

static void sum_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const summing_t *summing = arg;
    const normal_t *mode = summing->mode;
    const size_t first = (size_t)thread * (mode->layout.max_dests + 2);
    if (summing->widen != NULL) memset(mode->wide + first, 0, mode->layout.max_dests);
    for (uint64_t i = summing->rows * thread / nthreads; i < summing->rows * (thread + 1) / nthreads; i++) {
        sum_row(summing, i, mode->rows + first, mode->wide + first);
        if (normal_state(summing->op)->weighted) sum_weights(summing, i);
    }
    xep_stores_fence();
}

/* ---- puts ---- */

/** An array of sums, and where it goes in the heap of the feeder. */
typedef struct returned {
    xep_area_t from, to;
    size_t bytes, stride;
} returned_t;

/*
 * What is summed and not yet under way, from *put_p on. Rows that lie together on both sides are one put, if there is
 * nothing between them.
 */
static xep_status_t put_array(const normal_t *mode, const xep_op_t *op, uint32_t feed, const returned_t *array,
                              uint64_t *put_p)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_state_t *state = normal_state(op);
    uint32_t rank = mode->nodes->who.feeder[feed], there = slot->from[rank].slot;
    uint64_t first = slot->routing->passing->feeds[feed].returned + state->feed_row - state->sum_row;
    const char *from = xep_kit_own_area(&mode->kit, array->from, op->slot);
    xep_wire_t *wire = mode->kit.env->wire;
    while (*put_p < state->sum_row) {
        uint64_t rows = array->bytes == array->stride ? state->sum_row - *put_p : 1;
        xep_status_t status =
            wire->ops->put(wire, rank, xep_area_at(array->to, there) + (first + *put_p) * array->stride,
                           from + *put_p * array->stride, (rows - 1) * array->stride + array->bytes);
        if (status != XEP_OK) return status;
        *put_p += rows;
    }
    return XEP_OK;
}

/* Each from where the wire has refused it. */
static xep_status_t put_sums(const normal_t *mode, const xep_op_t *op, uint32_t feed)
{
    const normal_layout_t *at = &mode->layout;
    normal_state_t *state = normal_state(op);
    size_t weights = normal_slot(mode, op->slot)->routing->topk * sizeof(float);
    size_t bytes =
        normal_sums_are_wide(mode, op) ? op->combine->hidden * sizeof(float) : xep_combine_row_bytes(op->combine);
    const returned_t rows = {at->sums, at->returned, bytes, at->returned_stride};
    const returned_t beside = {at->sum_weights, at->returned_weights, weights, weights};
    xep_status_t status = put_array(mode, op, feed, &rows, &state->sums_put);
    return status == XEP_OK && state->weighted ? put_array(mode, op, feed, &beside, &state->weights_put) : status;
}

/* Room for more sums: behind the last one, or from the begin on, once nobody reads there. */
static xep_status_t find_room(const normal_t *mode, xep_op_t *op, uint64_t *room_p)
{
    normal_state_t *state = normal_state(op);
    uint64_t most = mode->kit.shape->feeders * mode->kit.shape->feed_rows;
    if (state->sum_row == most) {
        xep_wire_t *wire = mode->kit.env->wire;
        xep_status_t status = wire->ops->flush(wire);
        if (status != XEP_OK) return status;
        state->sum_row = state->sums_put = state->weights_put = 0;
    }
    *room_p = most - state->sum_row;
    return XEP_OK;
}

static xep_status_t return_piece(normal_t *mode, xep_op_t *op, uint32_t feed)
{
    const xep_env_t *env = mode->kit.env;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_state_t *state = normal_state(op);
    uint64_t rows = slot->routing->passing->feeds[feed].rows - state->feed_row, room;
    xep_status_t status = find_room(mode, op, &room);
    if (status != XEP_OK) return status;
    if (rows > room) rows = room;
    if (rows > NORMAL_PIECE_ROWS) rows = NORMAL_PIECE_ROWS;
    summing_t summing = {.mode = mode,
                         .op = op,
                         .weigh = xep_weigh_select(op->combine->dtype, env->simd, 0),
                         .widen = normal_sums_are_wide(mode, op)
                                      ? xep_weigh_select_mixed(op->combine->dtype, 1, env->simd)
                                      : NULL,
                         .rows = rows,
                         .sum = state->sum_row};
    normal_list_rows(mode, slot, feed, state->feed_row, rows);
    env->parallel(env, sum_rows, &summing);
    state->feed_row += rows;
    state->sum_row += rows;
    return put_sums(mode, op, feed);
}

/* The wire delivers it behind the sums. */
static xep_status_t tell_summed(const normal_t *mode, const xep_op_t *op, uint32_t feed)
{
    xep_wire_t *wire = mode->kit.env->wire;
    uint32_t rank = mode->nodes->who.feeder[feed], there = normal_slot(mode, op->slot)->from[rank].slot;
    return wire->ops->put_signal(wire, rank, 0, NULL, 0, summed_offset(mode, there, mode->nodes->who.node), op->epoch);
}

/* A rank without rows has no weights to give; whether there are any its mates say. */
static void begin_sums(const normal_t *mode, const xep_op_t *op)
{
    const normal_nodes_t *nodes = mode->nodes;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    memset(slot->traffic->next, 0, (size_t)nodes->who.feeders * nodes->who.mates * sizeof *slot->traffic->next);
    for (uint32_t p = 0; p < nodes->who.mates; p++)
        if (xep_combine_offered(&mode->kit, op, nodes->who.mate[p], XEP_OFFER_WEIGHTS) == 1)
            normal_state(op)->weighted = 1;
}

xep_status_t normal_return_sums(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const normal_nodes_t *nodes = mode->nodes;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_state_t *state = normal_state(op);
    xep_status_t status = XEP_OK;
    fill_mates(mode, op);
    if (state->feed == 0 && state->feed_row == 0) begin_sums(mode, op);
    for (; state->feed < nodes->who.feeders; state->feed++, state->feed_row = 0) {
        uint64_t rows = slot->routing->passing->feeds[state->feed].rows;
        status = put_sums(mode, op, state->feed);
        while (status == XEP_OK && state->feed_row < rows) status = return_piece(mode, op, state->feed);
        if (status == XEP_OK && rows != 0) status = tell_summed(mode, op, state->feed);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}
