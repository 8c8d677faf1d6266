/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Combine by nodes: the outputs that the ranks of this node have for a token of an upstream rank go back as one row.
 * Sums are made in "sums", a batch for each upstream rank in turn, so that all cables are in use. Each quarter is used
 * again when the wire has sent it: when all of "sums" was used again at once, the wire idled meanwhile, and 4 hosts
 * took 1.45 times as long as their bytes.
 */
#include <string.h>

#include "normal_coded.h"
#include "normal_nodes.h"
#include "normal_steps.h"

/** Sums of one batch. */
typedef struct summing {
    const normal_t *mode;
    const xep_op_t *op;
    const normal_slot_t *slot;
    xep_weigh_fn weigh;
    xep_weigh_wide_fn widen;  /* likewise, to fp32 */
    const xep_codec_t *codec; /* NULL: sums are not encoded */
    const uint64_t *first;    /* [rows + 1] in the dests of the routing */
    uint64_t rows, entry;     /* so many, from this entry of "sums" on */
} summing_t;

/* ---- outputs of local ranks ---- */

const _Atomic uint64_t *normal_locals_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    const _Atomic uint64_t *word = xep_combine_ready_word(opaque, op, rank, value_p);
    /* a word that is always there: this step waits for the own node alone */
    if (mode->kit.base[rank] == NULL) *value_p = 0;
    return word;
}

const _Atomic uint64_t *normal_summed_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    uint32_t node = mode->kit.shape->node[rank];
    uint64_t rows =
        mode->nodes->who.forwarder[node] == rank ? normal_rows_to(normal_slot(mode, op->slot)->routing, node) : 0;
    *value_p = rows != 0 ? xep_rows_word(op->epoch, rows) : 0;
    return xep_kit_own(&mode->kit, normal_summed_offset(mode, op->slot, node));
}

/* Sums of a node come in the order of tokens: so the first one that is missing says how far its tokens are here. */
xep_status_t normal_find_summed(const normal_t *mode, xep_op_t *op, uint64_t *tokens_p)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    const normal_passing_t *passing = routing->passing;
    uint64_t tokens = routing->tokens;
    for (uint32_t n = 0; n < mode->kit.shape->nodes; n++) {
        const _Atomic uint64_t *word = xep_kit_own(&mode->kit, normal_summed_offset(mode, op->slot, n));
        uint64_t rows = normal_rows_to(routing, n);
        uint64_t summed = xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch);
        if (summed > rows)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "rank %u has summed too many rows: %llu (at most %llu)",
                                       mode->nodes->who.forwarder[n], (unsigned long long)summed,
                                       (unsigned long long)rows);
        if (summed == rows) continue;
        uint32_t missing = passing->tokens[passing->begin[n] + summed];
        if (missing < tokens) tokens = missing;
    }
    *tokens_p = tokens;
    return XEP_OK;
}

/* ---- sums ---- */

static const xep_codec_t *codec_of(const xep_op_t *op)
{
    return xep_kit_state(op)->casts ? &normal_state(op)->codec : NULL;
}

static size_t sum_stride(const normal_t *mode, const xep_op_t *op)
{
    return codec_of(op) != NULL ? codec_of(op)->stride : mode->layout.common.combine_stride;
}

/* Rounded once: from fp32 to the format; LogFMT is made of bf16. */
static void encode_sum(const summing_t *summing, void *out, const void **rows, size_t n, uint32_t thread)
{
    const xep_combine_args_t *args = summing->op->combine;
    char *sum = normal_thread_rows(summing->mode, thread);
    if (summing->codec->from == XEP_FP32) summing->widen((float *)(void *)sum, rows, n, args->hidden);
    else summing->weigh(sum, rows, NULL, n, 0, args->hidden);
    xep_codec_encode(summing->codec, out, sum);
}

static void sum_row(const summing_t *summing, uint64_t row, const void **rows, uint32_t thread)
{
    const normal_t *mode = summing->mode;
    const normal_dest_t *dests = summing->slot->routing->passing->dests;
    size_t n = 0;
    for (uint64_t d = summing->first[row]; d < summing->first[row + 1]; d++) {
        const normal_place_t *source = &summing->slot->traffic->sources[dests[d].rank];
        rows[n++] = source->x + dests[d].row * source->x_stride;
    }
    char *sums = xep_kit_own_area(&mode->kit, mode->layout.sums, summing->op->slot);
    char *out = sums + (summing->entry + row) * sum_stride(mode, summing->op);
    if (summing->codec != NULL) encode_sum(summing, out, rows, n, thread);
    else summing->weigh(out, rows, NULL, n, 0, summing->op->combine->hidden);
}

