/* SPDX-License-Identifier: BSD-3-Clause */

/* Random collective programs for the mode "ll", and what each call must end with. */
#include "ll_script.h"

#include <string.h>

static xep_dtype_t pick_dtype(sim_world_t *world, size_t most, xep_dtype_t first, xep_dtype_t last)
{
    xep_dtype_t dtype;
    do dtype = (xep_dtype_t)(first + sim_below(world, last - first + 1));
    while (script_bytes(dtype) > most);
    return dtype;
}

static void shape_random(sim_world_t *world, xep_shape_t *shape, uint32_t nranks)
{
    static const uint32_t hiddens[] = {1, 3, 8, 32, 33, 127, 128, 129, 300, 520};
    static const uint32_t topks[] = {1, 2, 3, 8};
    *shape = (xep_shape_t){
        .nranks = nranks,
        .experts = 1 + (uint32_t)sim_below(world, 3 * nranks + 6),
        .topk = topks[sim_below(world, 4)],
        .hidden = sim_below(world, 60) ? hiddens[sim_below(world, 10)] : 7168,
        .scales = (uint32_t)sim_below(world, 4),
        .elem_bytes = 1u << sim_below(world, 4),
        .combine_elem_bytes = sim_chance(world, 70) ? 2 : 4,
        .slots = 1 + (uint32_t)sim_below(world, 5),
        .tokens = 1 + sim_below(world, sim_chance(world, 90) ? 8 : 40),
    };
    if (shape->topk > shape->experts) shape->topk = shape->experts;
    if (sim_chance(world, 15)) shape->recv_rows = 1 + sim_below(world, nranks * shape->tokens * 2);
}

static ll_call_t *call_add(ll_script_t *script, script_kind_t kind, uint32_t handle)
{
    ll_call_t *call = &script->calls[script->ncalls];
    *call = (ll_call_t){.kind = kind, .number = script->ncalls++, .handle = handle, .cached = UINT32_MAX};
    if (kind != CALL_RELEASE) call->epoch = ++script->epoch;
    return call;
}

static ll_call_t *maker(ll_script_t *script, uint32_t handle)
{
    ll_call_t *call = script->calls;
    while (call->kind != CALL_DISPATCH || call->handle != handle) call++;
    return call;
}

ll_call_t *ll_script_dispatch(ll_script_t *script, uint32_t handle, uint32_t cached)
{
    const xep_shape_t *shape = &script->shape;
    ll_call_t *call = call_add(script, CALL_DISPATCH, handle), *origin = cached == UINT32_MAX ? call : maker(script, cached);
    call->cached = cached;
    call->turn = script->turn++;
    call->origin = origin == call ? call->number : origin->origin;
    call->dtype = shape->elem_bytes == 1 ? XEP_U8 : shape->elem_bytes == 2 ? XEP_BF16 : shape->elem_bytes == 4 ? XEP_FP32 : XEP_INT64;
    call->hidden = shape->hidden;
    call->topk = origin == call ? shape->topk : origin->topk;
    call->idx_dtype = XEP_INT64;
    call->scales_dtype = XEP_FP32;
    call->route = origin->route;
    call->weights = origin->weights;
    for (uint32_t r = 0; r < shape->nranks; r++) call->tokens[r] = origin == call ? shape->tokens : origin->tokens[r];
    return call;
}

ll_call_t *ll_script_combine(ll_script_t *script, uint32_t handle)
{
    ll_call_t *call = call_add(script, CALL_COMBINE, handle);
    call->dtype = script->shape.combine_elem_bytes == 2 ? XEP_BF16 : XEP_FP32;
    call->hidden = script->shape.hidden;
    return call;
}

ll_call_t *ll_script_release(ll_script_t *script, uint32_t handle)
{
    return call_add(script, CALL_RELEASE, handle);
}

/* ---- random calls ---- */

static int overflows(const ll_script_t *script, const ll_call_t *call)
{
    for (uint32_t d = 0; d < script->shape.nranks; d++) {
        uint64_t room = call->capacity[d] ? call->capacity[d] : script->slot_rows;
        if (call->arrangement[d] == XEP_ROWS_BY_EXPERT_PADDED) room = (uint64_t)script->shape.nranks * script->shape.tokens;
        if (ll_needed(script, call, d) > room) return 1;
    }
    return 0;
}

void ll_script_expect(const ll_script_t *script, ll_call_t *call)
{
    if (call->expect == XEP_OK && overflows(script, call)) call->expect = XEP_ERR_OVERFLOW;
}

static int odd_shows(const ll_call_t *call)
{
    int dispatch = call->kind == CALL_DISPATCH;
    switch (call->odd) {
    case LL_ODD_DTYPE:
        return dispatch ? script_bytes(call->dtype) == 2 : call->dtype != XEP_FP32;
    case LL_ODD_HIDDEN:
        return call->hidden > 1;
    case LL_ODD_TOPK:
        return dispatch && call->topk > 1 && call->cached == UINT32_MAX;
    case LL_ODD_QUANT:
        return dispatch && call->quant != XEP_QUANT_NONE;
    case LL_ODD_SCALES:
        return dispatch && call->nscales;
    case LL_ODD_SENT:
        return dispatch && call->weights;
    default:
        return 0;
    }
}

