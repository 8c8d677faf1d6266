/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch, as a source: the parcel and the notices (steps 1 and 2 of the protocol in ll.h). */
#include <string.h>

#include "ll.h"

enum {
    RUN_BYTES = 256 * 1024, /* most bytes of one put: between two the wire may progress */
    PIECE_GROUPS = 64       /* of a row whose scales are packed: 64 fp32 scales on the stack */
};

/* ---- what only the mode can check ---- */

static uint64_t padded_rows(const ll_t *mode)
{
    return mode->layout.local_experts * mode->shape->nranks * mode->shape->tokens;
}

static xep_status_t check_arrangement(const ll_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->env;
    const xep_dispatch_args_t *args = op->dispatch;
    if (args->arrangement == XEP_ROWS_BY_RANK)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "arrangement is XEP_ROWS_BY_RANK, mode ll has rows by expert only");
    if (args->arrangement != XEP_ROWS_BY_EXPERT_PADDED) return XEP_OK;
    if (args->capacity != 0)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "capacity is %llu, with XEP_ROWS_BY_EXPERT_PADDED it follows from the shape",
                         (unsigned long long)args->capacity);
    if (mode->layout.recv_rows < padded_rows(mode))
        return env->fail(env, op, XEP_ERR_UNSUPPORTED,
                         "arrangement is XEP_ROWS_BY_EXPERT_PADDED, which needs slots of %llu rows, they have %llu (params.recv_rows)",
                         (unsigned long long)padded_rows(mode), (unsigned long long)mode->layout.recv_rows);
    return XEP_OK;
}

static xep_status_t check_args(const ll_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    int weights = op->cached_slot == XEP_NO_SLOT ? args->topk_weights != NULL : mode->slots[op->cached_slot].weights_given;
    if ((args->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0 && args->tokens != 0 && !weights)
        return mode->env->fail(mode->env, op, XEP_ERR_INVALID, "flags has XEP_DISPATCH_SEND_WEIGHTS, and there are no topk_weights");
    return check_arrangement(mode, op);
}

/* ---- the routing ---- */

static inline int64_t idx_at(const char *row, uint32_t k, int wide)
{
    return wide ? ((const int64_t *)(const void *)row)[k] : ((const int32_t *)(const void *)row)[k];
}

static inline void count_selection(ll_t *mode, ll_notice_t *notice, int32_t expert)
{
    uint64_t count = ++mode->counts[expert];
    if (count > notice->most) notice->most = (uint32_t)count;
    notice->selections++;
}

/* Copies a token's selections and counts them; returns k of one that is no expert, or K. */
static inline uint32_t take_token(ll_t *mode, ll_notice_t *notice, int32_t *experts, const char *row, uint32_t topk, int wide)
{
    for (uint32_t k = 0; k < topk; k++) {
        int64_t expert = idx_at(row, k, wide);
        experts[k] = (int32_t)expert;
        if (expert == -1) continue;
        if ((uint64_t)expert >= mode->shape->experts) return k;
        count_selection(mode, notice, (int32_t)expert);
    }
    return topk;
}

static xep_status_t take_experts(ll_t *mode, xep_op_t *op, ll_slot_t *slot)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const char *row = args->topk_idx;
    int wide = args->topk_idx_dtype == XEP_INT64;
    for (uint64_t t = 0; t < args->tokens; t++, row += args->topk_idx_stride) {
        uint32_t k = take_token(mode, &ll_state(op)->notice, slot->experts + t * args->topk, row, args->topk, wide);
        if (k < args->topk)
            return mode->env->fail(mode->env, op, XEP_ERR_INVALID, "topk_idx[%llu][%u] is %lld, experts are %u",
                                   (unsigned long long)t, k, (long long)idx_at(row, k, wide), mode->shape->experts);
    }
    return XEP_OK;
}

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

