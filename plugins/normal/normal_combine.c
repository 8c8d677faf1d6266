/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: steps 1 to 6 of the protocol in normal.h. */
#include <string.h>

#include "normal.h"

static size_t row_bytes(const xep_combine_args_t *args)
{
    return args->hidden * xep_elem_bytes(args->dtype);
}

static const char *own_input(const normal_t *mode, const xep_op_t *op, uint64_t area)
{
    return (const char *)mode->env->heap + normal_area(mode, op->slot, area);
}

/* Where this rank's expert outputs are, to be put or summed: with the user, or in the slot. */
static const char *outputs(const normal_t *mode, const xep_op_t *op, size_t *stride_p)
{
    *stride_p = op->combine->x ? op->combine->x_stride : mode->layout.combine_stride;
    return op->combine->x ? op->combine->x : own_input(mode, op, mode->layout.input);
}

/* Bytes this rank writes in the operation, about: rows in, sums out. */
static int is_streaming(const normal_t *mode, const xep_op_t *op)
{
    const normal_routing_t *routing = mode->slots[op->slot].routing;
    uint64_t rows = routing->tokens + (op->combine->x ? op->recv->rows : 0);
    return rows * row_bytes(op->combine) >= mode->env->stream_bytes;
}

/* ---- step 2: what others will read ---- */

typedef struct fill {
    const normal_t *mode;
    const xep_op_t *op;
    xep_copy_fn copy;
} fill_t;

static void weights_fill(const fill_t *fill, uint64_t begin, uint64_t end)
{
    const xep_combine_args_t *args = fill->op->combine;
    size_t bytes = fill->mode->slots[fill->op->slot].routing->topk * sizeof(float);
    char *to = (char *)fill->mode->env->heap + normal_area(fill->mode, fill->op->slot, fill->mode->layout.input_weights);
    for (uint64_t row = begin; row < end; row++)
        memcpy(to + row * bytes, (const char *)args->topk_weights + row * args->topk_weights_stride, bytes);
}

static void rows_fill(const fill_t *fill, uint64_t begin, uint64_t end)
{
    const xep_combine_args_t *args = fill->op->combine;
    size_t bytes = row_bytes(args), stride = fill->mode->layout.combine_stride;
    char *to = (char *)fill->mode->env->heap + normal_area(fill->mode, fill->op->slot, fill->mode->layout.input);
    const char *from = args->x;
    for (uint64_t row = begin; row < end; row++) {
        const char *src = from + row * args->x_stride;
        fill->copy(to + row * stride, src, bytes, row + 1 < end ? src + args->x_stride : src);
    }
}

/* A thread's share of the rows received, without those nobody pulls. */
static void input_fill(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const normal_t *mode = fill->mode;
    const normal_slot_t *slot = &mode->slots[fill->op->slot];
    const uint64_t *src_begin = slot->routing->src_begin;
    uint64_t rows = src_begin[mode->shape->nranks];
    uint64_t begin = rows * thread / nthreads, end = rows * (thread + 1) / nthreads;

    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        uint64_t first = src_begin[r] > begin ? src_begin[r] : begin;
        uint64_t last = src_begin[r + 1] < end ? src_begin[r + 1] : end;
        if (first >= last || r == mode->shape->rank || !slot->from[r].pulls) continue;
        if (fill->op->combine->x) rows_fill(fill, first, last);
        if (fill->op->combine->topk_weights) weights_fill(fill, first, last);
    }
    xep_stores_fence();
}

/* ---- steps 2 and 3 for a reader: rows and weights if it does not pull, the signal if it is not mapped ---- */

static uint64_t ready_offset(const normal_t *mode, const xep_op_t *op)
{
    return normal_mail_offset(mode, op->slot, mode->shape->rank) + offsetof(normal_mail_t, ready);
}

static uint64_t offer_offset(const normal_t *mode, const xep_op_t *op)
{
    return normal_mail_offset(mode, op->slot, mode->shape->rank) + offsetof(normal_mail_t, offer);
}

