/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory, its progress, its name. */
#include <stdlib.h>
#include <string.h>

#include <carve.h>

#include "normal.h"

static void routing_take_arrays(normal_t *mode, xep_carve_t *arena, normal_routing_t *routing)
{
    const xep_shape_t *shape = mode->shape;
    uint64_t tokens = shape->tokens, ranks = shape->nranks, dests = tokens * mode->max_dests;
    routing->experts = xep_carve_array(arena, tokens * shape->topk, sizeof *routing->experts);
    routing->first = xep_carve_array(arena, tokens + 1, sizeof *routing->first);
    routing->dests = xep_carve_array(arena, dests, sizeof *routing->dests);
    routing->tokens_to = xep_carve_array(arena, mode->all_mapped ? 0 : dests, sizeof *routing->tokens_to);
    routing->to_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->to_begin);
    routing->rows = xep_carve_array(arena, ranks, sizeof *routing->rows);
    routing->selections = xep_carve_array(arena, shape->experts, sizeof *routing->selections);
    routing->rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *routing->rank_rows);
    routing->src_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->src_begin);
    routing->place = xep_carve_array(arena, ranks, sizeof *routing->place);
    routing->local = xep_carve_array(arena, shape->local_experts, sizeof *routing->local);
}

static void slot_take_arrays(normal_t *mode, xep_carve_t *arena, normal_slot_t *slot)
{
    const xep_shape_t *shape = mode->shape;
    uint64_t staged = mode->all_mapped ? 0 : shape->tokens * mode->max_dests;
    slot->from = xep_carve_array(arena, shape->nranks, sizeof *slot->from);
    slot->offers = xep_carve_array(arena, shape->nranks, sizeof *slot->offers);
    slot->targets = xep_carve_array(arena, shape->nranks, sizeof *slot->targets);
    slot->sources = xep_carve_array(arena, shape->nranks, sizeof *slot->sources);
    slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
    slot->staged_tokens = xep_carve_array(arena, staged, sizeof *slot->staged_tokens);
    slot->staged_idx = xep_carve_array(arena, staged * shape->topk, sizeof(int64_t));
    slot->staged_weights = xep_carve_array(arena, staged * shape->topk, sizeof(float));
    slot->staged_scales = xep_carve_array(arena, staged * shape->scales, 4);
}

static void take_arrays(normal_t *mode, xep_carve_t *arena)
{
    const xep_shape_t *shape = mode->shape;
    mode->owner = xep_carve_array(arena, shape->experts, sizeof *mode->owner);
    mode->first_expert = xep_carve_array(arena, (uint64_t)shape->nranks + 1, sizeof *mode->first_expert);
    mode->marks = xep_carve_array(arena, (shape->nranks + UINT64_C(63)) / 64, sizeof *mode->marks);
    mode->rows = xep_carve_array(arena, (uint64_t)mode->env->threads * (mode->max_dests + 2), sizeof *mode->rows);
    for (uint32_t s = 0; s < shape->slots; s++) {
        routing_take_arrays(mode, arena, &mode->routings[s]);
        slot_take_arrays(mode, arena, &mode->slots[s]);
    }
}

static void experts_place(normal_t *mode)
{
    uint32_t nranks = mode->shape->nranks, each = mode->shape->experts / nranks, more = mode->shape->experts % nranks;
    for (uint32_t r = 0, e = 0; r < nranks; r++) {
        mode->first_expert[r] = e;
        for (uint32_t i = 0; i < each + (r < more); i++) mode->owner[e++] = r;
    }
    mode->first_expert[nranks] = mode->shape->experts;
}

/* Untouched pages would be met one by one for dozens of operations. "returned" is left out where nobody puts. */
static void prefault(normal_t *mode, char *heap)
{
    uint64_t per_slot = mode->all_mapped ? mode->layout.returned_weights : mode->layout.slot_bytes;
    mode->env->prefault(mode->env, heap, mode->layout.slots);
    for (uint32_t s = 0; s < mode->shape->slots; s++)
        mode->env->prefault(mode->env, heap + normal_area(mode, s, 0), per_slot);
}

static void connect_all(normal_t *mode)
{
    const xep_shape_t *shape = mode->shape;
    mode->all_mapped = 1;
    for (uint32_t r = 0; r < shape->nranks; r++) {
        mode->base[r] = mode->env->wire->ops->map(mode->env->wire, r);
        if (!mode->base[r]) mode->all_mapped = 0;
    }
}

