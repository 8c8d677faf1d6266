/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory, its progress, its name. */
#include <stdlib.h>

#include <arena.h>

#include "normal.h"

static void carve_routing(normal_t *mode, xep_carve_t *arena, normal_routing_t *routing)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t tokens = shape->tokens, ranks = shape->nranks, dests = tokens * mode->max_dests;
    routing->experts = xep_carve_array(arena, tokens * shape->topk, sizeof *routing->experts);
    routing->first = xep_carve_array(arena, tokens + 1, sizeof *routing->first);
    routing->dests = xep_carve_array(arena, dests, sizeof *routing->dests);
    routing->tokens_to = xep_carve_array(arena, mode->kit.all_mapped ? 0 : dests, sizeof *routing->tokens_to);
    routing->to_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->to_begin);
    routing->rows = xep_carve_array(arena, ranks, sizeof *routing->rows);
    routing->selections = xep_carve_array(arena, shape->experts, sizeof *routing->selections);
    routing->rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *routing->rank_rows);
    routing->src_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->src_begin);
    routing->there = xep_carve_array(arena, ranks, sizeof *routing->there);
    routing->local = xep_carve_array(arena, shape->local_experts, sizeof *routing->local);
}

static void carve_slot(normal_t *mode, xep_carve_t *arena, normal_slot_t *slot)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t staged = mode->kit.all_mapped ? 0 : shape->tokens * mode->max_dests;
    slot->from = xep_carve_array(arena, shape->nranks, sizeof *slot->from);
    slot->targets = xep_carve_array(arena, shape->nranks, sizeof *slot->targets);
    slot->sources = xep_carve_array(arena, shape->nranks, sizeof *slot->sources);
    slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
    slot->staged_tokens = xep_carve_array(arena, staged, sizeof *slot->staged_tokens);
    slot->staged_idx = xep_carve_array(arena, staged * shape->topk, sizeof(int64_t));
    slot->staged_weights = xep_carve_array(arena, staged * shape->topk, sizeof(float));
    slot->staged_scales = xep_carve_array(arena, staged * shape->scales, 4);
}

static void carve_all(void *opaque, xep_carve_t *arena)
{
    normal_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    mode->marks = xep_carve_array(arena, (shape->nranks + UINT64_C(63)) / 64, sizeof *mode->marks);
    mode->factors = xep_carve_array(arena, shape->nranks, sizeof *mode->factors);
    mode->rows = xep_carve_array(arena, (uint64_t)mode->kit.env->threads * (mode->max_dests + 2), sizeof *mode->rows);
    for (uint32_t s = 0; s < shape->slots; s++) {
        carve_routing(mode, arena, &mode->routings[s]);
        carve_slot(mode, arena, &mode->slots[s]);
    }
}

/* ---- pages ---- */

/* Tokens of a rank that an even load sends to another: those that choose one of its experts among theirs. */
static double even_rows(const xep_shape_t *shape, uint32_t experts)
{
    double missed = 1;
    for (uint32_t k = 0; k < shape->topk && k < shape->experts; k++)
        missed *= experts + k < shape->experts ? 1 - (double)experts / (shape->experts - k) : 0;
    return (double)shape->tokens * (1 - missed);
}

static void prefault_area(const normal_t *mode, uint32_t rank, xep_area_t area, uint64_t bytes, uint64_t begin,
                          uint64_t end)
{
    for (uint32_t s = 0; s < mode->kit.shape->slots; s++)
        xep_kit_prefault(&mode->kit, rank, xep_area_at(area, s) + begin * bytes, xep_area_at(area, s) + end * bytes);
}

/*
 * Untouched pages would be met one by one for dozens of operations; but to map all pages of all peers takes longer than
 * those: 16 of 19 seconds of 8 ranks with 1,024 tokens each. So what an even load needs is mapped, an eighth more or
 * less of it: all rows of this rank, and where its own rows will lie at the others, behind those of the ranks before
 * it. What nobody touches where all ranks are mapped is left out.
 */
