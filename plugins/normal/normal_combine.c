/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: steps 1 to 6 of the protocol in normal.h. */
#include <string.h>

#include "normal_grants.h"
#include "normal_nodes.h"
#include "normal_pieces.h"

/* What is summed takes the room that the sums would have in the caches. */
static int is_streaming(const normal_t *mode, const xep_op_t *op)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    uint64_t rows = routing->first[routing->tokens] + routing->tokens;
    return rows * xep_combine_row_bytes(op->combine) >= mode->kit.env->stream_bytes;
}

/* ---- step 3, for a reader that maps this rank ---- */

/* A reader that maps this rank does not know which gaps were closed here. */
static void store_offer(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    if (mode->grants)
        xep_combine_store_begin(&mode->kit, op, rank, normal_slot(mode, op->slot)->routing->src_begin[rank]);
    xep_combine_store_offer(opaque, op, rank);
}

/* ---- steps 2 and 3 for a reader that is not mapped: rows, weights, the offer ---- */

/* Rows, or weights, of one reader: they are neighbours here, by source, and there, in its area "returned". */
void normal_returned_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t weights,
                              xep_transfer_t *transfer)
{
    const xep_combine_args_t *args = op->combine;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    const normal_range_t range = normal_shows(mode, slot, rank);
    uint64_t there = normal_returned_begin(mode, slot, rank, mode->kit.shape->rank) + range.first;
    size_t weights_bytes = routing->topk * sizeof(float), src_stride = args->topk_weights_stride;
    const char *src = (const char *)args->topk_weights;

    const uint64_t end = range.at + range.rows, here = op->recv->rows - op->coming;

    if (!weights) src = xep_combine_outputs(&mode->kit, op, &src_stride);
    *transfer = (xep_transfer_t){
        .src = src + (src != NULL ? range.at * src_stride : 0),
        .src_stride = src_stride,
        .rows = src != NULL ? range.rows : 0,
        /*
         * rows of outputs come in order, and so those that are missing are at the end of all: of this range what is
         * behind "here"; weights are here from the beginning
         */
        .coming = src == NULL || weights || here >= end ? 0
                  : here < range.at                     ? range.rows
                                                        : end - here,
        .bytes = weights ? weights_bytes : xep_combine_row_bytes(args),
        .stride = weights ? weights_bytes : mode->layout.common.combine_stride,
    };
    transfer->offset =
        xep_area_at(weights ? mode->layout.returned_weights : mode->layout.returned, slot->from[rank].slot) +
        there * transfer->stride;
}

/* Rows first, then weights, the offer last: the wire delivers its word after both. */
static int combine_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                            xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    if (number < NORMAL_RETURNED_TRANSFERS) normal_returned_transfer(mode, op, rank, number, transfer);
    else xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number <= NORMAL_RETURNED_TRANSFERS;
}

/* By nodes: rows come from those who sum them. */
static int node_offer_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                               xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    (void)rank;
    if (number == 0) xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number == 0;
}

/* ---- step 5 ---- */

typedef struct sum {
    const normal_t *mode;
    const xep_op_t *op;
    xep_weigh_fn weigh;
    xep_weigh_mixed_fn mixed; /* instead, where rows of other nodes are fp32 and others are not */
    /* of each token: ranks ascending; or, by nodes, those of the own node, and R + another node */
    const uint64_t *first;
    const normal_dest_t *terms;
    uint64_t begin, end; /* tokens */
} sum_t;

static inline int is_without(const sum_t *sum, uint32_t term)
{
    return sum->op->out != NULL && sum->op->out[term] != 0; /* nobody is out where it goes by nodes */
}

/*
 * With grants a mapped owner says with its offer where in its slot the rows of this rank begin: it may have closed
 * gaps there that this rank knows nothing of. The number lies where that owner can write, so it is checked before
 * addresses are made of it.
 */
