/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch, as a source: the parcel and the notices (steps 1 and 2 of the protocol in ll.h). */
#include <string.h>

#include "ll_in_place.h"
#include "ll_pieces.h"


/* ---- the routing ---- */

/* How many rows there are, and the most of one expert, let a receiver with room enough skip counting all indices. */
static inline void count_selection(ll_t *mode, ll_notice_t *notice, int32_t expert)
{
    uint64_t count = ++mode->counts[expert];
    if (count > notice->most) notice->most = (uint32_t)count;
    notice->selections++;
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

/* ---- the parcel ---- */

/** Rows on their way into the parcel. */
typedef struct pack {
    const ll_t *mode;
    const xep_op_t *op;
    const ll_slot_t *slot;
    const ll_parcel_t *at;
    char *items;
    uint64_t begin, end; /* tokens */
    int is_there;        /* the user wrote the rows where their items are */
    xep_cast_t cast;
} pack_t;

/* Masked tokens are in nobody's interest: their items are never read. */
static int goes_anywhere(const void *mode, const xep_op_t *op, uint64_t token)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t first = token * slot->topk;
    for (uint32_t k = 0; k < slot->topk; k++)
        if (slot->experts[first + k] >= 0 && ll_brings(mode, op, first + k)) return 1;
    return 0;
}

/* Any alignment of x and any strides of scales become one item, that is read in one go. */
static void pack_plain(const pack_t *pack, uint64_t token, char *item)
{
    const xep_dispatch_args_t *args = pack->op->dispatch;
    const char *scales = (const char *)args->scales + (ptrdiff_t)token * args->scales_token_stride;
    if (!pack->is_there) memcpy(item, (const char *)args->x + token * args->x_stride, pack->at->row_bytes);
    for (uint32_t s = 0; s < args->nscales; s++)
        memcpy(item + pack->at->scales + s * (size_t)4, scales + (ptrdiff_t)s * args->scales_stride, 4);
}

static void pack_cast(const pack_t *pack, uint64_t token, uint64_t next, char *item)
{
    const xep_dispatch_args_t *args = pack->op->dispatch;
    const char *x = args->x;
    pack->cast.row(&pack->cast, item, item + pack->at->scales, x + token * args->x_stride, args->hidden,
                   x + next * args->x_stride);
}

/* A token is read and cast once, however many experts it goes to; not at all when it goes to none. */
static void pack_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const pack_t *pack = arg;
    const uint64_t tokens = pack->end - pack->begin, begin = pack->begin + tokens * thread / nthreads,
                   end = pack->begin + tokens * (thread + 1) / nthreads;
    for (uint64_t t = begin; t < end; t++) {
        char *item = pack->items + t * pack->at->stride;
        if (!goes_anywhere(pack->mode, pack->op, t)) continue;
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
        memcpy(head + ll_state(op)->parcel.weights, slot->weights, selections * sizeof *slot->weights);
}

/* Step 1, by the team: rows that are there and were not when it came here before. */
void ll_fill_items(ll_t *mode, xep_op_t *op)
{
    ll_state_t *state = ll_state(op);
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t here = slot->tokens - op->coming;
    pack_t pack = {.mode = mode,
                   .op = op,
                   .slot = slot,
                   .at = &state->parcel,
                   .items = ll_items(mode, op),
                   .begin = state->packed,
                   .end = here,
                   .is_there = state->in_place.offset != 0 && state->in_place.fill == NULL};
    if (here == state->packed) return;
    if (op->dispatch->quant != XEP_QUANT_NONE)
        pack.cast = xep_cast_select(op->dispatch->quant, op->dispatch->dtype, mode->kit.env->simd,
                                    op->dispatch->quant_scale);
    mode->kit.env->parallel(mode->kit.env, pack_rows, &pack);
    state->packed = here;
    if (op->coming != 0) return;
    xep_in_place_note(&mode->in_place, op, &state->in_place, state->parcel.row_bytes, state->parcel.stride,
                      goes_anywhere);
}

/* ---- the notices ---- */

/* Step 2, behind the parcel: a mapped rank reads that where it is. */
void ll_store_notice(const void *mode, const xep_op_t *op, uint32_t rank)
{
    xep_notices_store(mode, op, rank, &ll_state(op)->notice);
}

/* ---- begin ---- */

/* A wire that is busy brings the step here again, and so do rows that are coming. */
static xep_status_t send(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    /* begun early, the parcel is not whole yet: mapped ranks, which read all of it, are told by send_parts() */
    ll_fill_items(mode, op);
    xep_status_t status =
        ll_state(op)->begins_early ? xep_send_transfers(&mode->kit, op, ll_parcel_transfer) : xep_step_send(mode, op);
    if (status == XEP_INPROGRESS) ll_relay(mode, op);
    return status;
}

/* Of a dispatch that has begun early mapped ranks are told now: they read the whole parcel. */
static xep_status_t send_parts(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_fill_items(mode, op);
    xep_status_t status = xep_send_transfers(&mode->kit, op, ll_items_transfer);
    if (status == XEP_OK && op->coming != 0) status = XEP_INPROGRESS;
    if (status == XEP_INPROGRESS) ll_relay(mode, op);
    if (status != XEP_OK || !ll_state(op)->begins_early) return status;
    return xep_send(&mode->kit, op, ll_store_notice, ll_items_transfer);
}