static void sum_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const summing_t *summing = arg;
    const normal_t *mode = summing->mode;
    const size_t first = (size_t)thread * (mode->layout.max_dests + 2);
    const normal_routing_t *routing = summing->slot->routing;
    const uint32_t topk = routing->topk;
    float *weights = (float *)(void *)xep_kit_own_area(&mode->kit, mode->layout.sum_weights, summing->op->slot);
    for (uint64_t i = summing->rows * thread / nthreads; i < summing->rows * (thread + 1) / nthreads; i++) {
        sum_row(summing, i, mode->rows + first, thread);
        if (normal_state(summing->op)->weighted)
            normal_sum_weights(weights + (summing->entry + i) * topk, topk, summing->slot->traffic->sources,
                               routing->passing->dests + summing->first[i], summing->first[i + 1] - summing->first[i]);
    }
    xep_stores_fence();
}

/* ---- what is sent ---- */

/* Encoded ones with what is between two of them, so that several are one put. */
static size_t sum_bytes(const xep_op_t *op)
{
    if (codec_of(op) != NULL) return codec_of(op)->stride;
    return xep_combine_row_bytes(op->combine);
}

/*
 * The sums of the batch, from "sums" into "returned" of the upstream rank; the weights beside them; and how many it has
 * then. "summed" counts the rows of this batch already, as sum_batch() has added them.
 */
static int batch_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                          xep_transfer_t *transfer)
{
    enum { ARRAYS = 2 };
    const normal_t *mode = opaque;
    const normal_layout_t *at = &mode->layout;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_returning_t *batch = normal_state(op)->returning;
    const uint64_t summed = slot->traffic->feeds[batch->feed].summed;
    const uint64_t first = slot->routing->passing->feeds[batch->feed].returned + summed - batch->rows;
    const uint32_t there = slot->from[rank].slot;
    const size_t weights = normal_state(op)->weighted ? slot->routing->topk * sizeof(float) : 0;
    const struct {
        xep_area_t from, to;
        size_t bytes, stride;
    } arrays[ARRAYS] = {{at->sums, at->returned, sum_bytes(op), sum_stride(mode, op)},
                        {at->sum_weights, at->returned_weights, weights, weights}};
    if (number > ARRAYS) return 0;
    *transfer = (xep_transfer_t){.signal = 1,
                                 .signal_offset = normal_summed_offset(mode, there, mode->nodes->who.node),
                                 .value = xep_rows_word(op->epoch, summed)};
    if (number == ARRAYS) return 1;
    const size_t stride = arrays[number].stride;
    *transfer = (xep_transfer_t){
        .src = xep_kit_own_area(&mode->kit, arrays[number].from, op->slot) + batch->entry * stride,
        .src_stride = stride,
        .rows = batch->rows,
        .bytes = arrays[number].bytes,
        .offset = xep_area_at(arrays[number].to, there) + first * stride,
        .stride = stride,
    };
    return 1;
}

/* ---- "sums" ---- */

static uint64_t entries(const normal_t *mode)
{
    return mode->kit.shape->upstreams * mode->kit.shape->feed_rows;
}

static uint64_t entries_of_quarter(const normal_t *mode)
{
    return (entries(mode) + NORMAL_SUM_QUARTERS - 1) / NORMAL_SUM_QUARTERS;
}

/* Room for a batch behind the last one: the rest of its quarter. Before one is begun the wire must have sent it. */
static xep_status_t find_room(const normal_t *mode, const xep_op_t *op, uint64_t *room_p)
{
    const normal_returning_t *batch = normal_state(op)->returning;
    uint64_t size = entries_of_quarter(mode), quarter = batch->next / size, end = (quarter + 1) * size;
    xep_wire_t *wire = mode->kit.env->wire;
    *room_p = (end < entries(mode) ? end : entries(mode)) - batch->next;
    return batch->next % size == 0 ? wire->ops->flush_to(wire, batch->marks[quarter]) : XEP_OK;
}

/* ---- batches ---- */

