/* SPDX-License-Identifier: BSD-3-Clause */

#include "script.h"

#include <string.h>

#include "oracle_number.h"
#include "script_truth.h"
#include "sim_heap.h"
#include "sim_mode.h"

xep_dtype_t script_dtype(sim_dice_t *dice, size_t most, xep_dtype_t first, xep_dtype_t last)
{
    xep_dtype_t dtype;
    do {
        dtype = (xep_dtype_t)(first + sim_below(dice, last - first + 1));
    } while (oracle_element_bytes(dtype) > most);
    return dtype;
}

static void shape_random(sim_dice_t *dice, xep_shape_t *shape, uint32_t nranks, int may_be_in_place)
{
    static const uint32_t hiddens[] = {1, 3, 8, 32, 33, 127, 128, 129, 300, 520};
    static const uint32_t topks[] = {1, 2, 3, 8, 32};
    *shape = (xep_shape_t){
        .nranks = nranks,
        .experts = 1 + (uint32_t)sim_below(dice, 3 * nranks + 6),
        .topk = topks[sim_below(dice, 5)],
        .hidden = sim_below(dice, 60) ? hiddens[sim_below(dice, 10)] : 7168,
        .scales = (uint32_t)sim_below(dice, 4),
        .elem_bytes = 1u << sim_below(dice, 4),
        .combine_elem_bytes = sim_chance(dice, 70) ? 2 : 4,
        .slots = 1 + (uint32_t)sim_below(dice, 5),
        .tokens = 1 + sim_below(dice, sim_chance(dice, 90) ? 8 : 40),
    };
    if (shape->topk > shape->experts) shape->topk = shape->experts;
    shape->sends_in_place = may_be_in_place && sim_chance(dice, 30);
    if (sim_chance(dice, 15)) shape->recv_rows = 1 + sim_below(dice, nranks * shape->tokens * 2);
}

/* ---- calls by hand ---- */

static script_call_t *call_add(script_t *script, script_kind_t kind, uint32_t handle)
{
    script_call_t *call = &script->calls[script->ncalls];
    *call = (script_call_t){.kind = kind, .number = script->ncalls++, .handle = handle, .cached = SCRIPT_NO_HANDLE};
    call->payload = call->number;
    if (kind != CALL_RELEASE) call->epoch = ++script->epoch;
    return call;
}

const script_call_t *script_maker(const script_t *script, uint32_t handle)
{
    const script_call_t *call = script->calls;
    while (call->kind != CALL_DISPATCH || call->handle != handle) call++;
    return call;
}

