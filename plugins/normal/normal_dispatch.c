/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch: steps 1 to 6 of the protocol in normal.h. */
#include <string.h>

#include "normal.h"

/* Tokens moved between two looks at the wire, where there are unmapped ranks to feed: 3.5 MiB of 7168 bf16. */
enum { SLICE = 256 };

/** The arguments of a dispatch as the copying loop wants them, and the tokens it is to move. */
typedef struct move {
    const normal_t *mode;
    const xep_op_t *op;
    const normal_routing_t *routing;
    const normal_target_t *targets;
    xep_copy_fn copy[2]; /* of own rows, and of those for other ranks */
    size_t bytes, stride; /* of a row, as received */
    size_t weights_stride;
    uint64_t begin, end;
} move_t;

static size_t idx_bytes(const xep_dispatch_args_t *args)
{
    return args->topk_idx_dtype == XEP_INT64 ? sizeof(int64_t) : sizeof(int32_t);
}

static size_t row_bytes(const xep_dispatch_args_t *args)
{
    return args->hidden * xep_elem_bytes(args->dtype);
}

/* ---- step 4: rows and metadata ---- */

/**
 * Indices and weights of one row: experts of the receiver as it numbers them, -1 and 0 for the others. Without
 * branches, and with the choices known to the compiler: at 20 ns a row it would show beside the copy.
 */
__attribute__((always_inline)) static inline void selections_store(const move_t *move, uint64_t token, uint32_t rank,
                                                                   char *idx, float *weights, int wide, int weighted)
{
    uint32_t topk = move->routing->topk, first = move->mode->first_expert[rank];
    uint32_t count = move->mode->first_expert[rank + 1] - first;
    const int32_t *experts = move->routing->experts + token * topk;
    const char *from = (const char *)move->op->dispatch->topk_weights + (weighted ? token * move->weights_stride : 0);

    for (uint32_t k = 0; k < topk; k++) {
        uint32_t local = (uint32_t)experts[k] - first, bits; /* of -1 and of lower ranks' experts: 2^31 and more */
        int32_t value = local < count ? (int32_t)local : -1;
        if (wide)
            ((int64_t *)idx)[k] = value;
        else
            ((int32_t *)idx)[k] = value;
        if (!weighted) continue;
        memcpy(&bits, from + k * sizeof bits, sizeof bits);
        bits = local < count ? bits : 0;
        memcpy(weights + k, &bits, sizeof bits);
    }
}

static void scales_store(const xep_dispatch_args_t *args, uint64_t token, char *to)
{
    const char *from = (const char *)args->scales + (ptrdiff_t)token * args->scales_token_stride;
    for (uint32_t s = 0; s < args->nscales; s++)
        memcpy(to + s * (size_t)4, from + (ptrdiff_t)s * args->scales_stride, 4);
}

static void metadata_store(const move_t *move, uint64_t token, normal_dest_t dest)
{
    const xep_dispatch_args_t *args = move->op->dispatch;
    const normal_target_t *target = &move->targets[dest.rank];
    size_t row = dest.row, at = row * move->routing->topk;
    float *weights = target->weights + at;
    target->tokens[row] = (int32_t)token;
    if (args->topk_idx_dtype == XEP_INT64 && args->topk_weights)
        selections_store(move, token, dest.rank, target->idx + at * sizeof(int64_t), weights, 1, 1);
    else if (args->topk_idx_dtype == XEP_INT64)
        selections_store(move, token, dest.rank, target->idx + at * sizeof(int64_t), weights, 1, 0);
    else if (args->topk_weights)
        selections_store(move, token, dest.rank, target->idx + at * sizeof(int32_t), weights, 0, 1);
    else
        selections_store(move, token, dest.rank, target->idx + at * sizeof(int32_t), weights, 0, 0);
    if (args->nscales) scales_store(args, token, target->scales + row * args->nscales * 4);
}