static xep_status_t memory_get(normal_t *mode)
{
    const xep_env_t *env = mode->env;
    xep_carve_t arena = {0};
    take_arrays(mode, &arena);
    if (!arena.overflow) arena.base = aligned_alloc(64, arena.end);
    if (!arena.base)
        return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no %llu bytes for the plans of %u slots",
                         (unsigned long long)arena.end, mode->shape->slots);
    memset(arena.base, 0, arena.end); /* touched here, not by the first operations */
    mode->arena = arena.base;
    arena.end = 0;
    take_arrays(mode, &arena);
    return XEP_OK;
}

static void normal_close(void *opaque)
{
    normal_t *mode = opaque;
    if (!mode) return;
    free(mode->arena);
    free(mode->slots);
    free(mode->routings);
    free(mode->base);
    free(mode);
}

static xep_status_t normal_open(const xep_env_t *env, void **mode_p)
{
    const xep_shape_t *shape = env->shape;
    normal_t *mode = calloc(1, sizeof *mode);
    xep_status_t status = XEP_ERR_NO_MEMORY;
    if (!mode) return env->fail(env, NULL, status, "no memory for the mode");

    mode->env = env;
    mode->shape = shape;
    mode->max_dests = shape->topk < shape->nranks ? shape->topk : shape->nranks;
    mode->base = calloc(shape->nranks, sizeof *mode->base);
    mode->routings = calloc(shape->slots, sizeof *mode->routings);
    mode->slots = calloc(shape->slots, sizeof *mode->slots);
    if (!mode->base || !mode->routings || !mode->slots) {
        env->fail(env, NULL, status, "no memory for %u slots, %u ranks", shape->slots, shape->nranks);
        goto close;
    }
    status = normal_layout_make(shape, &mode->layout);
    if (status != XEP_OK) {
        env->fail(env, NULL, status, "no heap for this shape");
        goto close;
    }
    connect_all(mode);
    status = memory_get(mode);
    if (status != XEP_OK) goto close;
    experts_place(mode);
    for (uint32_t r = 0; r < shape->nranks; r++)
        if (mode->base[r]) prefault(mode, mode->base[r]);
    *mode_p = mode;
    return XEP_OK;

close:
    normal_close(mode);
    return status;
}

xep_status_t normal_progress(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_state_t *state = normal_state(op);
    if (!mode->all_mapped) {
        xep_status_t status = mode->env->wire->ops->progress(mode->env->wire);
        if (status < 0) return status;
    }
    while (normal_step(op)->run) {
        xep_status_t status = normal_step(op)->run(mode, op);
        if (status != XEP_OK) return status;
        *state = (normal_state_t){
            .step = state->step + 1, .verdict = state->verdict, .weights = state->weights, .moved = state->moved};
    }
    return state->verdict;
}

static xep_status_t normal_input(void *opaque, uint32_t slot, void **base_p, size_t *stride_p)
{
    const normal_t *mode = opaque;
    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        uint64_t read = atomic_load_explicit(&normal_mail(mode, slot, r)->read, memory_order_acquire);
        if (read < mode->slots[slot].combined) return XEP_INPROGRESS;
    }
    *base_p = (char *)mode->env->heap + normal_area(mode, slot, mode->layout.input);
    *stride_p = mode->layout.combine_stride;
    return XEP_OK;
}

static void normal_explain(void *opaque, const xep_op_t *op, char *text, size_t bytes)
{
    const normal_t *mode = opaque;
    const normal_step_t *step = normal_step(op);
    xep_words_explain(step->word, mode, op, mode->shape->nranks, step->name ? step->name : "nothing", text, bytes);
}

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    .abi = XEP_PLUGIN_ABI,
    .size = sizeof(xep_plugin_t),
    .env_size = sizeof(xep_env_t),
    .op_bytes = sizeof(xep_op_t),
    .wire_ops_size = sizeof(xep_wire_ops_t),
    .op_size = sizeof(normal_state_t),
    .name = "normal",
    .brief = "throughput: a row per token and rank, in source order; mapped ranks are written and read directly",
    .heap_size = normal_heap_size,
    .open = normal_open,
    .close = normal_close,
    .dispatch = normal_dispatch,
    .combine = normal_combine,
    .progress = normal_progress,
    .input = normal_input,
    .explain = normal_explain,
};
