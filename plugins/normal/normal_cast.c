/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A dispatch that casts is one of other rows: those that this rank makes of the caller's, each once, in its first step.
 * From there on they travel as rows and scales of the caller's would, whatever the buffer has. First, as nothing may
 * keep it from that: rows in send memory are free to be written again when the call returns.
 */
#include <cast.h>
#include <stdlib.h>

#include "normal_steps.h"

/* The longest row that can be cast has elements of 2 bytes, of which at most 8 bits are left. */
static uint64_t row_room(const xep_shape_t *shape)
{
    return xep_row_stride((size_t)shape->hidden * shape->elem_bytes / 2);
}

static uint64_t slot_room(const xep_shape_t *shape)
{
    return shape->tokens * (row_room(shape) + shape->scales * UINT64_C(4));
}

/* The pages are touched by dispatches that cast: there may be none. */
void normal_lay_casts(normal_t *mode)
{
    mode->casts = calloc(mode->kit.shape->slots, slot_room(mode->kit.shape));
}

/* ---- begin ---- */

static xep_status_t check_cast(const normal_t *mode, xep_op_t *op, const xep_cast_format_t *format)
{
    const xep_env_t *env = mode->kit.env;
    const xep_shape_t *shape = mode->kit.shape;
    if (format->scale_words > shape->scales)
        return env->fail(env, op, XEP_ERR_INVALID,
                         "too few scales in a row for quant %d: %u (params.scales: at least %llu for a hidden of %u)",
                         (int)op->dispatch->quant, shape->scales, (unsigned long long)format->scale_words,
                         op->dispatch->hidden);
    if (mode->casts == NULL)
        return env->fail(env, op, XEP_ERR_NO_MEMORY, "no memory for rows that are cast: %llu bytes",
                         (unsigned long long)(shape->slots * slot_room(shape)));
    return XEP_OK;
}

/* Rows that are read in place are made where peers read them: they are there then, as if the caller had done so. */
static void place_rows(const normal_t *mode, xep_op_t *op, xep_dispatch_args_t *to)
{
    xep_in_place_rows_t *in_place = &normal_state(op)->in_place;
    if (in_place->fill == NULL) return;
    to->x = in_place->fill;
    to->x_stride = mode->layout.in_place.stride;
    in_place->fill = NULL;
}

xep_status_t normal_take_casts(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->kit.shape;
    xep_dispatch_args_t *to = &normal_slot(mode, op->slot)->cast;
    xep_cast_format_t format;
    xep_cast_format(op->dispatch->quant, op->dispatch->hidden, &format);
    xep_status_t status = check_cast(mode, op, &format);
    if (status != XEP_OK) return status;
    const char *memory = mode->casts + op->slot * slot_room(shape);
    *to = *op->dispatch;
    to->x = memory;
    to->x_stride = xep_row_stride(format.row_bytes);
    to->dtype = format.dtype;
    to->hidden = (uint32_t)format.row_bytes;
    to->scales = memory + shape->tokens * row_room(shape);
    to->nscales = (uint32_t)format.scale_words;
    to->scales_dtype = format.scales_dtype;
    to->scales_stride = 4;
    to->scales_token_stride = (ptrdiff_t)to->nscales * 4;
    place_rows(mode, op, to);
    normal_state(op)->given = op->dispatch;
    op->dispatch = to;
    xep_kit_state(op)->casts = XEP_STEPS_CASTS;
    return XEP_OK;
}

/* ---- the step ---- */

typedef struct casting {
    const xep_dispatch_args_t *from, *to;
    const uint64_t *first; /* of the routing */
    uint64_t begin, end;   /* tokens */
    xep_cast_t cast;
} casting_t;

/* A row that goes nowhere is not read. */
static void cast_tokens(void *arg, uint32_t thread, uint32_t nthreads)
{
    const casting_t *casting = arg;
    const xep_dispatch_args_t *from = casting->from, *to = casting->to;
    const uint64_t tokens = casting->end - casting->begin, begin = casting->begin + tokens * thread / nthreads,
                   end = casting->begin + tokens * (thread + 1) / nthreads;
    for (uint64_t t = begin; t < end; t++) {
        const char *x = (const char *)from->x + t * from->x_stride, *next = t + 1 < end ? x + from->x_stride : x;
        if (casting->first[t] == casting->first[t + 1]) continue;
        casting->cast.row(&casting->cast, (char *)to->x + t * to->x_stride,
                          (char *)to->scales + (ptrdiff_t)t * to->scales_token_stride, x, from->hidden, next);
    }
}

xep_status_t normal_cast_rows(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_state_t *state = normal_state(op);
    const xep_dispatch_args_t *from = state->given;
    casting_t casting = {
        .from = from,
        .to = op->dispatch,
        .first = normal_slot(mode, op->slot)->routing->first,
        .begin = state->cast,
        .end = from->tokens - op->coming,
        .cast = xep_cast_select(from->quant, from->dtype, mode->kit.env->simd, from->quant_scale),
    };
    mode->kit.env->parallel(mode->kit.env, cast_tokens, &casting);
    state->cast = casting.end;
    return op->coming == 0 ? XEP_OK : XEP_INPROGRESS;
}