/* Behind the look at the words: when all were there, all that this rank forwards are relayed. */
static xep_status_t wait_and_relay(void *mode, xep_op_t *op)
{
    xep_status_t status = xep_step_wait(mode, op);
    ll_relay(mode, op);
    return status;
}

/* Where nothing was moved, the user has its rows again, but not before the wire has read them. */
static xep_status_t leave(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    xep_status_t status = xep_step_flush(&mode->kit, op);
    if (status != XEP_OK) return status;
    if (xep_kit_state(op)->verdict == XEP_OK) ll_count_stats(mode, op);
    else xep_in_place_return(&mode->in_place, &ll_state(op)->in_place);
    return XEP_OK;
}

/* steps that a dispatch has, and each next piece of it */
#define STEP_SEND                                                                                    \
    {                                                                                                \
        .name = "room to send rows", .does = "plan and send", .run = send, .store = ll_store_notice, \
        .transfers = ll_parcel_transfer                                                              \
    }
#define STEP_SEND_PARTS                                                     \
    {                                                                       \
        .name = "room to send rows", .does = "send rows", .run = send_parts \
    }
#define STEP_FIND_PLACES                                              \
    {                                                                 \
        .name = "agreement", .does = "find places", .run = ll_receive \
    }
#define STEP_LEAVE                                             \
    {                                                          \
        .name = "rows to leave", .does = "flush", .run = leave \
    }

/*
 * Where some ranks are not mapped; ll_mapped.c has the steps for all others. The send phase ends in front of the step
 * that receives. The notices bring the verdict; only then rows are copied.
 */
const xep_step_t ll_dispatch_steps[] = {
    STEP_SEND,
    STEP_SEND_PARTS,
    {.name = "rows",
     .does = "wait for rows",
     .run = wait_and_relay,
     .word = xep_notices_word,
     .announced = XEP_NOTICE_ANNOUNCED,
     .relayed = 1,
     .receives = 1},
    STEP_FIND_PLACES,
    {.name = "rows",
     .does = "copy rows",
     .run = ll_take_rows,
     .word = ll_rows_word,
     .relayed = 1,
     .rows_bits = XEP_FEED_ROWS_BITS},
    STEP_LEAVE,
    {0},
};

const xep_step_t ll_next_steps[] = {
    /* the outputs of the piece that is shown leave the slot first (ll_pieces.h, 0); never by nodes */
    {.name = "outputs", .does = "return outputs", .run = ll_return_outputs},
    {.name = "room to send outputs", .does = "put outputs", .run = ll_put_outputs},
    {.name = "outputs to leave", .does = "flush outputs", .run = ll_flush_outputs},
    STEP_SEND,
    STEP_SEND_PARTS,
    {.name = "rows of the piece",
     .does = "wait for rows",
     .run = wait_and_relay,
     .word = xep_notices_word,
     .receives = 1},
    STEP_FIND_PLACES,
    {.name = "rows of the piece",
     .does = "copy rows",
     .run = ll_take_rows,
     .word = ll_rows_word,
     .rows_bits = XEP_FEED_ROWS_BITS},
    STEP_LEAVE,
    {0},
};

/* For ranks that are not mapped. The second notice is a copy of the complete one. */
static void plan_delivery(ll_t *mode, xep_op_t *op)
{
    ll_state_t *state = ll_state(op);
    ll_list_bound(mode, op);
    state->notice_in_parts = state->notice;
    state->notice_in_parts.in_parts = 1;
    ll_begin_relay(mode, op);
}

/*
 * The order matters: the parcel follows from the notice, and ll_in_place_take() completes both; parts follow from the
 * stride and the room of items. Rows are not packed here, but by the
 * team in the first step.
 */
static xep_status_t begin_sending(ll_t *mode, xep_op_t *op)
{
    ll_state_t *state = ll_state(op);
    ll_fill_notice(mode, op, &state->notice);
    ll_make_parcel(&state->notice, &state->parcel);
    ll_in_place_take(mode, op);
    if (!mode->kit.all_mapped) plan_delivery(mode, op);
    fill_head(mode, op, ll_slot(mode, op->slot));
    state->begins_early = op->coming != 0;
    return xep_steps_begin(mode, op);
}

/* Counting selections fills a part of the notice, so that comes first. */
xep_status_t ll_dispatch(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    xep_status_t status = ll_check_dispatch(mode, op);
    if (status == XEP_OK) status = ll_in_place_choose(mode, op);
    if (status == XEP_OK) status = take_routing(mode, op, ll_slot(mode, op->slot));
    if (status != XEP_OK) return status;
    /* up to here an error has refused the dispatch, and no other rank has heard of it */
    xep_kit_use_slot(&mode->kit, op);
    return begin_sending(mode, op);
}

/* What its notice would count, all ranks know: there lies what the outputs are. */
xep_status_t ll_next(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    const xep_combine_args_t *outputs = op->combine;
    ll_notice_t *notice = &ll_state(op)->notice;
    notice->has_outputs = outputs != NULL;
    notice->outputs_hidden = outputs != NULL ? outputs->hidden : XEP_AGREE_ANY;
    notice->outputs_dtype = outputs != NULL ? outputs->dtype : XEP_AGREE_ANY;
    ll_state(op)->piece = ll_slot(mode, op->slot)->piece + 1;
    ll_state(op)->stranger = XEP_NO_RANK;
    return begin_sending(mode, op);
}
