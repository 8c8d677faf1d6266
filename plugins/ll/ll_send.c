/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch, as a source: the packet and the notice (steps 1 and 2 of the protocol in ll.h). */
#include <string.h>

#include "ll_flow.h"
#include "ll_in_place.h"

/* ---- the routing ---- */

/* The most of one expert lets a receiver with room enough skip counting all indices. */
static inline void count_selection(ll_t *mode, ll_notice_t *notice, int32_t expert)
{
    uint64_t count = ++mode->counts[expert];
    if (count > notice->most) notice->most = (uint32_t)count;
}

/* Copies a token's selections and counts them; returns k of one that is no expert, or K. */
static inline uint32_t take_token(ll_t *mode, ll_notice_t *notice, int32_t *experts, const char *row, uint32_t topk,
                                  int wide)
{
    for (uint32_t k = 0; k < topk; k++) {
        int64_t expert = xep_idx_at(row, k, wide);
        experts[k] = (int32_t)expert;
        if (expert == -1) continue;
        if ((uint64_t)expert >= mode->kit.shape->experts) return k;
        count_selection(mode, notice, (int32_t)expert);
    }
    return topk;
}

/* The handle keeps its own copy: its combines need it when the array of the caller is long gone. */
static xep_status_t take_experts(ll_t *mode, xep_op_t *op, ll_slot_t *slot)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const char *row = args->topk_idx;
    int wide = args->topk_idx_dtype == XEP_INT64;
    for (uint64_t t = 0; t < args->tokens; t++, row += args->topk_idx_stride) {
        uint32_t k = take_token(mode, &ll_state(op)->notice, slot->experts + t * args->topk, row, args->topk, wide);
        if (k < args->topk) return xep_kit_refuse_expert(&mode->kit, op, t, k);
    }
    return XEP_OK;
}

/* Weights stay here unless they are sent: combine multiplies with them at the source. */
static void take_weights(const xep_dispatch_args_t *args, ll_slot_t *slot)
{
    const char *row = (const char *)args->topk_weights;
    slot->weights_given = row != NULL;
    for (uint64_t t = 0; t < args->tokens; t++) {
        float *to = slot->weights + t * args->topk;
        if (row != NULL) memcpy(to, row + t * args->topk_weights_stride, args->topk * sizeof *to);
        else
            for (uint32_t k = 0; k < args->topk; k++) to[k] = 1.0f;
    }
}

/* A cached dispatch sends the indices again: a few kilobytes, and the receiver need not know. */
static void take_cached(ll_t *mode, ll_notice_t *notice, const ll_slot_t *from, ll_slot_t *slot)
{
    uint64_t selections = from->tokens * from->topk;
    memcpy(slot->experts, from->experts, selections * sizeof *slot->experts);
    memcpy(slot->weights, from->weights, selections * sizeof *slot->weights);
    slot->weights_given = from->weights_given;
    for (uint64_t i = 0; i < selections; i++)
        if (slot->experts[i] >= 0) count_selection(mode, notice, slot->experts[i]);
}

/* Counts are of this rank's selections until its notice is filled; the receive phase uses the same memory again. */
static xep_status_t take_routing(ll_t *mode, xep_op_t *op, ll_slot_t *slot)
{
    memset(mode->counts, 0, mode->kit.shape->experts * sizeof *mode->counts);
    if (op->cached_slot == XEP_NO_SLOT) {
        xep_status_t status = take_experts(mode, op, slot);
        if (status != XEP_OK) return status;
        take_weights(op->dispatch, slot);
    } else {
        take_cached(mode, &ll_state(op)->notice, ll_slot(mode, op->cached_slot), slot);
    }
    slot->tokens = op->dispatch->tokens;
    slot->topk = op->dispatch->topk;
    slot->weights_sent = (op->dispatch->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0;
    return XEP_OK;
}

/* ---- the packet ---- */

/** Rows on their way into the packet. */
typedef struct pack {
    const xep_op_t *op;
    const ll_slot_t *slot;
    const ll_packet_t *at;
    char *items;
    uint64_t begin, end; /* tokens */
    int is_there;        /* the user wrote the rows where their items are */
    xep_cast_t cast;
} pack_t;

/* No rank needs a masked token: its item is never read. */
static int goes_anywhere(const int32_t *experts, uint32_t topk)
{
    for (uint32_t k = 0; k < topk; k++)
        if (experts[k] >= 0) return 1;
    return 0;
}

/* Any alignment of x and any strides of scales become one item, that is read in one go. */
static void pack_plain(const pack_t *pack, uint64_t token, char *item)
{
    const xep_dispatch_args_t *args = pack->op->dispatch;
    if (!pack->is_there) memcpy(item, (const char *)args->x + token * args->x_stride, pack->at->row_bytes);
    if (pack->slot->fields.bytes != 0)
        xep_fields_store(&pack->slot->fields, 0, NULL, token, item + pack->at->beside, 1, 0);
}

static void pack_cast(const pack_t *pack, uint64_t token, uint64_t next, char *item)
{
    const xep_dispatch_args_t *args = pack->op->dispatch;
    const char *x = args->x;
    pack->cast.row(&pack->cast, item, item + pack->at->beside, x + token * args->x_stride, args->hidden,
                   x + next * args->x_stride);
    xep_fields_store(&pack->slot->fields, 1, NULL, token, item + pack->at->beside, 1, 0);
}

/* A token is read and cast once, however many experts it goes to; not at all when it goes to none. */
static void pack_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const pack_t *pack = arg;
    const uint32_t topk = pack->slot->topk;
    const int32_t *experts = ll_state(pack->op)->experts;
    const uint64_t tokens = pack->end - pack->begin, begin = pack->begin + tokens * thread / nthreads,
                   end = pack->begin + tokens * (thread + 1) / nthreads;
    for (uint64_t t = begin; t < end; t++) {
        char *item = pack->items + t * pack->at->stride;
        if (!goes_anywhere(experts + t * topk, topk)) continue;
        if (pack->op->dispatch->quant == XEP_QUANT_NONE) pack_plain(pack, t, item);
        else pack_cast(pack, t, t + 1 < end ? t + 1 : t, item);
    }
}