/* A row is read once and stored to every rank that gets it while it is in the cache. */
static void tokens_move(void *arg, uint32_t thread, uint32_t nthreads)
{
    const move_t *move = arg;
    const normal_routing_t *routing = move->routing;
    const char *x = move->op->dispatch->x;
    size_t stride = move->op->dispatch->x_stride;
    const uint32_t self = move->mode->shape->rank;
    uint64_t count = move->end - move->begin;
    uint64_t begin = move->begin + count * thread / nthreads, end = move->begin + count * (thread + 1) / nthreads;

    for (uint64_t t = begin; t < end; t++) {
        const char *row = x + t * stride, *next = t + 1 < end ? row + stride : row;
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++) {
            normal_dest_t dest = routing->dests[i];
            const normal_target_t *target = &move->targets[dest.rank];
            if (target->x) move->copy[dest.rank != self](target->x + dest.row * move->stride, row, move->bytes, next);
            metadata_store(move, t, dest);
        }
    }
    xep_stores_fence();
}

static void targets_set(normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_layout_t *at = &mode->layout;
    normal_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = slot->routing;
    size_t idx = routing->topk * idx_bytes(args), weights = routing->topk, scales = (size_t)args->nscales * 4;
    size_t stride = xep_row_stride(row_bytes(args));

    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        char *there = mode->base[r] ? mode->base[r] + normal_area(mode, slot->from[r].slot, 0) : NULL;
        uint64_t row = there ? routing->place[r] : routing->to_begin[r];
        slot->targets[r] = (normal_target_t){
            .x = there ? there + at->x + row * stride : NULL,
            .tokens = (there ? (int32_t *)(there + at->tokens) : slot->staged_tokens) + row,
            .idx = (there ? there + at->idx : slot->staged_idx) + row * idx,
            .weights = (there ? (float *)(there + at->weights) : slot->staged_weights) + row * weights,
            .scales = (there ? there + at->scales : slot->staged_scales) + row * scales,
        };
    }
}

static void slice_move(normal_t *mode, xep_op_t *op)
{
    normal_state_t *state = normal_state(op);
    const normal_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = slot->routing;
    size_t bytes = row_bytes(op->dispatch);
    int streaming = routing->first[routing->tokens] * bytes >= mode->env->stream_bytes;
    uint64_t left = routing->tokens - state->moved;
    move_t move = {
        .mode = mode,
        .op = op,
        .routing = routing,
        .targets = slot->targets,
        .copy = {xep_copy_select(mode->env->simd, streaming), xep_copy_select(mode->env->simd, xep_streams_to_others(mode->env))},
        .bytes = bytes,
        .stride = xep_row_stride(bytes),
        .weights_stride = op->dispatch->topk_weights_stride,
        .begin = state->moved,
        .end = state->moved + (mode->all_mapped || left < SLICE ? left : SLICE),
    };
    mode->env->parallel(mode->env, tokens_move, &move);
    state->moved = move.end;
}

/* ---- what an unmapped rank gets: its rows, the metadata once it is staged, the signal ---- */

static void rows_part(const normal_t *mode, const xep_op_t *op, uint32_t rank, normal_part_t *part)
{
    const normal_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = slot->routing;
    size_t bytes = row_bytes(op->dispatch), stride = xep_row_stride(bytes);
    *part = (normal_part_t){
        .src = op->dispatch->x,
        .src_stride = op->dispatch->x_stride,
        .index = routing->tokens_to + routing->to_begin[rank],
        .rows = routing->rows[rank],
        .bytes = bytes,
        .stride = stride,
        .offset = normal_area(mode, slot->from[rank].slot, mode->layout.x) + routing->place[rank] * stride,
    };
}

enum { METADATA = 4 };

static void metadata_part(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number, normal_part_t *part)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = slot->routing;
    const normal_target_t *staged = &slot->targets[rank];
    const struct {
        const void *src;
        uint64_t area;
        size_t bytes;
    } arrays[METADATA] = {
        {staged->tokens, mode->layout.tokens, sizeof(int32_t)},
        {staged->idx, mode->layout.idx, routing->topk * idx_bytes(args)},
        {staged->weights, mode->layout.weights, args->topk_weights ? routing->topk * sizeof(float) : 0},
        {staged->scales, mode->layout.scales, args->nscales * (size_t)4},
    };
    size_t bytes = arrays[number].bytes;
    *part = (normal_part_t){
        .src = arrays[number].src,
        .src_stride = bytes,
        .rows = routing->rows[rank],
        .bytes = bytes,
        .stride = bytes,
        .offset = normal_area(mode, slot->from[rank].slot, arrays[number].area) + routing->place[rank] * bytes,
        .blocked = normal_state(op)->moved < routing->tokens,
    };
}