static xep_status_t take_begins(normal_t *mode, xep_op_t *op)
{
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; mode->grants && i < op->with.count && status == XEP_OK; i++) {
        const uint32_t r = op->with.rank[i];
        if (mode->kit.base[r] != NULL)
            status = normal_check_grant(mode, op, r, xep_combine_begin_at(&mode->kit, op, r));
    }
    return status;
}

/*
 * Step 5: from mapped owners the rows are read where those have them; from all others in the own slot, where they
 * have put them. Own outputs are read where the user has them, and were never copied. Of several pieces all rows are
 * in the own slot, own ones, too: what the user gave for the earlier pieces may be gone by now.
 */
static void fill_sources(normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_layout_t *at = &mode->layout;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    size_t weights = routing->topk * sizeof(float), stride = at->common.combine_stride;

    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        /* what these have is in the sums of their nodes: fill_node_sources() */
        if (mode->kit.base[r] == NULL && mode->nodes != NULL) continue;
        const int pulled = mode->kit.base[r] != NULL && slot->pieces <= 1;
        const char *heap = pulled ? mode->kit.base[r] : mode->kit.env->heap;
        uint32_t there = pulled ? slot->from[r].slot : op->slot;
        xep_area_t x = pulled ? at->common.input : at->returned;
        xep_area_t y = pulled ? at->input_weights : at->returned_weights;
        uint64_t row =
            pulled ? normal_there(mode, slot, r) : normal_returned_begin(mode, slot, mode->kit.shape->rank, r);
        slot->sources[r] = (normal_source_t){
            .x = heap + xep_area_at(x, there) + row * stride,
            .x_stride = stride,
            .weights = heap + xep_area_at(y, there) + row * weights,
            .weights_stride = weights,
        };
    }
    if (slot->pieces > 1) return;
    normal_source_t *self = &slot->sources[mode->kit.shape->rank];
    uint64_t row = normal_there(mode, slot, mode->kit.shape->rank);
    if (args->x != NULL)
        *self = (normal_source_t){(const char *)args->x + row * args->x_stride, args->x_stride, self->weights, weights};
    if (args->topk_weights != NULL) {
        self->weights = (const char *)args->topk_weights + row * args->topk_weights_stride;
        self->weights_stride = args->topk_weights_stride;
    }
}

/* What other nodes have returned: a row for each token that has passed there. */
static void fill_node_sources(const normal_t *mode, const xep_op_t *op)
{
    const normal_layout_t *at = &mode->layout;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    size_t weights = slot->routing->topk * sizeof(float), stride = at->returned_stride;
    for (uint32_t n = 0; n < mode->kit.shape->nodes; n++) {
        uint64_t row = slot->routing->passing->begin[n];
        slot->sources[mode->kit.shape->nranks + n] = (normal_source_t){
            .x = xep_kit_own_area(&mode->kit, at->returned, op->slot) + row * stride,
            .x_stride = stride,
            .weights = xep_kit_own_area(&mode->kit, at->returned_weights, op->slot) + row * weights,
            .weights_stride = weights,
        };
    }
}

/* In the order in which the rows are summed; each selection by itself. */
static void sum_weights(const sum_t *sum, uint64_t token)
{
    const xep_combine_args_t *args = sum->op->combine;
    const normal_slot_t *slot = normal_slot(sum->mode, sum->op->slot);
    const normal_routing_t *routing = slot->routing;
    float *out = (float *)((char *)args->out_weights + token * args->out_weights_stride);

    for (uint32_t k = 0; k < routing->topk; k++) {
        float total = 0;
        for (uint64_t i = sum->first[token]; i < sum->first[token + 1]; i++) {
            const normal_source_t *source = &slot->sources[sum->terms[i].rank];
            float weight;
            if (is_without(sum, sum->terms[i].rank)) continue;
            memcpy(&weight, source->weights + sum->terms[i].row * source->weights_stride + k * sizeof weight,
                   sizeof weight);
            total += weight;
        }
        memcpy(&out[k], &total, sizeof total);
    }
}