static void prefault_heap(const normal_t *mode, uint32_t rank)
{
    const normal_layout_t *at = &mode->layout;
    const xep_shape_t *shape = mode->kit.shape;
    double even = even_rows(shape, xep_kit_experts(&mode->kit, rank));
    uint64_t begin = rank == shape->rank ? 0 : (uint64_t)(even * shape->rank * 7 / 8);
    uint64_t end = (uint64_t)(even * (rank == shape->rank ? shape->nranks : shape->rank + 1) * 9 / 8) + 16;
    uint64_t idx = shape->topk * sizeof(int64_t), weights = shape->topk * sizeof(float);
    if (end > at->recv_rows) end = at->recv_rows;
    if (begin > end) begin = end;
    xep_kit_prefault(&mode->kit, rank, at->mail, at->tokens.first);
    prefault_area(mode, rank, at->tokens, sizeof(int32_t), begin, end);
    prefault_area(mode, rank, at->idx, idx, begin, end);
    prefault_area(mode, rank, at->weights, weights, begin, end);
    prefault_area(mode, rank, at->scales, shape->scales * UINT64_C(4), begin, end);
    prefault_area(mode, rank, at->input_weights, weights, begin, end);
    prefault_area(mode, rank, at->x, xep_row_stride((size_t)shape->hidden * shape->elem_bytes), begin, end);
    prefault_area(mode, rank, at->input, at->combine_stride, begin, end);
    if (mode->kit.all_mapped || rank != shape->rank) return;
    prefault_area(mode, rank, at->returned_weights, weights, 0, at->returned_rows);
    prefault_area(mode, rank, at->returned, at->combine_stride, 0, at->returned_rows);
}

/* ---- open and close ---- */

static void set_up(normal_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_make_layout(shape, mode->kit.regions, &mode->layout); /* as heap_size has, which refuses what is too large */
    mode->records = xep_kit_own(&mode->kit, mode->layout.records);
    mode->slots = mode->kit.slots;
    mode->max_dests = shape->topk < shape->nranks ? shape->topk : shape->nranks;
    mode->kit.dispatch_steps = normal_dispatch_steps;
    mode->kit.combine_steps = normal_combine_steps;
    mode->kit.mail = mode->layout.combine_mail;
    mode->kit.input = mode->layout.input;
    mode->kit.input_stride = mode->layout.combine_stride;
}

static void normal_close(void *opaque)
{
    normal_t *mode = opaque;
    if (mode != NULL) free(mode->routings);
    xep_kit_close(mode);
}

static xep_status_t normal_open(const xep_env_t *env, void **mode_p)
{
    void *opaque;
    xep_status_t status = xep_kit_open(env, sizeof(normal_t), sizeof(normal_slot_t), &opaque);
    if (status != XEP_OK) return status;
    normal_t *mode = opaque;
    set_up(mode);
    mode->routings = calloc(env->shape->slots, sizeof *mode->routings);
    if (mode->routings != NULL) status = xep_arena_open(&mode->kit, carve_all, 0);
    else status = env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u slots", env->shape->slots);
    if (status != XEP_OK) {
        normal_close(mode);
        return status;
    }
    normal_make_factors(mode->factors, env->shape->nranks);
    for (uint32_t r = 0; r < env->shape->nranks; r++)
        if (mode->kit.base[r] != NULL) prefault_heap(mode, r);
    *mode_p = mode;
    return XEP_OK;
}

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    .state_bytes = sizeof(normal_state_t),
    .name = "normal",
    .brief = "throughput: a row per token and rank, in source order; mapped ranks are written and read directly",
    .heap_size = normal_heap_size,
    .open = normal_open,
    .close = normal_close,
    .dispatch = normal_dispatch,
    .combine = normal_combine,
    .progress = xep_steps_progress,
    .input = xep_steps_input,
    .explain = xep_steps_explain,
};