static uint64_t done_offset(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    uint32_t index = mode->slots[op->slot].from[rank].slot;
    return normal_mail_offset(mode, index, mode->shape->rank) + offsetof(normal_mail_t, done);
}

static int dispatch_part(normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number, normal_part_t *part)
{
    if (mode->base[rank]) return 0;
    if (normal_state(op)->verdict != XEP_OK) number += 1 + METADATA;
    if (number == 0)
        rows_part(mode, op, rank, part);
    else if (number <= METADATA)
        metadata_part(mode, op, rank, number - 1, part);
    else
        *part = (normal_part_t){.signal = 1, .offset = done_offset(mode, op, rank), .value = op->epoch};
    return number <= METADATA + 1;
}

/* ---- what the user sees ---- */

static void expert_rows_set(normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = &mode->slots[op->slot];
    uint64_t alignment = op->dispatch->expert_alignment;
    uint32_t local = mode->shape->local_experts;
    memcpy(slot->expert_rows, slot->routing->local, local * sizeof *slot->expert_rows);
    if (alignment <= 1) return; /* a division for each expert takes as long as a small batch */
    for (uint32_t e = 0; e < local; e++)
        slot->expert_rows[e] = (slot->expert_rows[e] + alignment - 1) / alignment * alignment;
}

static void recv_set(normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_layout_t *at = &mode->layout;
    const normal_slot_t *slot = &mode->slots[op->slot];
    char *here = (char *)mode->env->heap + normal_area(mode, op->slot, 0);
    uint64_t rows = slot->routing->src_begin[mode->shape->nranks];

    *op->recv = (xep_recv_t){
        .size = sizeof *op->recv,
        .arrangement = XEP_ROWS_BY_RANK,
        .rows = rows,
        .capacity = args->capacity ? args->capacity : rows,
        .x = here + at->x,
        .x_stride = xep_row_stride(row_bytes(args)),
        .dtype = args->dtype,
        .hidden = args->hidden,
        .topk = args->topk,
        .topk_idx_dtype = args->topk_idx_dtype,
        .topk_idx = here + at->idx,
        .topk_weights = normal_state(op)->weights == NORMAL_WEIGHTS ? (float *)(here + at->weights) : NULL,
        .scales = args->nscales ? here + at->scales : NULL,
        .nscales = args->nscales,
        .scales_dtype = args->scales_dtype,
        .scales_token_stride = (ptrdiff_t)args->nscales * 4,
        .scales_stride = 4,
        .src_token = (int32_t *)(here + at->tokens),
        .src_begin = slot->routing->src_begin,
        .rank_rows = slot->routing->rank_rows,
        .first_expert = mode->shape->first_expert,
        .local_experts = mode->shape->local_experts,
        .expert_rows = slot->expert_rows,
    };
}

/* Rows beyond those received, where the capacity is fixed: no expert. */
static void tail_set(const xep_op_t *op)
{
    const xep_recv_t *recv = op->recv;
    size_t row = recv->topk * idx_bytes(op->dispatch);
    memset((char *)recv->topk_idx + recv->rows * row, 0xff, (recv->capacity - recv->rows) * row);
}

/* ---- steps ---- */

static const _Atomic uint64_t *counts_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = op->epoch;
    return &normal_mail(mode, (uint32_t)(op->turn % mode->shape->slots), rank)->counts;
}

static const _Atomic uint64_t *done_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = op->epoch;
    return &normal_mail(mode, op->slot, rank)->done;
}

static xep_status_t agree(normal_t *mode, xep_op_t *op)
{
    xep_status_t status = normal_records_take(mode, op);
    if (status != XEP_OK || normal_state(op)->verdict != XEP_OK) return status;
    targets_set(mode, op);
    expert_rows_set(mode, op);
    recv_set(mode, op);
    tail_set(op);
    return XEP_OK;
}

static void mapped_tell(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->shape;
    for (uint32_t i = 1; i <= shape->nranks; i++) {
        uint32_t rank = (shape->rank + i) % shape->nranks;
        if (mode->base[rank]) normal_signal(mode, rank, done_offset(mode, op, rank), op->epoch);
    }
    normal_state(op)->told = 1;
}

