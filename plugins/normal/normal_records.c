/* SPDX-License-Identifier: BSD-3-Clause */

/* The records ranks tell each other before rows move, and the verdict on them that every rank reaches alike. */
#include <stdio.h>
#include <string.h>

#include "normal.h"

static const char *const param_names[NORMAL_RECORD_PARAMS] = {
    [NORMAL_DTYPE] = "dtype",
    [NORMAL_HIDDEN] = "hidden",
    [NORMAL_HAS_WEIGHTS] = "whether there are topk_weights",
    [NORMAL_TOPK] = "topk",
    [NORMAL_IDX_DTYPE] = "topk_idx_dtype",
    [NORMAL_SCALES] = "nscales",
    [NORMAL_SCALES_DTYPE] = "scales_dtype",
    [NORMAL_CACHED] = "whether there is a cached handle",
};

/* A rank without tokens has no weights to show, and often no pointer: it agrees with either. */
static normal_weights_t dispatch_weights(const xep_dispatch_args_t *args)
{
    if (args->topk_weights) return NORMAL_WEIGHTS;
    return args->tokens ? NORMAL_NO_WEIGHTS : NORMAL_ANY_WEIGHTS;
}

void normal_record_make(normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    normal_slot_t *slot = &mode->slots[op->slot];
    uint64_t room = mode->layout.recv_rows;

    slot->record = (normal_record_t){
        .epoch = op->epoch,
        .routing = slot->routing->epoch,
        .tokens = args->tokens,
        .capacity = args->capacity && args->capacity < room ? args->capacity : room,
        .slot = op->slot,
        .params =
            {
                [NORMAL_DTYPE] = args->dtype,
                [NORMAL_HIDDEN] = args->hidden,
                [NORMAL_HAS_WEIGHTS] = dispatch_weights(args),
                [NORMAL_TOPK] = args->topk,
                [NORMAL_IDX_DTYPE] = args->topk_idx_dtype,
                [NORMAL_SCALES] = args->nscales,
                [NORMAL_SCALES_DTYPE] = args->nscales ? args->scales_dtype : 0,
                [NORMAL_CACHED] = op->cached_slot != XEP_NO_SLOT,
            },
    };
}

/* ---- sending ---- */

static uint64_t counts_offset(const normal_t *mode, const xep_op_t *op)
{
    uint32_t index = (uint32_t)(op->turn % mode->shape->slots);
    return normal_mail_offset(mode, index, mode->shape->rank) + offsetof(normal_mail_t, counts);
}

static void record_store(normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const normal_slot_t *slot = &mode->slots[op->slot];
    const xep_shape_t *shape = mode->shape;
    char *to = mode->base[rank] + normal_record_offset(mode, op->turn, shape->rank);
    uint32_t first = mode->first_expert[rank], local = mode->first_expert[rank + 1] - first;

    *(normal_record_t *)to = slot->record;
    ((normal_record_t *)to)->pulls = 1;
    if (op->cached_slot != XEP_NO_SLOT || rank == shape->rank) return; /* the own counts are taken from the plan */
    to += sizeof slot->record;
    memcpy(to, slot->routing->rows, shape->nranks * sizeof(uint32_t));
    to += shape->nranks * sizeof(uint32_t);
    memcpy(to, slot->routing->selections + first, local * sizeof(uint32_t));
}

/* The record from where it is: header, rows and selections are three places here, one there. */
static int record_part(normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number, normal_part_t *part)
{
    const normal_slot_t *slot = &mode->slots[op->slot];
    const xep_shape_t *shape = mode->shape;
    uint32_t first = mode->first_expert[rank], local = mode->first_expert[rank + 1] - first;
    uint64_t offset = normal_record_offset(mode, op->turn, shape->rank), rows = shape->nranks * sizeof(uint32_t);
    int cached = op->cached_slot != XEP_NO_SLOT;

    if (mode->base[rank]) return 0;
    *part = (normal_part_t){.rows = 1, .offset = offset};
    switch (number) {
    case 0:
        part->src = (const char *)&slot->record;
        part->bytes = sizeof slot->record;
        return 1;
    case 1:
        part->src = (const char *)slot->routing->rows;
        part->bytes = cached ? 0 : rows;
        part->offset += sizeof slot->record;
        return 1;
    case 2:
        part->src = (const char *)(slot->routing->selections + first);
        part->bytes = cached ? 0 : local * sizeof(uint32_t);
        part->offset += sizeof slot->record + rows;
        return 1;
    case 3:
        *part = (normal_part_t){.signal = 1, .offset = counts_offset(mode, op), .value = op->epoch};
        return 1;
    default:
        return 0;
    }
}

xep_status_t normal_records_post(normal_t *mode, xep_op_t *op)
{
    normal_state_t *state = normal_state(op);
    const xep_shape_t *shape = mode->shape;
    for (uint32_t i = 1; i <= shape->nranks && !state->told; i++) {
        uint32_t rank = (shape->rank + i) % shape->nranks;
        if (!mode->base[rank]) continue;
        record_store(mode, op, rank);
        normal_signal(mode, rank, counts_offset(mode, op), op->epoch);
    }
    state->told = 1;
    return normal_put_parts(mode, op, record_part);
}