script_call_t *script_dispatch(script_t *script, uint32_t handle, uint32_t cached)
{
    static const xep_dtype_t of_bytes[] = {[1] = XEP_U8, [2] = XEP_BF16, [4] = XEP_FP32, [8] = XEP_INT64};
    const xep_shape_t *shape = &script->shape;
    script_call_t *call = call_add(script, CALL_DISPATCH, handle);
    const script_call_t *origin = call;
    if (cached != SCRIPT_NO_HANDLE) origin = script_maker(script, cached);
    call->cached = cached;
    call->turn = script->turn++;
    call->origin = origin == call ? call->number : origin->origin;
    call->dtype = of_bytes[shape->elem_bytes];
    call->hidden = shape->hidden;
    call->topk = origin == call ? shape->topk : origin->topk;
    call->idx_dtype = XEP_INT64;
    call->scales_dtype = XEP_FP32;
    call->route = origin->route;
    call->weights = script->mode->by_expert ? origin->weights : 0; /* there they belong to the routing */
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

/* What a combine of it must be, but for what it is called with. */
static void copy_final(const script_t *script, script_call_t *call)
{
    const script_call_t *final = &script->finals[call->handle];
    call->dtype = final->dtype;
    call->hidden = final->hidden;
    call->weights = final->weights;
    call->special = final->special;
    call->payload = final->payload;
}

script_call_t *script_next(script_t *script, uint32_t handle)
{
    script_call_t *call = call_add(script, CALL_NEXT, handle);
    call->kept = script_maker(script, handle)->kept;
    call->turn = script->turn++;
    copy_final(script, call);
    return call;
}

/* ---- random calls ---- */

static uint64_t room_of(const script_t *script, const script_call_t *call, uint32_t rank)
{
    if (call->arrangement[rank] == XEP_ROWS_BY_EXPERT_PADDED) return script->shape.nranks * script->shape.tokens;
    return call->capacity[rank] ? call->capacity[rank] : script->slot_rows;
}

void script_expect(const script_t *script, script_call_t *call)
{
    for (uint32_t r = 0; r < script->shape.nranks && call->expect == XEP_OK && !call->in_pieces; r++)
        if (script_rows_needed(script, call, r) > room_of(script, call, r)) call->expect = XEP_ERR_OVERFLOW;
}

float script_quant_scale(const script_call_t *call)
{
    return call->quant == XEP_QUANT_E4M3_STATIC ? 0.25f : 0;
}

int script_is_odd(const script_call_t *call, uint32_t rank, script_odd_t odd)
{
    return call->odd == odd && call->odd_rank == rank;
}

/* Whether all ranks have the room of a slot: one that wants a piece of it with less is told that first. */
static int has_own_room(const script_t *script, const script_call_t *call)
{
    for (uint32_t r = 0; r < script->shape.nranks; r++)
        if (call->capacity[r] != 0) return 0;
    return 1;
}

static int odd_shows(const script_t *script, const script_call_t *call)
{
    int dispatch = call->kind == CALL_DISPATCH;
    if (call->kind == CALL_NEXT && !call->kept) return call->odd == ODD_REFUSED;
    switch (call->odd) {
    case ODD_NONE:
    case ODD_HANDLE: return 0;
    case ODD_REFUSED: return 1;
    case ODD_DTYPE: return dispatch ? oracle_element_bytes(call->dtype) == 2 : call->dtype != XEP_FP32;
    case ODD_HIDDEN: return call->hidden > 1;
    case ODD_TOPK: return dispatch && call->topk > 1 && call->cached == SCRIPT_NO_HANDLE;
    case ODD_SCALES:
    case ODD_SCALES_DTYPE: return dispatch && call->nscales;
    case ODD_IN_PLACE: return dispatch && script->shape.sends_in_place;
    case ODD_PIECES: return dispatch && script->shape.in_pieces && !call->in_place && has_own_room(script, call);
    default: return call->kind != CALL_NEXT && script->mode->notices(script, call);
    }
}

static void odd_random(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    if (script->shape.nranks == 1 || !sim_chance(dice, 12)) return;
    call->odd = (script_odd_t)(1 + sim_below(dice, ODD_KINDS - 1));
    call->odd_rank = (uint32_t)sim_below(dice, script->shape.nranks);
    if (!odd_shows(script, call)) call->odd = ODD_NONE;
    if (call->odd != ODD_NONE) call->expect = XEP_ERR_MISMATCH;
}

/* What only the first dispatch of a routing chooses. */
static void routing_random(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    const xep_shape_t *shape = &script->shape;
    if (sim_chance(dice, 20)) call->topk = 1 + (uint32_t)sim_below(dice, shape->topk);
    call->route = sim_chance(dice, 50) ? ROUTE_UNIFORM : (script_route_t)sim_below(dice, ROUTE_KINDS);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (sim_chance(dice, 50)) call->tokens[r] = sim_below(dice, shape->tokens + 1);
        if (sim_chance(dice, 10)) call->tokens[r] = 0;
    }
}

enum { MOST_REST = 3, FINALS = 1000 };

/* Whether a slot has room for a piece of every rank: not where experts are aligned to more than it has. */
static int has_piece_room(const script_t *script, const script_call_t *call)
{
    for (uint32_t r = 0; r < script->shape.nranks && script->mode->by_expert; r++)
        if (call->alignment[r] > script->slot_rows) return 0;
    return 1;
}

