/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that are read in place (kit_in_place.h): what of it depends on records and on the order of rows. With
 * XEP_DISPATCH_IN_PLACE step 4 (normal.h) moves no rows between mapped ranks. Records say where they are.
 */
#include "normal_steps.h"

#include <string.h>

/*
 * The record says where rows are. Those that are cast are made where peers read them: they are there then, as if the
 * caller had done so.
 */
static xep_status_t take_memory(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_in_place_rows_t *rows = &xep_kit_state(op)->in_place;
    slot->record.params[NORMAL_IN_PLACE] = (op->dispatch->flags & XEP_DISPATCH_IN_PLACE) != 0;
    slot->record.rows_at = rows->rows_at;
    if (xep_kit_state(op)->casts && rows->fill != NULL) {
        slot->cast.x = rows->fill;
        slot->cast.x_stride = mode->layout.common.in_place.stride;
        rows->fill = NULL;
    }
    return xep_in_place_take(opaque, op);
}

/* Whether any rank gets the token, and so reads its row. */
static int is_read(const normal_t *mode, const xep_op_t *op, uint64_t token)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    return routing->first[token] < routing->first[token + 1];
}

/* Behind the records: memory is indexed by what they say. */
static xep_status_t check_places(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    for (uint32_t i = 0; i < op->heard.count; i++) {
        const uint32_t r = op->heard.rank[i];
        const normal_record_t *record = &normal_slot(mode, op->slot)->from[r];
        if (!xep_in_place_is_sane(&mode->kit, record->rows_at, record->tokens))
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "invalid record from rank %u: rows in place from row %llu on (in its send "
                                       "memory)",
                                       r, (unsigned long long)record->rows_at - 1);
    }
    return XEP_OK;
}

typedef struct fill {
    const normal_t *mode;
    const xep_op_t *op;
    xep_copy_fn copy;
} fill_t;

/* All rows are here: a buffer with send memory is never staged. */
static void fill_place(void *arg, uint32_t thread, uint32_t nthreads)
{
    const fill_t *fill = arg;
    const xep_dispatch_args_t *args = fill->op->dispatch;
    const uint64_t begin = args->tokens * thread / nthreads, end = args->tokens * (thread + 1) / nthreads;
    const size_t stride = fill->mode->layout.common.in_place.stride, bytes = xep_dispatch_row_bytes(args);
    for (uint64_t t = begin; t < end; t++) {
        const char *row = (const char *)args->x + t * args->x_stride, *next = t + 1 < end ? row + args->x_stride : row;
        if (is_read(fill->mode, fill->op, t))
            fill->copy(xep_kit_state(fill->op)->in_place.fill + t * stride, row, bytes, next);
    }
    xep_stores_fence();
}

/* Mapped ranks read rows where they lie, and where the caller has put them elsewhere they are first copied there. */
static xep_status_t leave_rows(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    normal_target_t *targets = normal_slot(mode, op->slot)->targets;
    if (xep_kit_state(op)->in_place.rows_at == 0) return XEP_OK;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) targets[r].x = NULL;
    if (xep_kit_state(op)->in_place.fill == NULL) return XEP_OK;
    fill_t fill = {mode, op, xep_copy_for(env, op->dispatch->tokens * xep_dispatch_row_bytes(op->dispatch))};
    env->parallel(env, fill_place, &fill);
    return XEP_OK;
}

/* ---- where they are read ---- */

/*
 * src_token lies in the own slot, but that rank has stored it and could again: a number that is none of its tokens
 * would make a pointer to whatever lies behind its memory of rows.
 */
static xep_status_t point_rows_of(normal_t *mode, xep_op_t *op, uint32_t rank)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_record_t *record = &slot->from[rank];
    const char *base = xep_in_place_rows(&mode->kit, rank, record->rows_at);
    const volatile int32_t *tokens = op->recv->src_token; /* read once: the peer may write there still */
    for (uint64_t i = slot->routing->src_begin[rank]; i < slot->routing->src_begin[rank + 1]; i++) {
        const int32_t token = tokens[i];
        if ((uint64_t)(int64_t)token >= record->tokens)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "invalid token from rank %u: %d (below %llu)", rank, token,
                                       (unsigned long long)record->tokens);
        slot->row[i] = base + (uint32_t)token * mode->layout.common.in_place.stride;
    }
    return XEP_OK;
}

/*
 * Rows that their ranks have in place are read there, all others in the own slot, where they were stored or put.
 * Behind the last row there is NULL, and not what an earlier dispatch had there.
 */
static xep_status_t point_rows(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const char *x = xep_kit_own_area(&mode->kit, mode->layout.common.x, op->slot);
    size_t stride = xep_row_stride(xep_dispatch_row_bytes(op->dispatch));
    xep_status_t status = XEP_OK;
    if ((op->dispatch->flags & XEP_DISPATCH_IN_PLACE) == 0) return XEP_OK;
    for (uint32_t r = 0; r < mode->kit.shape->nranks && status == XEP_OK; r++) {
        if (mode->kit.base[r] != NULL && slot->from[r].rows_at != 0) {
            status = point_rows_of(mode, op, r);
            continue;
        }
        for (uint64_t i = slot->routing->src_begin[r]; i < slot->routing->src_begin[r + 1]; i++)
            slot->row[i] = x + i * stride;
    }
    memset(slot->row + op->recv->rows, 0, (op->recv->capacity - op->recv->rows) * sizeof *slot->row);
    for (uint32_t r = 0; r < mode->kit.shape->nranks && status == XEP_OK; r++)
        if (mode->kit.base[r] != NULL) xep_in_place_read(&mode->kit, op, r, slot->from[r].rows_at);
    return status;
}

const xep_step_t normal_in_place_steps[] = {
    {.at = XEP_AT_MEMORY, .name = "memory", .does = "take memory", .run = take_memory},
    {.at = XEP_AT_CHECK, .name = "agreement", .does = "check rows in place", .run = check_places, .agreed = 1},
    {.at = XEP_AT_CHECK, .name = "memory", .does = "give memory back", .run = xep_in_place_return},
    {.at = XEP_AT_STAY, .name = "places", .does = "leave rows", .run = leave_rows, .agreed = 1},
    {.at = XEP_AT_POINT, .name = "rows", .does = "show", .run = point_rows, .agreed = 1},
    {0},
};