/* Biases first, then the terms in their order, which is what makes sums the same on every run. */
static void sum_token(const sum_t *sum, uint64_t token, const void **rows, uint8_t *wide)
{
    const xep_combine_args_t *args = sum->op->combine;
    const normal_slot_t *slot = normal_slot(sum->mode, sum->op->slot);
    size_t n = 0;

    for (int b = 0; b < 2; b++)
        if (args->bias[b] != NULL) rows[n++] = (const char *)args->bias[b] + token * args->bias_stride[b];
    if (sum->mixed != NULL) memset(wide, 0, n);
    for (uint64_t i = sum->first[token]; i < sum->first[token + 1]; i++) {
        const normal_source_t *source = &slot->sources[sum->terms[i].rank];
        if (is_without(sum, sum->terms[i].rank)) continue;
        if (sum->mixed != NULL) wide[n] = sum->terms[i].rank >= sum->mode->kit.shape->nranks;
        rows[n++] = source->x + sum->terms[i].row * source->x_stride;
    }
    char *out = (char *)args->out + token * args->out_stride;
    if (sum->mixed != NULL) sum->mixed(out, rows, wide, n, args->hidden);
    else sum->weigh(out, rows, NULL, n, 0, args->hidden);
}

/* Which selections of a token are not in its sum. */
static void tell_missing(const sum_t *sum, uint64_t token)
{
    const xep_combine_args_t *args = sum->op->combine;
    const normal_routing_t *routing = normal_slot(sum->mode, sum->op->slot)->routing;
    const int32_t *experts = routing->experts + token * routing->topk;
    uint8_t *missing = args->missing + token * args->missing_stride;
    for (uint32_t k = 0; k < routing->topk; k++)
        missing[k] = experts[k] >= 0 && xep_op_is_without(sum->op, sum->mode->kit.owner[experts[k]]);
}

/* A thread has tokens that lie together, and rows of its own to list their sources in. */
static void sum_tokens(void *arg, uint32_t thread, uint32_t nthreads)
{
    const sum_t *sum = arg;
    const normal_t *mode = sum->mode;
    const uint64_t tokens = sum->end - sum->begin, end = sum->begin + tokens * (thread + 1) / nthreads;
    const size_t first = (size_t)thread * (mode->layout.max_dests + 2);
    for (uint64_t t = sum->begin + tokens * thread / nthreads; t < end; t++) {
        sum_token(sum, t, mode->rows + first, mode->wide + first);
        if (sum->op->combine->out_weights != NULL) sum_weights(sum, t);
        if (sum->op->combine->missing != NULL) tell_missing(sum, t);
    }
    xep_stores_fence();
}

/* ---- steps ---- */

/* From those on that are summed. Sources stay where they are. */
static xep_status_t sum_until(normal_t *mode, xep_op_t *op, uint64_t end)
{
    const xep_env_t *env = mode->kit.env;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    normal_state_t *state = normal_state(op);
    sum_t sum = {.mode = mode,
                 .op = op,
                 .weigh = xep_weigh_select(op->combine->dtype, env->simd, is_streaming(mode, op)),
                 .first = routing->first,
                 .terms = routing->dests,
                 .begin = state->moved,
                 .end = end};
    if (mode->nodes != NULL) {
        sum.first = routing->passing->term_first;
        sum.terms = routing->passing->terms;
        sum.mixed = normal_sums_are_wide(mode, op) ? xep_weigh_select_mixed(op->combine->dtype, 0, env->simd) : NULL;
    }
    /* places depend on the offers alone, which were taken before the first sum and are not looked at again */
    if (state->moved == 0) {
        if (mode->nodes != NULL) fill_node_sources(mode, op);
        xep_status_t status = take_begins(mode, op);
        if (status != XEP_OK) return status;
        fill_sources(mode, op);
    }
    env->parallel(env, sum_tokens, &sum);
    state->moved = end;
    return XEP_OK;
}