static void returned_part(const normal_t *mode, const xep_op_t *op, uint32_t rank, int weights, normal_part_t *part)
{
    const xep_combine_args_t *args = op->combine;
    const normal_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = slot->routing;
    uint64_t begin = routing->src_begin[rank], there = normal_returned_begin(mode, routing, rank, mode->shape->rank);
    size_t weights_bytes = routing->topk * sizeof(float), src_stride = args->topk_weights_stride;
    const char *src = (const char *)args->topk_weights;

    if (!weights) src = outputs(mode, op, &src_stride);
    *part = (normal_part_t){
        .src = src + (src ? begin * src_stride : 0),
        .src_stride = src_stride,
        .rows = src ? routing->src_begin[rank + 1] - begin : 0,
        .bytes = weights ? weights_bytes : row_bytes(args),
        .stride = weights ? weights_bytes : mode->layout.combine_stride,
    };
    part->offset = normal_area(mode, slot->from[rank].slot, weights ? mode->layout.returned_weights : mode->layout.returned) +
                   there * part->stride;
}

static void offer_part(const normal_t *mode, const xep_op_t *op, normal_part_t *part)
{
    *part = (normal_part_t){
        .src = (const char *)&mode->slots[op->slot].offer,
        .rows = 1,
        .bytes = sizeof(normal_offer_t),
        .offset = offer_offset(mode, op),
    };
}

static int combine_part(normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number, normal_part_t *part)
{
    int pulls = mode->slots[op->slot].from[rank].pulls != 0;
    if (mode->base[rank] && pulls) return 0; /* told by mapped_tell() */
    if (pulls) number += 2;
    switch (number) {
    case 0:
    case 1:
        returned_part(mode, op, rank, number == 1, part);
        return 1;
    case 2:
        offer_part(mode, op, part);
        return 1;
    case 3:
        *part = (normal_part_t){.signal = 1, .offset = ready_offset(mode, op), .value = op->epoch};
        return 1;
    default:
        return 0;
    }
}

static void mapped_tell(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->shape;
    const normal_slot_t *slot = &mode->slots[op->slot];
    for (uint32_t i = 1; i <= shape->nranks; i++) {
        uint32_t rank = (shape->rank + i) % shape->nranks;
        if (!mode->base[rank] || !slot->from[rank].pulls) continue;
        *(normal_offer_t *)(mode->base[rank] + offer_offset(mode, op)) = slot->offer;
        normal_signal(mode, rank, ready_offset(mode, op), op->epoch);
    }
    normal_state(op)->told = 1;
}

/* ---- step 5 ---- */

typedef struct sum {
    const normal_t *mode;
    const xep_op_t *op;
    xep_reduce_fn reduce;
} sum_t;

static void sources_set(normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_layout_t *at = &mode->layout;
    normal_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = slot->routing;
    size_t weights = routing->topk * sizeof(float), stride = at->combine_stride;

    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        const char *there = mode->base[r] ? mode->base[r] + normal_area(mode, slot->from[r].slot, 0) : NULL;
        uint64_t row = there ? routing->place[r] : normal_returned_begin(mode, routing, mode->shape->rank, r);
        slot->sources[r] = (normal_source_t){
            .x = (there ? there + at->input : own_input(mode, op, at->returned)) + row * stride,
            .x_stride = stride,
            .weights = (there ? there + at->input_weights : own_input(mode, op, at->returned_weights)) + row * weights,
            .weights_stride = weights,
        };
    }
    normal_source_t *self = &slot->sources[mode->shape->rank];
    uint64_t row = routing->place[mode->shape->rank];
    if (args->x) *self = (normal_source_t){(const char *)args->x + row * args->x_stride, args->x_stride, self->weights, weights};
    if (args->topk_weights) {
        self->weights = (const char *)args->topk_weights + row * args->topk_weights_stride;
        self->weights_stride = args->topk_weights_stride;
    }
}

static void weights_sum(const sum_t *sum, uint64_t token)
{
    const xep_combine_args_t *args = sum->op->combine;
    const normal_slot_t *slot = &sum->mode->slots[sum->op->slot];
    const normal_routing_t *routing = slot->routing;
    float *out = (float *)((char *)args->out_weights + token * args->out_weights_stride);

    for (uint32_t k = 0; k < routing->topk; k++) {
        float total = 0;
        for (uint64_t i = routing->first[token]; i < routing->first[token + 1]; i++) {
            const normal_source_t *source = &slot->sources[routing->dests[i].rank];
            float weight;
            memcpy(&weight, source->weights + routing->dests[i].row * source->weights_stride + k * sizeof weight,
                   sizeof weight);
            total += weight;
        }
        memcpy(&out[k], &total, sizeof total);
    }
}