/* Some pieces, and what is combined behind the last of them. */
static void pieces_random(sim_dice_t *dice, const script_t *script, script_call_t *call)
{
    if (!script->shape.in_pieces || call->in_place || !sim_chance(dice, 80)) return;
    if (!has_piece_room(script, call)) return;
    uint64_t rest = script_pieces(script, call) - 1;
    if (rest > MOST_REST) return;
    call->in_pieces = 1;
    call->rest = rest;
    call->kept = sim_chance(dice, 85);
    for (uint32_t r = 0; r < script->shape.nranks; r++)
        if (call->arrangement[r] == XEP_ROWS_BY_EXPERT_PADDED) call->arrangement[r] = XEP_ROWS_BY_EXPERT_COMPACT;
    memset(call->capacity, 0, sizeof call->capacity);
}

/* As many rows as come, or one more or less: where mistakes of one show. */
static uint64_t tight_capacity(sim_dice_t *dice, const script_t *script, const script_call_t *call, uint32_t rank)
{
    uint64_t rows = script_rows_needed(script, call, rank) + sim_below(dice, 3);
    if (rows < 2) return 1;
    return rows - 1 < script->slot_rows ? rows - 1 : script->slot_rows;
}

static void dispatch_random(sim_dice_t *dice, script_t *script, script_call_t *call)
{
    const xep_shape_t *shape = &script->shape;
    int cached = call->cached != SCRIPT_NO_HANDLE;
    call->dtype = script_dtype(dice, shape->elem_bytes, XEP_BF16, XEP_FP64);
    if (script->integers) call->dtype = shape->elem_bytes == 2 ? XEP_BF16 : XEP_FP32;
    if (!cached) routing_random(dice, script, call);
    if (!cached || !script->mode->by_expert) call->weights = sim_chance(dice, 60);
    call->idx_dtype = sim_chance(dice, 50) ? XEP_INT64 : XEP_INT32;
    call->scales_dtype = sim_chance(dice, 50) ? XEP_FP32 : XEP_INT32;
    call->nscales = (uint32_t)sim_below(dice, shape->scales + 1);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (sim_chance(dice, 60)) call->alignment[r] = 1 + (uint32_t)sim_below(dice, 5);
        if (sim_chance(dice, 30)) call->capacity[r] = script->slot_rows;
    }
    call->in_place = shape->sends_in_place && sim_chance(dice, 70);
    script->mode->make_dispatch(dice, script, call);
    for (uint32_t r = 0; r < shape->nranks; r++)
        if (call->arrangement[r] != XEP_ROWS_BY_EXPERT_PADDED && sim_chance(dice, 5))
            call->capacity[r] = tight_capacity(dice, script, call, r);
    pieces_random(dice, script, call);
    if (!script->integers && sim_chance(dice, 20))
        call->hidden = 1 + (uint32_t)sim_below(dice, (uint64_t)shape->hidden * shape->elem_bytes /
                                                         oracle_element_bytes(call->dtype));
    odd_random(dice, script, call);
    script_expect(script, call);
}

static void outputs_random(sim_dice_t *dice, script_t *script, script_call_t *call)
{
    call->dtype = script_dtype(dice, script->shape.combine_elem_bytes, XEP_BF16, XEP_FP32);
    if (script->integers) call->hidden = script_maker(script, call->handle)->hidden;
    if (!script->integers && sim_chance(dice, 20)) call->hidden = 1 + (uint32_t)sim_below(dice, call->hidden);
    call->weights = sim_chance(dice, 40);
    call->special = sim_chance(dice, 20);
    script->mode->make_combine(dice, script, call);
}

static void combine_random(sim_dice_t *dice, script_t *script, script_call_t *call)
{
    if (script_maker(script, call->handle)->rest != 0) copy_final(script, call);
    else outputs_random(dice, script, call);
    odd_random(dice, script, call);
}

static void final_random(sim_dice_t *dice, script_t *script, uint32_t handle)
{
    script_call_t *final = &script->finals[handle];
    *final = (script_call_t){.kind = CALL_COMBINE, .handle = handle, .payload = FINALS + handle};
    final->dtype = script->shape.combine_elem_bytes == 2 ? XEP_BF16 : XEP_FP32;
    final->hidden = script->shape.hidden;
    outputs_random(dice, script, final);
}

/* The handles that live at this point of the script, at most as many as there are slots. */
typedef struct living {
    uint32_t handles[SCRIPT_HANDLES], count, made;
    uint64_t rest[SCRIPT_HANDLES]; /* by handle: pieces that have not come */
    int combined[SCRIPT_HANDLES];  /* by handle */
} living_t;