/* Own outputs are among the sources, where the user has them: so all of them have to be here, as the biases have. */
static xep_status_t sum(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (op->coming != 0) return XEP_INPROGRESS;
    return sum_until(mode, op, normal_slot(mode, op->slot)->routing->tokens);
}

/*
 * By nodes: tokens whose rows have all come, while those of others travel; a slice at a time, so that the wire goes on.
 * Where the ranks disagree nothing is summed, but sums of others still come. As in a dispatch, the ranks that are
 * waited for are looked at before the work, which so counts as nobody's delay.
 */
static xep_status_t sum_as_they_come(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const uint64_t tokens = normal_slot(mode, op->slot)->routing->tokens;
    xep_wire_t *wire = mode->kit.env->wire;
    normal_state_t *state = normal_state(op);
    xep_status_t status = XEP_OK;
    if (xep_kit_state(op)->verdict != XEP_OK) return xep_step_wait(mode, op);
    if (op->late.count != 0) status = xep_step_wait(mode, op);
    /* end is what normal_find_summed() says; the first turn has to come there */
    for (uint64_t end = UINT64_MAX; status >= 0 && op->coming == 0 && state->moved < end;) {
        status = normal_find_summed(mode, op, &end);
        if (status != XEP_OK || state->moved == end) break;
        status = sum_until(mode, op, end - state->moved < NORMAL_BATCH_ROWS ? end : state->moved + NORMAL_BATCH_ROWS);
        if (status == XEP_OK) status = wire->ops->progress(wire);
    }
    if (status < 0) return status;
    if (state->moved == tokens && op->coming == 0 && op->late.count == 0) return XEP_OK;
    if (op->late.count == 0) status = xep_step_wait(mode, op);
    return status < 0 ? status : XEP_INPROGRESS;
}

const xep_step_t normal_combine_steps[] = {
    XEP_COMBINE_STEP_DRAIN,
    {.name = "input", .does = "copy in", .run = normal_fill},
    {.name = "rows to go out",
     .does = "offer",
     .run = xep_step_send,
     .store = store_offer,
     .transfers = combine_transfer},
    {.name = "offers",
     .does = "wait for outputs",
     .run = xep_step_wait,
     .word = xep_combine_ready_word,
     .announced = XEP_COMBINE_ANNOUNCED},
    XEP_COMBINE_STEP_AGREE,
    {.name = "sums", .does = "sum", .run = sum, .agreed = 1},
    XEP_STEP_FLUSH,
    XEP_COMBINE_STEP_TELL_READ,
    {0},
};

const xep_step_t normal_combine_by_nodes[] = {
    XEP_COMBINE_STEP_DRAIN,
    {.name = "input", .does = "copy in", .run = normal_fill},
    {.name = "offers to go out",
     .does = "offer",
     .run = xep_step_send,
     .store = store_offer,
     .transfers = node_offer_transfer},
    {.name = "outputs of the node", .does = "wait for the node", .run = xep_step_wait, .word = normal_mates_word},
    {.name = "sums of the node to go out", .does = "sum for others", .run = normal_return_sums},
    {.name = "offers", .does = "wait for outputs", .run = xep_step_wait, .word = xep_combine_ready_word},
    XEP_COMBINE_STEP_AGREE,
    {.name = "sums of other nodes",
     .does = "sum",
     .run = sum_as_they_come,
     .word = normal_summed_word,
     .rows_bits = XEP_FEED_ROWS_BITS},
    XEP_STEP_FLUSH,
    XEP_COMBINE_STEP_TELL_READ,
    {0},
};

xep_status_t normal_combine(void *mode, xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const int weighted = args->topk_weights != NULL || args->out_weights != NULL;
    xep_status_t status = normal_check_combine(mode, op);
    if (status != XEP_OK) return status;
    return xep_combine_begin(mode, op, weighted ? 1 : op->recv->rows != 0 ? 0 : XEP_AGREE_ANY);
}