static void token_sum(const sum_t *sum, uint64_t token, const void **rows)
{
    const xep_combine_args_t *args = sum->op->combine;
    const normal_slot_t *slot = &sum->mode->slots[sum->op->slot];
    const normal_routing_t *routing = slot->routing;
    size_t n = 0;

    for (int b = 0; b < 2; b++)
        if (args->bias[b]) rows[n++] = (const char *)args->bias[b] + token * args->bias_stride[b];
    for (uint64_t i = routing->first[token]; i < routing->first[token + 1]; i++) {
        const normal_source_t *source = &slot->sources[routing->dests[i].rank];
        rows[n++] = source->x + routing->dests[i].row * source->x_stride;
    }
    sum->reduce((char *)args->out + token * args->out_stride, rows, n, args->hidden);
}

static void tokens_sum(void *arg, uint32_t thread, uint32_t nthreads)
{
    const sum_t *sum = arg;
    const normal_t *mode = sum->mode;
    uint64_t tokens = mode->slots[sum->op->slot].routing->tokens;
    const void **rows = mode->rows + (size_t)thread * (mode->max_dests + 2);
    for (uint64_t t = tokens * thread / nthreads; t < tokens * (thread + 1) / nthreads; t++) {
        token_sum(sum, t, rows);
        if (sum->op->combine->out_weights) weights_sum(sum, t);
    }
    xep_stores_fence();
}

/* ---- steps ---- */

static const _Atomic uint64_t *read_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = mode->slots[op->slot].combined;
    return &normal_mail(mode, op->slot, rank)->read;
}

static const _Atomic uint64_t *ready_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = op->epoch;
    return &normal_mail(mode, mode->slots[op->slot].from[rank].slot, rank)->ready;
}

static void offer_make(normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    normal_weights_t weights = op->recv->rows ? NORMAL_NO_WEIGHTS : NORMAL_ANY_WEIGHTS;
    if (args->topk_weights || args->out_weights) weights = NORMAL_WEIGHTS;
    mode->slots[op->slot].offer = (normal_offer_t){
        .epoch = op->epoch,
        .params = {[NORMAL_DTYPE] = args->dtype, [NORMAL_HIDDEN] = args->hidden, [NORMAL_HAS_WEIGHTS] = weights},
    };
}

static xep_status_t fill(normal_t *mode, xep_op_t *op)
{
    fill_t fill = {mode, op, xep_copy_select(mode->env->simd, xep_streams_to_others(mode->env))};
    offer_make(mode, op);
    mode->slots[op->slot].combined = op->epoch;
    if (op->combine->x || op->combine->topk_weights) mode->env->parallel(mode->env, input_fill, &fill);
    return XEP_OK;
}

static xep_status_t offer(normal_t *mode, xep_op_t *op)
{
    if (!normal_state(op)->told) mapped_tell(mode, op);
    return normal_put_parts(mode, op, combine_part);
}

static xep_status_t sum(normal_t *mode, xep_op_t *op)
{
    sum_t sum = {mode, op, xep_reduce_select(op->combine->dtype, mode->env->simd, is_streaming(mode, op))};
    if (normal_state(op)->verdict != XEP_OK) return XEP_OK;
    sources_set(mode, op);
    mode->env->parallel(mode->env, tokens_sum, &sum);
    return XEP_OK;
}

/* Only signals: the cursor's part is the one of this rank. */
static int read_part(normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number, normal_part_t *part)
{
    uint32_t index = mode->slots[op->slot].from[rank].slot;
    uint64_t offset = normal_mail_offset(mode, index, mode->shape->rank) + offsetof(normal_mail_t, read);
    *part = (normal_part_t){.signal = 1, .offset = offset, .value = op->epoch};
    return number == 0;
}

static xep_status_t thank(normal_t *mode, xep_op_t *op)
{
    return normal_put_parts(mode, op, read_part);
}

const normal_step_t normal_combine_steps[] = {
    {"readers of the last combine", normal_wait, read_word},
    {"input", fill, NULL},
    {"rows to go out", offer, NULL},
    {"offers", normal_wait, ready_word},
    {"agreement", normal_offers_take, NULL},
    {"sums", sum, NULL},
    {"thanks to go out", thank, NULL},
    {"the wire", normal_flush, NULL},
    {NULL, NULL, NULL},
};

xep_status_t normal_combine(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const char *what = NULL;
    if (op->combine->flags & XEP_COMBINE_LOGFMT) what = "send rows as LogFMT";
    if (op->combine->weights) what = "apply weights in combine";
    if (what) return mode->env->fail(mode->env, op, XEP_ERR_UNSUPPORTED, "the mode normal does not %s", what);
    normal_progress(opaque, op); /* as far as it goes; what comes of it is told by the next */
    return XEP_OK;
}