/* ---- receiving ---- */

static xep_status_t protocol_error(normal_t *mode, xep_op_t *op, uint32_t rank, const char *what, uint64_t value)
{
    return mode->env->fail(mode->env, op, XEP_ERR_PROTOCOL, "rank %u sent a record with %s %llu", rank, what,
                           (unsigned long long)value);
}

static xep_status_t header_check(normal_t *mode, xep_op_t *op, uint32_t rank, const normal_record_t *record)
{
    const xep_shape_t *shape = mode->shape;
    if (record->epoch != op->epoch) return protocol_error(mode, op, rank, "epoch", record->epoch);
    if (record->slot >= shape->slots) return protocol_error(mode, op, rank, "slot", record->slot);
    if (record->pulls > 1) return protocol_error(mode, op, rank, "pulls", record->pulls);
    if (record->tokens > shape->tokens) return protocol_error(mode, op, rank, "tokens", record->tokens);
    if (record->capacity > mode->layout.recv_rows) return protocol_error(mode, op, rank, "capacity", record->capacity);
    return XEP_OK;
}

/* Copies first, then checks the copy: what a peer may still write is never trusted. */
static xep_status_t headers_take(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = &mode->slots[op->slot];
    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        slot->from[r] = *(const normal_record_t *)((const char *)mode->env->heap + normal_record_offset(mode, op->turn, r));
        xep_status_t status = header_check(mode, op, r, &slot->from[r]);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

static void value_text(uint32_t param, uint32_t value, char *text, size_t bytes)
{
    static const char *const dtypes[] = {"default", "bf16", "fp16", "fp32", "e4m3", "e5m2", "u8", "int32", "int64", "fp64"};
    int is_dtype = param == NORMAL_DTYPE || param == NORMAL_IDX_DTYPE || param == NORMAL_SCALES_DTYPE;
    if (is_dtype && value < sizeof dtypes / sizeof dtypes[0])
        snprintf(text, bytes, "%s", dtypes[value]);
    else if (param == NORMAL_HAS_WEIGHTS || param == NORMAL_CACHED)
        snprintf(text, bytes, "%s", value ? "yes" : "no");
    else
        snprintf(text, bytes, "%u", value);
}

static xep_status_t disagree(normal_t *mode, xep_op_t *op, uint32_t param, const uint32_t rank[2],
                             const uint32_t value[2])
{
    char text[2][16];
    for (int i = 0; i < 2; i++) value_text(param, value[i], text[i], sizeof text[i]);
    return mode->env->fail(mode->env, op, XEP_ERR_MISMATCH, "rank %u and rank %u disagree on %s: %s, %s", rank[0],
                           rank[1], param_names[param], text[0], text[1]);
}

/* The params of all ranks lie stride bytes apart. The first one on which some rank differs from the first rank
 * that has an opinion decides, so that every rank says the same. */
static xep_status_t params_compare(normal_t *mode, xep_op_t *op, const uint32_t *params, size_t stride, uint32_t count)
{
    uint32_t nranks = mode->shape->nranks;
    for (uint32_t p = 0; p < count; p++) {
        uint32_t any = p == NORMAL_HAS_WEIGHTS ? NORMAL_ANY_WEIGHTS : UINT32_MAX, rank[2] = {0, 0}, value[2] = {any, any};
        for (uint32_t r = 0; r < nranks; r++) {
            value[1] = *(const uint32_t *)((const char *)(params + p) + r * stride);
            rank[1] = r;
            if (value[1] == any) continue;
            if (value[0] != any && value[1] != value[0]) return disagree(mode, op, p, rank, value);
            if (value[0] == any) rank[0] = rank[1], value[0] = value[1];
        }
        if (p == NORMAL_HAS_WEIGHTS) normal_state(op)->weights = value[0];
    }
    return XEP_OK;
}

static xep_status_t routings_compare(normal_t *mode, xep_op_t *op)
{
    const normal_record_t *from = mode->slots[op->slot].from;
    for (uint32_t r = 1; r < mode->shape->nranks; r++)
        if (op->cached_slot != XEP_NO_SLOT && from[r].routing != from[0].routing)
            return mode->env->fail(mode->env, op, XEP_ERR_MISMATCH,
                                   "rank 0 and rank %u disagree on the cached handle: of operation %llu, %llu", r,
                                   (unsigned long long)from[0].routing, (unsigned long long)from[r].routing);
    return XEP_OK;
}

/* Rows of rank to everyone must be what some routing can give, or places computed from them would be wild. */
static xep_status_t rows_check(normal_t *mode, xep_op_t *op, uint32_t rank, const uint32_t *rows)
{
    const normal_record_t *record = &mode->slots[op->slot].from[rank];
    uint64_t sum = 0, nranks = mode->shape->nranks, topk = record->params[NORMAL_TOPK];
    for (uint32_t d = 0; d < mode->shape->nranks; d++) {
        if (rows[d] > record->tokens) return protocol_error(mode, op, rank, "rows to a rank", rows[d]);
        sum += rows[d];
    }
    if (sum > record->tokens * (topk < nranks ? topk : nranks)) return protocol_error(mode, op, rank, "rows in all", sum);
    return XEP_OK;
}

static xep_status_t selections_add(normal_t *mode, xep_op_t *op, uint32_t rank, const char *selections)
{
    const xep_shape_t *shape = mode->shape;
    normal_routing_t *routing = mode->slots[op->slot].routing;
    uint64_t rows = routing->rank_rows[(size_t)rank * shape->nranks + shape->rank], sum = 0, *local = routing->local;
    for (uint32_t e = 0, experts = shape->local_experts; e < experts; e++) {
        uint32_t count;
        memcpy(&count, selections + e * sizeof count, sizeof count);
        local[e] += count;
        sum += count;
    }
    if (sum < rows || sum > rows * routing->topk) return protocol_error(mode, op, rank, "selections", sum);
    return XEP_OK;
}

static xep_status_t counts_take(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->shape;
    normal_routing_t *routing = mode->slots[op->slot].routing;
    size_t bytes = shape->nranks * sizeof(uint32_t);

    memset(routing->local, 0, shape->local_experts * sizeof *routing->local);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        const char *from = (const char *)mode->env->heap + normal_record_offset(mode, op->turn, r);
        uint32_t *rows = routing->rank_rows + (size_t)r * shape->nranks;
        int self = r == shape->rank;
        memcpy(rows, self ? (const char *)routing->rows : from + sizeof(normal_record_t), bytes);
        xep_status_t status = rows_check(mode, op, r, rows);
        if (status != XEP_OK) return status;
        status = selections_add(mode, op, r,
                                self ? (const char *)(routing->selections + shape->first_expert)
                                     : from + sizeof(normal_record_t) + bytes);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

static void places_compute(normal_t *mode, normal_routing_t *routing)
{
    uint32_t nranks = mode->shape->nranks, self = mode->shape->rank;
    routing->src_begin[0] = 0;
    memset(routing->place, 0, nranks * sizeof *routing->place);
    for (uint32_t r = 0; r < nranks; r++) {
        const uint32_t *rows = routing->rank_rows + (size_t)r * nranks;
        routing->src_begin[r + 1] = routing->src_begin[r] + rows[self];
        for (uint32_t d = 0; d < nranks && r < self; d++) routing->place[d] += rows[d];
    }
}

static xep_status_t room_check(normal_t *mode, xep_op_t *op)
{
    const normal_slot_t *slot = &mode->slots[op->slot];
    uint32_t nranks = mode->shape->nranks;
    for (uint32_t d = 0; d < nranks; d++) {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < nranks; r++) rows += slot->routing->rank_rows[(size_t)r * nranks + d];
        if (rows > slot->from[d].capacity)
            return mode->env->fail(mode->env, op, XEP_ERR_OVERFLOW, "rank %u gets %llu rows and has room for %llu", d,
                                   (unsigned long long)rows, (unsigned long long)slot->from[d].capacity);
    }
    return XEP_OK;
}

xep_status_t normal_records_take(normal_t *mode, xep_op_t *op)
{
    normal_state_t *state = normal_state(op);
    normal_slot_t *slot = &mode->slots[op->slot];
    xep_status_t status = headers_take(mode, op);

    if (status != XEP_OK) return status;
    state->verdict = params_compare(mode, op, slot->from[0].params, sizeof slot->from[0], NORMAL_RECORD_PARAMS);
    if (state->verdict == XEP_OK) state->verdict = routings_compare(mode, op);
    if (state->verdict != XEP_OK) return XEP_OK;
    if (op->cached_slot == XEP_NO_SLOT) {
        status = counts_take(mode, op);
        if (status != XEP_OK) return status;
        places_compute(mode, slot->routing);
    }
    op->recv->rows = slot->routing->src_begin[mode->shape->nranks];
    state->verdict = room_check(mode, op);
    return XEP_OK;
}

/* ---- offers of a combine ---- */

xep_status_t normal_offers_take(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = &mode->slots[op->slot];
    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        normal_offer_t *offer = &slot->offers[r];
        *offer = normal_mail(mode, slot->from[r].slot, r)->offer;
        if (offer->epoch != op->epoch)
            return mode->env->fail(mode->env, op, XEP_ERR_PROTOCOL, "rank %u offers a combine of epoch %llu", r,
                                   (unsigned long long)offer->epoch);
    }
    normal_state(op)->verdict =
        params_compare(mode, op, slot->offers[0].params, sizeof slot->offers[0], NORMAL_OFFER_PARAMS);
    return XEP_OK;
}