/* From where the wire has refused it; when nothing of the batch is left, the next upstream rank has its turn. */
static xep_status_t put_batch(const normal_t *mode, const xep_op_t *op)
{
    normal_returning_t *batch = normal_state(op)->returning;
    xep_wire_t *wire = mode->kit.env->wire;
    xep_status_t status = xep_send_to(&mode->kit, op, mode->nodes->who.upstream[batch->feed], batch_transfer);
    if (status != XEP_OK) return status;
    batch->marks[batch->entry / entries_of_quarter(mode)] = wire->ops->mark(wire);
    batch->next = (batch->entry + batch->rows) % entries(mode);
    batch->rows = 0;
    batch->feed = (batch->feed + 1) % mode->nodes->who.upstreams;
    return XEP_OK;
}

/* As many as are sent at once elsewhere, too: while the wire has one batch, the next one is summed. */
static xep_status_t sum_batch(normal_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_returning_t *batch = normal_state(op)->returning;
    normal_feed_t *feed = &slot->traffic->feeds[batch->feed];
    uint64_t rows = slot->routing->passing->feeds[batch->feed].rows - feed->summed, room;
    xep_status_t status = find_room(mode, op, &room);
    if (status != XEP_OK) return status;
    if (rows > room) rows = room;
    if (rows > NORMAL_BATCH_ROWS) rows = NORMAL_BATCH_ROWS;
    if (rows * sum_bytes(op) > XEP_PUT_BYTES) rows = XEP_PUT_BYTES / sum_bytes(op);
    /* a single row may be longer than what is sent at once */
    if (rows == 0) rows = 1;
    summing_t summing = {.mode = mode,
                         .op = op,
                         .slot = slot,
                         .weigh = xep_weigh_select(op->combine->dtype, env->simd, 0),
                         .codec = codec_of(op),
                         .widen = xep_weigh_select_wide(env->simd),
                         .first = normal_dest_first(mode, slot->routing, batch->feed, feed->summed),
                         .rows = rows,
                         .entry = batch->next};
    env->parallel(env, sum_rows, &summing);
    feed->summed += rows;
    batch->entry = batch->next;
    batch->rows = rows;
    return XEP_OK;
}

/* The upstream rank whose turn it is, or one behind it, that has rows whose sums are not made. 0: none has. */
static int find_feed(const normal_t *mode, const xep_op_t *op)
{
    const uint32_t upstreams = mode->nodes->who.upstreams;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_returning_t *batch = normal_state(op)->returning;
    for (uint32_t i = 0; i < upstreams; i++) {
        uint32_t feed = (batch->feed + i) % upstreams;
        if (slot->traffic->feeds[feed].summed == slot->routing->passing->feeds[feed].rows) continue;
        batch->feed = feed;
        return 1;
    }
    return 0;
}

/*
 * A rank without rows has no weights; its local ranks say whether there are any. Each node begins with the upstream
 * rank after its own node, so that not all send to the same node.
 */
static void begin_sums(const normal_t *mode, const xep_op_t *op)
{
    const normal_nodes_t *nodes = mode->nodes;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_returning_t *returning = &slot->traffic->returning;
    *returning = (normal_returning_t){0};
    for (uint32_t f = 0; f < nodes->who.upstreams; f++) slot->traffic->feeds[f].summed = 0;
    while (returning->feed < nodes->who.upstreams &&
           mode->kit.shape->node[nodes->who.upstream[returning->feed]] < nodes->who.node)
        returning->feed++;
    for (uint32_t p = 0; p < nodes->who.locals; p++) {
        slot->traffic->sources[p] = normal_outputs_at(mode, op, nodes->who.local[p], 0);
        if (xep_combine_offered(&mode->kit, op, nodes->who.local[p], XEP_OFFER_WEIGHTS) == 1)
            normal_state(op)->weighted = 1;
    }
    normal_state(op)->returning = returning;
}

xep_status_t normal_return_sums(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = XEP_OK;
    if (op->coming != 0) return XEP_INPROGRESS;
    if (normal_state(op)->returning == NULL) begin_sums(mode, op);
    const normal_returning_t *batch = normal_state(op)->returning;
    while (status == XEP_OK && (batch->rows != 0 || find_feed(mode, op))) {
        if (batch->rows == 0) status = sum_batch(mode, op);
        if (status == XEP_OK) status = put_batch(mode, op);
    }
    return status;
}
