/* SPDX-License-Identifier: BSD-3-Clause */

/* Random collective programs, and what each call must end with. */
#include <string.h>

#include "script.h"

static xep_dtype_t pick_dtype(sim_world_t *world, size_t most, xep_dtype_t first, xep_dtype_t last)
{
    xep_dtype_t dtype;
    do {
        dtype = (xep_dtype_t)(first + sim_below(world, last - first + 1));
    } while (script_bytes(dtype) > most);
    return dtype;
}

static void shape_random(sim_world_t *world, xep_shape_t *shape, uint32_t nranks)
{
    static const uint32_t hiddens[] = {1, 3, 8, 32, 33, 127, 128};
    static const uint32_t topks[] = {1, 2, 8, 32};
    *shape = (xep_shape_t){
        .nranks = nranks,
        .experts = 1 + (uint32_t)sim_below(world, 3 * nranks + 6),
        .topk = topks[sim_below(world, 4)],
        .hidden = sim_below(world, 60) ? hiddens[sim_below(world, 7)] : 7168,
        .scales = (uint32_t)sim_below(world, 4),
        .elem_bytes = 1u << sim_below(world, 4),
        .combine_elem_bytes = sim_chance(world, 70) ? 2 : 4,
        .slots = 1 + (uint32_t)sim_below(world, 3),
        .tokens = 1 + sim_below(world, sim_chance(world, 90) ? 8 : 40),
        .recv_rows = 0,
    };
    if (shape->topk > shape->experts) shape->topk = shape->experts;
    if (sim_chance(world, 15)) shape->recv_rows = 1 + sim_below(world, nranks * shape->tokens);
}

static script_call_t *call_add(script_t *script, script_kind_t kind, uint32_t handle)
{
    script_call_t *call = &script->calls[script->ncalls];
    *call = (script_call_t){.kind = kind, .number = script->ncalls++, .handle = handle, .cached = UINT32_MAX};
    if (kind != CALL_RELEASE) call->epoch = ++script->epoch;
    return call;
}

static script_call_t *maker(script_t *script, uint32_t handle)
{
    script_call_t *call = script->calls;
    while (call->kind != CALL_DISPATCH || call->handle != handle) call++;
    return call;
}

script_call_t *script_dispatch(script_t *script, uint32_t handle, uint32_t cached)
{
    const xep_shape_t *shape = &script->shape;
    script_call_t *call = call_add(script, CALL_DISPATCH, handle), *origin = call;
    if (cached != UINT32_MAX) origin = maker(script, cached);
    call->cached = cached;
    call->turn = script->turn++;
    call->origin = origin == call ? call->number : origin->origin;
    call->dtype = shape->elem_bytes == 1 ? XEP_U8 : shape->elem_bytes == 2 ? XEP_BF16 : shape->elem_bytes == 4 ? XEP_FP32 : XEP_INT64;
    call->hidden = shape->hidden;
    call->topk = origin == call ? shape->topk : origin->topk;
    call->idx_dtype = XEP_INT64;
    call->scales_dtype = XEP_FP32;
    call->route = origin->route;
    for (uint32_t r = 0; r < shape->nranks; r++) call->tokens[r] = origin == call ? shape->tokens : origin->tokens[r];
    return call;
}

script_call_t *script_combine(script_t *script, uint32_t handle)
{
    script_call_t *call = call_add(script, CALL_COMBINE, handle);
    call->dtype = script->shape.combine_elem_bytes == 2 ? XEP_BF16 : XEP_FP32;
    call->hidden = script->shape.hidden;
    return call;
}

script_call_t *script_release(script_t *script, uint32_t handle)
{
    return call_add(script, CALL_RELEASE, handle);
}

/* ---- random calls ---- */

static int overflows(const script_t *script, const script_call_t *call)
{
    for (uint32_t d = 0; d < script->shape.nranks; d++) {
        uint64_t rows = 0, room = call->capacity[d] ? call->capacity[d] : script->slot_rows;
        for (uint32_t r = 0; r < script->shape.nranks; r++) rows += script_rows_to(script, call, r, d);
        if (rows > room) return 1;
    }
    return 0;
}

/* Whether this difference would show: a rank without tokens has no opinion on weights, and so on. */
static int odd_shows(const script_t *script, const script_call_t *call)
{
    uint32_t others = 0;
    for (uint32_t r = 0; r < script->shape.nranks; r++) others += r != call->odd_rank && call->tokens[r];
    switch (call->odd) {
    case ODD_DTYPE:
        return call->kind == CALL_COMBINE ? call->dtype != XEP_FP32 : script_bytes(call->dtype) == 2;
    case ODD_HIDDEN:
        return call->hidden > 1;
    case ODD_WEIGHTS:
        return call->kind == CALL_DISPATCH && others && call->tokens[call->odd_rank];
    case ODD_TOPK:
        return call->kind == CALL_DISPATCH && call->topk > 1 && call->cached == UINT32_MAX;
    case ODD_IDX_DTYPE:
        return call->kind == CALL_DISPATCH;
    case ODD_SCALES:
    case ODD_SCALES_DTYPE:
        return call->kind == CALL_DISPATCH && call->nscales;
    case ODD_CACHED:
        return call->kind == CALL_DISPATCH && call->cached != UINT32_MAX;
    default:
        return 0;
    }
}