static xep_status_t take_routing(ll_t *mode, xep_op_t *op, ll_slot_t *slot)
{
    memset(mode->counts, 0, mode->shape->experts * sizeof *mode->counts);
    if (op->cached_slot == XEP_NO_SLOT) {
        xep_status_t status = take_experts(mode, op, slot);
        if (status != XEP_OK) return status;
        take_weights(op->dispatch, slot);
    } else {
        take_cached(mode, &ll_state(op)->notice, &mode->slots[op->cached_slot], slot);
    }
    slot->tokens = op->dispatch->tokens;
    slot->topk = op->dispatch->topk;
    slot->weights_sent = (op->dispatch->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0;
    return XEP_OK;
}

/* ---- the parcel ---- */

/* What it counts is there. */
static void fill_notice(const ll_t *mode, const xep_op_t *op, ll_notice_t *notice)
{
    const xep_dispatch_args_t *args = op->dispatch;
    int padded = args->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    uint64_t room = padded ? (uint64_t)mode->shape->nranks * mode->shape->tokens : mode->layout.recv_rows;
    *notice = (ll_notice_t){.capacity = args->capacity != 0 ? args->capacity : room,
                            .selections = notice->selections,
                            .most = notice->most,
                            .tokens = (uint32_t)args->tokens,
                            .slot = op->slot,
                            .alignment = args->expert_alignment,
                            .hidden = args->hidden,
                            .topk = args->topk,
                            .nscales = args->nscales,
                            .dtype = (uint8_t)args->dtype,
                            .quant = (uint8_t)args->quant,
                            .scales_dtype = (uint8_t)args->scales_dtype,
                            .sends_weights = (args->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0,
                            .padded = (uint8_t)padded};
    atomic_init(&notice->epoch, op->epoch);
}

/** Rows on their way into the parcel. */
typedef struct pack {
    const ll_t *mode;
    const xep_op_t *op;
    const ll_slot_t *slot;
    const ll_parcel_t *at;
    char *parcel;
    xep_cast_fn cast;
} pack_t;

static int goes_anywhere(const ll_slot_t *slot, uint64_t token)
{
    const int32_t *experts = slot->experts + token * slot->topk;
    for (uint32_t k = 0; k < slot->topk; k++)
        if (experts[k] >= 0) return 1;
    return 0;
}

static void pack_plain(const pack_t *pack, uint64_t token, char *record)
{
    const xep_dispatch_args_t *args = pack->op->dispatch;
    const char *scales = (const char *)args->scales + (ptrdiff_t)token * args->scales_token_stride;
    memcpy(record, (const char *)args->x + token * args->x_stride, pack->at->row_bytes);
    for (uint32_t s = 0; s < args->nscales; s++)
        memcpy(record + pack->at->scales + s * (size_t)4, scales + (ptrdiff_t)s * args->scales_stride, 4);
}

static void cast_packed(const pack_t *pack, const char *x, const char *next, char *record)
{
    const size_t piece = PIECE_GROUPS * XEP_CAST_GROUP, elem = xep_elem_bytes(pack->op->dispatch->dtype);
    const size_t hidden = pack->op->dispatch->hidden;
    uint32_t *packed = (uint32_t *)(void *)(record + pack->at->scales);
    for (size_t i = 0; i < hidden; i += piece, packed += PIECE_GROUPS / 4) {
        float scales[PIECE_GROUPS];
        size_t n = hidden - i < piece ? hidden - i : piece;
        pack->cast((uint8_t *)record + i, scales, x + i * elem, n, 1, next + i * elem);
        xep_cast_pack_exponents(packed, scales, xep_cast_groups(n));
    }
}

static void pack_cast(const pack_t *pack, uint64_t token, uint64_t next, char *record)
{
    const xep_dispatch_args_t *args = pack->op->dispatch;
    const char *x = (const char *)args->x + token * args->x_stride, *ahead = (const char *)args->x + next * args->x_stride;
    if (args->quant == XEP_QUANT_UE8M0) cast_packed(pack, x, ahead, record);
    else
        pack->cast((uint8_t *)record, (float *)(void *)(record + pack->at->scales), x, args->hidden,
                   args->quant == XEP_QUANT_E4M3_POW2, ahead);
}

/* A token is read and cast once, however many experts it goes to; not at all when it goes to none. */
static void pack_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const pack_t *pack = arg;
    uint64_t tokens = pack->slot->tokens, begin = tokens * thread / nthreads, end = tokens * (thread + 1) / nthreads;
    for (uint64_t t = begin; t < end; t++) {
        char *record = pack->parcel + pack->at->rows + t * pack->at->stride;
        if (!goes_anywhere(pack->slot, t)) continue;
        if (pack->op->dispatch->quant == XEP_QUANT_NONE) pack_plain(pack, t, record);
        else pack_cast(pack, t, t + 1 < end ? t + 1 : t, record);
    }
}

static void fill_parcel(ll_t *mode, xep_op_t *op, const ll_slot_t *slot)
{
    const ll_parcel_t *at = &ll_state(op)->parcel;
    uint64_t selections = slot->tokens * slot->topk;
    pack_t pack = {.mode = mode, .op = op, .slot = slot, .at = at, .parcel = ll_own(mode, ll_parcel_offset(mode, op->turn))};
    if (op->dispatch->quant != XEP_QUANT_NONE) pack.cast = xep_cast_select(op->dispatch->dtype, mode->env->simd);
    memcpy(pack.parcel, slot->experts, selections * sizeof *slot->experts);
    if (slot->weights_sent) memcpy(pack.parcel + at->weights, slot->weights, selections * sizeof *slot->weights);
    mode->env->parallel(mode->env, pack_rows, &pack);
}

/* ---- the notices ---- */

static void notify(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    const ll_notice_t *notice = &ll_state(op)->notice;
    uint64_t offset = ll_notice_offset(mode, op->turn, mode->shape->rank);
    memcpy(mode->base[rank] + offset + sizeof notice->epoch, (const char *)notice + sizeof notice->epoch,
           sizeof *notice - sizeof notice->epoch);
    ll_store_word(mode, rank, offset, op->epoch);
}

xep_status_t ll_send(ll_t *mode, xep_op_t *op)
{
    ll_state_t *state = ll_state(op);
    ll_slot_t *slot = &mode->slots[op->slot];
    const uint32_t nranks = mode->shape->nranks;
    xep_status_t status = check_args(mode, op);
    if (status == XEP_OK) status = take_routing(mode, op, slot);
    if (status != XEP_OK) return status;
    fill_notice(mode, op, &state->notice);
    ll_parcel_make(&state->notice, &state->parcel);
    fill_parcel(mode, op, slot);
    for (uint32_t i = 1; i <= nranks; i++) {
        uint32_t rank = (mode->shape->rank + i) % nranks;
        if (mode->base[rank] != NULL) notify(mode, op, rank);
    }
    return XEP_OK;
}

/* ---- ranks that are not mapped ---- */

static int goes_to(const ll_t *mode, const ll_slot_t *slot, uint64_t token, uint32_t rank)
{
    const int32_t *experts = slot->experts + token * slot->topk;
    uint32_t first = mode->first_expert[rank], count = mode->first_expert[rank + 1] - first;
    for (uint32_t k = 0; k < slot->topk; k++)
        if (experts[k] >= 0 && (uint32_t)experts[k] - first < count) return 1;
    return 0;
}

/* Records from the first at or after token that goes to rank: tokens in a row are one put. */
static uint64_t find_run(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint64_t *token_p)
{
    const ll_slot_t *slot = &mode->slots[op->slot];
    uint64_t t = *token_p, most = RUN_BYTES / ll_state(op)->parcel.stride + 1, run = 0;
    while (t < slot->tokens && !goes_to(mode, slot, t, rank)) t++;
    while (run < most && t + run < slot->tokens && goes_to(mode, slot, t + run, rank)) run++;
    *token_p = t;
    return run;
}

static xep_status_t put_records(ll_t *mode, xep_op_t *op, uint32_t rank, uint64_t own, uint64_t inbox)
{
    ll_state_t *state = ll_state(op);
    uint64_t run;
    while ((run = find_run(mode, op, rank, &state->cursor.item)) != 0) {
        uint64_t at = state->parcel.rows + state->cursor.item * state->parcel.stride;
        xep_status_t status =
            mode->env->wire->ops->put(mode->env->wire, rank, inbox + at, ll_own(mode, own + at), run * state->parcel.stride);
        if (status != XEP_OK) return status;
        state->cursor.item += run;
    }
    return XEP_OK;
}

static xep_status_t put_parcel(ll_t *mode, xep_op_t *op, uint32_t rank)
{
    ll_state_t *state = ll_state(op);
    xep_wire_t *wire = mode->env->wire;
    const size_t word = sizeof state->notice.epoch;
    uint64_t own = ll_parcel_offset(mode, op->turn), inbox = ll_inbox_offset(mode, op->turn, mode->shape->rank);
    uint64_t notice = ll_notice_offset(mode, op->turn, mode->shape->rank);
    xep_status_t status = XEP_OK;
    if (state->cursor.part == 0) {
        status = wire->ops->put(wire, rank, inbox, ll_own(mode, own), state->parcel.rows);
        if (status != XEP_OK) return status;
        state->cursor.part = 1;
    }
    status = put_records(mode, op, rank, own, inbox);
    if (status != XEP_OK) return status;
    return wire->ops->put_signal(wire, rank, notice + word, (const char *)&state->notice + word, sizeof state->notice - word,
                                 notice, op->epoch);
}

xep_status_t ll_put_parcels(ll_t *mode, xep_op_t *op)
{
    ll_cursor_t *cursor = &ll_state(op)->cursor;
    const uint32_t nranks = mode->shape->nranks;
    while (cursor->peer < nranks) {
        uint32_t rank = (mode->shape->rank + 1 + cursor->peer) % nranks;
        xep_status_t status = mode->base[rank] != NULL ? XEP_OK : put_parcel(mode, op, rank);
        if (status != XEP_OK) return ll_wire_status(mode, op, status);
        *cursor = (ll_cursor_t){.peer = cursor->peer + 1};
    }
    return XEP_OK;
}