/* Feeds the wire between slices of the copying, so that both go on at once. */
static xep_status_t move(normal_t *mode, xep_op_t *op)
{
    normal_state_t *state = normal_state(op);
    uint64_t tokens = state->verdict == XEP_OK ? mode->slots[op->slot].routing->tokens : 0;
    while (state->moved < tokens) {
        xep_status_t status = normal_put_parts(mode, op, dispatch_part);
        if (status < 0) return status;
        slice_move(mode, op);
    }
    if (!state->told) mapped_tell(mode, op);
    return normal_put_parts(mode, op, dispatch_part);
}

static xep_status_t rows_tell(normal_t *mode, xep_op_t *op)
{
    xep_status_t verdict = normal_state(op)->verdict;
    (void)mode;
    if (op->dispatch->recv_rows_p && (verdict == XEP_OK || verdict == XEP_ERR_OVERFLOW))
        *op->dispatch->recv_rows_p = op->recv->rows;
    return XEP_OK;
}

const normal_step_t normal_dispatch_steps[] = {
    {"records to go out", normal_records_post, NULL},
    {"counts", normal_wait, counts_word},
    {"agreement", agree, NULL},
    {"rows to go out", move, NULL},
    {"rows", normal_wait, done_word},
    {"the wire", normal_flush, NULL},
    {"the end", rows_tell, NULL},
    {NULL, NULL, NULL},
};

static xep_status_t cached_check(normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_routing_t *routing = mode->slots[op->cached_slot].routing;
    if (args->tokens != routing->tokens)
        return mode->env->fail(mode->env, op, XEP_ERR_INVALID, "tokens is %llu, but %llu with the cached handle",
                               (unsigned long long)args->tokens, (unsigned long long)routing->tokens);
    if (args->topk != routing->topk)
        return mode->env->fail(mode->env, op, XEP_ERR_INVALID, "topk is %u, but %u with the cached handle", args->topk,
                               routing->topk);
    return XEP_OK;
}

/* The slot's routing is that of a handle long released; others may still use it. */
static xep_status_t routing_take(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = &mode->slots[op->slot];
    xep_status_t status = op->cached_slot == XEP_NO_SLOT ? XEP_OK : cached_check(mode, op);
    if (status != XEP_OK) return status;
    if (slot->routing) slot->routing->refs--;
    slot->routing = NULL;

    normal_routing_t *routing =
        op->cached_slot == XEP_NO_SLOT ? normal_routing_unused(mode) : mode->slots[op->cached_slot].routing;
    if (op->cached_slot == XEP_NO_SLOT) status = normal_plan_make(mode, op, routing);
    if (status != XEP_OK) return status;
    slot->routing = routing;
    routing->refs++;
    return XEP_OK;
}

/* The rows are counted already, so nobody who asks for counts waits for peers. Where they do not fit, agreement says so. */
static void cached_recv_set(normal_t *mode, const xep_op_t *op)
{
    uint64_t capacity = op->dispatch->capacity;
    if (capacity != 0 && capacity < mode->slots[op->slot].routing->src_begin[mode->shape->nranks]) return;
    expert_rows_set(mode, op);
    recv_set(mode, op);
}

static xep_status_t args_check(const normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const char *what = NULL;
    if (args->quant != XEP_QUANT_NONE) what = "cast rows (quant)";
    if (args->arrangement != XEP_ROWS_DEFAULT && args->arrangement != XEP_ROWS_BY_RANK) what = "arrange rows by expert";
    if (args->flags & XEP_DISPATCH_SCALES_BY_COLUMN) what = "arrange scales by column";
    if (args->expert_stats) what = "keep expert_stats";
    return what ? mode->env->fail(mode->env, op, XEP_ERR_UNSUPPORTED, "the mode normal does not %s", what) : XEP_OK;
}

xep_status_t normal_dispatch(void *mode, xep_op_t *op)
{
    xep_status_t status = args_check(mode, op);
    if (status == XEP_OK) status = routing_take(mode, op);
    if (status != XEP_OK) return status;
    normal_record_make(mode, op);
    if (op->cached_slot != XEP_NO_SLOT) cached_recv_set(mode, op);
    normal_progress(mode, op); /* as far as it goes; what comes of it is told by the next */
    return XEP_OK;
}