static void odd_random(sim_world_t *world, const script_t *script, script_call_t *call)
{
    if (script->shape.nranks == 1 || !sim_chance(world, 12)) return;
    call->odd = (script_odd_t)(1 + sim_below(world, ODD_KINDS - 1));
    call->odd_rank = (uint32_t)sim_below(world, script->shape.nranks);
    if (!odd_shows(script, call)) call->odd = ODD_NONE;
    if (call->odd != ODD_NONE) call->expect = XEP_ERR_MISMATCH;
}

static void dispatch_random(sim_world_t *world, script_t *script, script_call_t *call)
{
    const xep_shape_t *shape = &script->shape;
    int cached = call->cached != UINT32_MAX;
    call->dtype = pick_dtype(world, shape->elem_bytes, XEP_BF16, XEP_FP64);
    if (script->integers) call->dtype = shape->elem_bytes == 2 ? XEP_BF16 : XEP_FP32;
    if (!script->integers && sim_chance(world, 20)) call->hidden = 1 + (uint32_t)sim_below(world, shape->hidden);
    if (!cached && sim_chance(world, 20)) call->topk = 1 + (uint32_t)sim_below(world, shape->topk);
    if (!cached) call->route = sim_chance(world, 50) ? ROUTE_UNIFORM : (script_route_t)sim_below(world, ROUTE_KINDS);
    call->idx_dtype = sim_chance(world, 50) ? XEP_INT64 : XEP_INT32;
    call->scales_dtype = sim_chance(world, 50) ? XEP_FP32 : XEP_INT32;
    call->nscales = (uint32_t)sim_below(world, shape->scales + 1);
    call->weights = sim_chance(world, 60);
    call->alignment = (uint32_t)sim_below(world, 5);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (!cached && sim_chance(world, 50)) call->tokens[r] = sim_below(world, shape->tokens + 1);
        if (!cached && sim_chance(world, 10)) call->tokens[r] = 0;
        if (sim_chance(world, 30)) call->capacity[r] = script->slot_rows;
        if (sim_chance(world, 3)) call->capacity[r] = 1 + sim_below(world, script->slot_rows);
    }
    odd_random(world, script, call);
    if (call->expect == XEP_OK && overflows(script, call)) call->expect = XEP_ERR_OVERFLOW;
}

static void combine_random(sim_world_t *world, script_t *script, script_call_t *call)
{
    call->dtype = pick_dtype(world, script->shape.combine_elem_bytes, XEP_BF16, XEP_FP32);
    if (script->integers) call->hidden = maker(script, call->handle)->hidden;
    if (!script->integers && sim_chance(world, 20)) call->hidden = 1 + (uint32_t)sim_below(world, call->hidden);
    call->weights = sim_chance(world, 40);
    call->special = sim_chance(world, 20);
    odd_random(world, script, call);
}

/* The handles that live at this point of the script, at most as many as there are slots. */
typedef struct living {
    uint32_t handles[SCRIPT_HANDLES], count, made;
} living_t;

static void call_random(sim_world_t *world, script_t *script, living_t *living)
{
    uint32_t at = living->count ? (uint32_t)sim_below(world, living->count) : 0;
    int may_make = living->count < script->shape.slots && living->made < SCRIPT_HANDLES;
    if (may_make && (!living->count || sim_chance(world, 50))) {
        uint32_t cached = living->count && sim_chance(world, 40) ? living->handles[at] : UINT32_MAX;
        script_call_t *call = script_dispatch(script, living->made++, cached);
        dispatch_random(world, script, call);
        if (call->expect == XEP_OK) living->handles[living->count++] = call->handle;
    } else if (living->count && sim_chance(world, 65)) {
        combine_random(world, script, script_combine(script, living->handles[at]));
    } else if (living->count) {
        script_release(script, living->handles[at]);
        living->handles[at] = living->handles[--living->count];
    }
}

void script_begin(sim_world_t *world, script_t *script, const xep_shape_t *shape)
{
    uint64_t bytes;
    memset(script, 0, sizeof *script);
    script->seed = sim_random(world);
    script->shape = *shape;
    if (world->plugin->heap_size(&script->shape, &bytes, &script->slot_rows) != XEP_OK)
        sim_fail(world, "heap_size refused a shape");
}

void script_make(sim_world_t *world, script_t *script, uint32_t nranks, const script_t *before)
{
    living_t living = {.count = 0};
    xep_shape_t shape;
    if (before)
        shape = before->shape;
    else
        shape_random(world, &shape, nranks);
    script_begin(world, script, &shape);
    script->integers = sim_chance(world, 20) && shape.elem_bytes >= 2;
    if (before) {
        script->epoch = before->epoch;
        script->turn = script->first_turn = before->turn;
    }
    for (uint64_t n = 1 + sim_below(world, SCRIPT_CALLS - 1); n > 0; n--) call_random(world, script, &living);
    while (living.count && script->ncalls < SCRIPT_CALLS) script_release(script, living.handles[--living.count]);
}