static void next_random(sim_dice_t *dice, script_t *script, living_t *living, uint32_t handle)
{
    script_call_t *call = script_next(script, handle);
    odd_random(dice, script, call);
    if (call->expect == XEP_OK) living->rest[handle]--;
}

/* One of several pieces: the next, as long as there are any; then a combine, if there are outputs, and one alone. */
static int use_random(sim_dice_t *dice, script_t *script, living_t *living, uint32_t handle)
{
    const script_call_t *made = script_maker(script, handle);
    if (living->rest[handle] != 0) {
        next_random(dice, script, living, handle);
        return 1;
    }
    if (made->rest != 0 && (!made->kept || living->combined[handle])) return 0;
    script_call_t *call = script_combine(script, handle);
    combine_random(dice, script, call);
    if (call->expect == XEP_OK) living->combined[handle] = 1;
    return 1;
}

static void call_random(sim_dice_t *dice, script_t *script, living_t *living)
{
    uint32_t at = living->count ? (uint32_t)sim_below(dice, living->count) : 0;
    int may_make = living->count < script->shape.slots && living->made < SCRIPT_HANDLES;
    if (may_make && (!living->count || sim_chance(dice, 50))) {
        uint32_t cached = living->count && sim_chance(dice, 35) ? living->handles[at] : SCRIPT_NO_HANDLE;
        script_call_t *call = script_dispatch(script, living->made++, cached);
        dispatch_random(dice, script, call);
        if (call->expect == XEP_OK) living->handles[living->count++] = call->handle;
        living->rest[call->handle] = call->rest;
        if (call->rest != 0) final_random(dice, script, call->handle);
    } else if (living->count && sim_chance(dice, 65) && use_random(dice, script, living, living->handles[at])) {
        return;
    } else if (living->count) {
        script_release(script, living->handles[at]);
        living->handles[at] = living->handles[--living->count];
    }
}

/* ---- scripts ---- */

void script_begin(sim_world_t *world, const sim_mode_t *mode, script_t *script, const xep_shape_t *shape)
{
    xep_region_t regions[XEP_REGIONS];
    uint64_t bytes;
    memset(script, 0, sizeof *script);
    script->mode = mode;
    script->seed = sim_random(&world->dice);
    script->shape = *shape;
    if (sim_shape_measure(world->plugin, &script->shape, world->options.node, regions, &bytes, &script->slot_rows) !=
        XEP_OK)
        sim_fail(world, "heap_size refused a shape");
}

/* Room for a few rows, or for what an even load needs. */
static void pieces_shape(sim_dice_t *dice, const sim_world_t *world, xep_shape_t *shape)
{
    const sim_options_t *options = &world->options;
    const int flat = options->feed_rows == 0 || options->flat;
    shape->in_pieces = world->plugin->next != NULL && !options->masks && flat && sim_chance(dice, 40);
    if (shape->in_pieces && sim_chance(dice, 80)) shape->recv_rows = 1 + sim_below(dice, 2 * shape->tokens);
}

void script_make(sim_world_t *world, const sim_mode_t *mode, script_t *script, uint32_t nranks, const script_t *before)
{
    sim_dice_t *dice = &world->dice;
    living_t living = {.count = 0};
    xep_shape_t shape;
    if (before != NULL) shape = before->shape;
    else shape_random(dice, &shape, nranks, world->plugin->place != NULL && !world->options.masks);
    if (before == NULL) pieces_shape(dice, world, &shape);
    script_begin(world, mode, script, &shape);
    script->integers = !mode->by_expert && sim_chance(dice, 20) && shape.elem_bytes >= 2;
    if (before != NULL) {
        script->epoch = before->epoch;
        script->turn = script->first_turn = before->turn;
    }
    for (uint64_t n = 1 + sim_below(dice, SCRIPT_CALLS - 1); n > 0; n--) call_random(dice, script, &living);
    while (living.count && script->ncalls < SCRIPT_CALLS) script_release(script, living.handles[--living.count]);
}