static void odd_random(sim_world_t *world, const ll_script_t *script, ll_call_t *call)
{
    if (script->shape.nranks == 1 || !sim_chance(world, 12)) return;
    call->odd = (ll_odd_t)(1 + sim_below(world, LL_ODD_KINDS - 1));
    call->odd_rank = (uint32_t)sim_below(world, script->shape.nranks);
    if (!odd_shows(call)) call->odd = LL_ODD_NONE;
    if (call->odd != LL_ODD_NONE) call->expect = XEP_ERR_MISMATCH;
}

static void payload_random(sim_world_t *world, const ll_script_t *script, ll_call_t *call)
{
    const xep_shape_t *shape = &script->shape;
    int casts = shape->elem_bytes > 1 && sim_chance(world, 60);
    call->dtype = casts ? pick_dtype(world, shape->elem_bytes, XEP_BF16, XEP_FP32) : pick_dtype(world, shape->elem_bytes, XEP_BF16, XEP_FP64);
    if (casts) call->quant = (xep_quant_t)(1 + sim_below(world, 3));
    else call->nscales = (uint32_t)sim_below(world, shape->scales + 1);
    if (sim_chance(world, 20)) call->hidden = 1 + (uint32_t)sim_below(world, shape->hidden * shape->elem_bytes / script_bytes(call->dtype));
    call->idx_dtype = sim_chance(world, 50) ? XEP_INT64 : XEP_INT32;
    call->scales_dtype = sim_chance(world, 50) ? XEP_FP32 : XEP_INT32;
}

static void dispatch_random(sim_world_t *world, ll_script_t *script, ll_call_t *call)
{
    const xep_shape_t *shape = &script->shape;
    int cached = call->cached != UINT32_MAX;
    uint64_t padded_rows = (shape->experts + shape->nranks - 1) / shape->nranks * (uint64_t)shape->nranks * shape->tokens;
    payload_random(world, script, call);
    if (!cached && sim_chance(world, 20)) call->topk = 1 + (uint32_t)sim_below(world, shape->topk);
    if (!cached) call->route = sim_chance(world, 50) ? ROUTE_UNIFORM : (script_route_t)sim_below(world, ROUTE_KINDS);
    if (!cached) call->weights = sim_chance(world, 60);
    call->sent = call->weights && sim_chance(world, 40);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (!cached && sim_chance(world, 50)) call->tokens[r] = sim_below(world, shape->tokens + 1);
        if (!cached && sim_chance(world, 10)) call->tokens[r] = 0;
        if (sim_chance(world, 40)) call->alignment[r] = 1 + (uint32_t)sim_below(world, 5);
        if (sim_chance(world, 30)) call->capacity[r] = script->slot_rows;
        if (sim_chance(world, 3)) call->capacity[r] = 1 + sim_below(world, script->slot_rows);
        call->by_column[r] = sim_chance(world, 40);
        call->arrangement[r] = sim_chance(world, 50) ? XEP_ROWS_DEFAULT : XEP_ROWS_BY_EXPERT_COMPACT;
        if (script->slot_rows >= padded_rows && sim_chance(world, 40)) {
            call->arrangement[r] = XEP_ROWS_BY_EXPERT_PADDED;
            call->capacity[r] = 0;
        }
    }
    odd_random(world, script, call);
    ll_script_expect(script, call);
}

static void combine_random(sim_world_t *world, ll_script_t *script, ll_call_t *call)
{
    call->dtype = pick_dtype(world, script->shape.combine_elem_bytes, XEP_BF16, XEP_FP32);
    if (sim_chance(world, 20)) call->hidden = 1 + (uint32_t)sim_below(world, call->hidden);
    call->weights = sim_chance(world, 40);
    call->special = sim_chance(world, 20);
    call->logfmt = call->dtype == XEP_BF16 && sim_chance(world, 30);
    odd_random(world, script, call);
    if (call->odd == LL_ODD_DTYPE) call->logfmt = 0;
}

/* The handles that live at this point of the script, at most as many as there are slots. */
typedef struct living {
    uint32_t handles[LL_HANDLES], count, made;
} living_t;

static void call_random(sim_world_t *world, ll_script_t *script, living_t *living)
{
    uint32_t at = living->count ? (uint32_t)sim_below(world, living->count) : 0;
    int may_make = living->count < script->shape.slots && living->made < LL_HANDLES;
    if (may_make && (!living->count || sim_chance(world, 50))) {
        uint32_t cached = living->count && sim_chance(world, 30) ? living->handles[at] : UINT32_MAX;
        ll_call_t *call = ll_script_dispatch(script, living->made++, cached);
        dispatch_random(world, script, call);
        if (call->expect == XEP_OK) living->handles[living->count++] = call->handle;
    } else if (living->count && sim_chance(world, 65)) {
        combine_random(world, script, ll_script_combine(script, living->handles[at]));
    } else if (living->count) {
        ll_script_release(script, living->handles[at]);
        living->handles[at] = living->handles[--living->count];
    }
}

void ll_script_make(sim_world_t *world, ll_script_t *script, uint32_t nranks)
{
    living_t living = {.count = 0};
    uint64_t bytes, calls = 1 + sim_below(world, LL_CALLS - 1);
    memset(script, 0, sizeof *script);
    script->seed = sim_random(world);
    shape_random(world, &script->shape, nranks);
    if (world->plugin->heap_size(&script->shape, &bytes, &script->slot_rows) != XEP_OK) sim_fail(world, "heap_size refused a shape");
    for (uint64_t i = 0; i < calls; i++) call_random(world, script, &living);
    while (living.count && script->ncalls < LL_CALLS) ll_script_release(script, living.handles[--living.count]);
}