/* Step 1, by this thread: indices and weights. */
static void fill_head(const ll_t *mode, const xep_op_t *op, const ll_slot_t *slot)
{
    const uint64_t selections = slot->tokens * slot->topk;
    char *head = xep_kit_own_area(&mode->kit, mode->layout.heads, xep_notices_entry(&mode->kit, op->turn));
    memcpy(head, slot->experts, selections * sizeof *slot->experts);
    if (slot->weights_sent)
        memcpy(head + ll_state(op)->packet.weights, slot->weights, selections * sizeof *slot->weights);
}

/* Step 1, by the team: rows that are there and were not when it came here before. */
void ll_fill_items(ll_t *mode, xep_op_t *op)
{
    ll_state_t *state = ll_state(op);
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t here = slot->tokens - op->coming;
    pack_t pack = {.op = op,
                   .slot = slot,
                   .at = &state->packet,
                   .items = state->items,
                   .begin = state->packed,
                   .end = here,
                   .is_there = state->is_there};
    if (here == state->packed) return;
    if (op->dispatch->quant != XEP_QUANT_NONE)
        pack.cast =
            xep_cast_select(op->dispatch->quant, op->dispatch->dtype, mode->kit.env->simd, op->dispatch->quant_scale);
    mode->kit.env->parallel(mode->kit.env, pack_rows, &pack);
    state->packed = here;
}

/* Step 2, behind the packet: a mapped rank reads that where it is. */
void ll_store_notice(const void *mode, const xep_op_t *op, uint32_t rank)
{
    xep_notices_store(mode, op, rank, &ll_state(op)->notice);
}

xep_status_t ll_send_mapped(void *mode, xep_op_t *op)
{
    ll_fill_items(mode, op);
    xep_send_stores(mode, op, ll_store_notice);
    return XEP_OK;
}

/* ---- begin ---- */

/*
 * The packet follows from the notice, and take_memory() in ll_in_place.c completes both, where rows are read in place.
 * Rows are not packed here, but by the team in the first step.
 */
xep_status_t ll_begin_sending(ll_t *mode, xep_op_t *op, const int32_t *experts)
{
    ll_state_t *state = ll_state(op);
    state->experts = experts;
    ll_make_packet(&state->notice, ll_slot(mode, op->slot)->fields.bytes, &state->packet);
    state->items = xep_kit_own_area(&mode->kit, mode->layout.items, xep_notices_entry(&mode->kit, op->turn));
    fill_head(mode, op, ll_slot(mode, op->slot));
    return xep_steps_begin(mode, op);
}

/* Counting selections fills a part of the notice, so that comes first. */
xep_status_t ll_dispatch(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    xep_status_t status = ll_check_dispatch(mode, op);
    if (status == XEP_OK && mode->kit.shape->sends_in_place) status = ll_in_place_choose(mode, op);
    if (status == XEP_OK) status = take_routing(mode, op, ll_slot(mode, op->slot));
    if (status != XEP_OK) return status;
    /* up to here an error has refused the dispatch, and no other rank has heard of it */
    xep_kit_use_slot(&mode->kit, op);
    ll_fill_notice(mode, op, &ll_state(op)->notice);
    return ll_begin_sending(mode, op, ll_slot(mode, op->slot)->experts);
}
