/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A dispatch that casts is one of other rows: those that this rank makes of the caller's, each once, in its first step.
 * From there on they travel as rows and scales of the caller's would, whatever the buffer has. First, as nothing may
 * keep it from that: rows in send memory are free to be written again when the call returns.
 */
#include <cast.h>

#include "normal_steps.h"

/* The pages are touched by dispatches that cast: there may be none. */
void normal_lay_casts(normal_t *mode)
{
    mode->casts = xep_kit_reserve(&mode->kit, mode->kit.shape->slots, normal_cast_room(mode->kit.shape));
}

/* ---- begin ---- */

xep_status_t normal_begin_casts(normal_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const uint64_t room = normal_cast_room(mode->kit.shape);
    if (mode->casts == NULL)
        return env->fail(env, op, XEP_ERR_NO_MEMORY, "no memory for rows that are cast: %llu bytes",
                         (unsigned long long)(mode->kit.shape->slots * room));
    return normal_take_casts(mode, op, mode->casts + op->slot * room);
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

static xep_status_t cast_rows(void *opaque, xep_op_t *op)
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

const xep_step_t normal_casts_steps[] = {
    {.at = XEP_AT_CAST, .name = "rows that are coming", .does = "cast", .run = cast_rows, .kinds = XEP_KIND_CASTS},
    {0},
};
