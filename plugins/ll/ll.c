/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory, its progress, its name. */
#include "ll.h"

#include <arena.h>
#include <stdlib.h>

/* ---- memory ---- */

static void carve_slot(const ll_t *mode, xep_carve_t *carve, ll_slot_t *slot)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t selections = shape->tokens * shape->topk, pairs = (uint64_t)shape->local_experts * shape->nranks;
    slot->experts = xep_carve_array(carve, selections, sizeof *slot->experts);
    slot->weights = xep_carve_array(carve, selections, sizeof *slot->weights);
    slot->from = xep_carve_array(carve, shape->nranks, sizeof *slot->from);
    slot->pair_begin = xep_carve_array(carve, pairs, sizeof *slot->pair_begin);
    slot->pair_count = xep_carve_array(carve, pairs, sizeof *slot->pair_count);
    slot->expert_begin = xep_carve_array(carve, shape->local_experts, sizeof *slot->expert_begin);
    slot->expert_count = xep_carve_array(carve, shape->local_experts, sizeof *slot->expert_count);
    slot->expert_rows = xep_carve_array(carve, shape->local_experts, sizeof *slot->expert_rows);
    if (!mode->kit.all_mapped) slot->origin = xep_carve_array(carve, mode->layout.recv_rows, sizeof *slot->origin);
}

static void carve_all(void *opaque, xep_carve_t *carve)
{
    ll_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t listed = shape->tokens * (shape->topk + UINT64_C(2)), ranks = shape->nranks;
    mode->counts = xep_carve_array(carve, shape->experts + UINT64_C(1), sizeof *mode->counts);
    mode->next_row = xep_carve_array(carve, shape->experts + UINT64_C(1), sizeof *mode->next_row);
    mode->input_begin = xep_carve_array(carve, shape->local_experts * ranks, sizeof *mode->input_begin);
    mode->pick_begin = xep_carve_array(carve, ranks + 1, sizeof *mode->pick_begin);
    mode->parcels = xep_carve_array(carve, ranks, sizeof *mode->parcels);
    mode->sources = xep_carve_array(carve, ranks, sizeof *mode->sources);
    mode->rows = xep_carve_array(carve, listed, sizeof *mode->rows);
    mode->row_weights = xep_carve_array(carve, listed, sizeof *mode->row_weights);
    mode->row_begin = xep_carve_array(carve, shape->tokens + 1, sizeof *mode->row_begin);
    for (uint32_t s = 0; s < shape->slots; s++) carve_slot(mode, carve, &mode->slots[s]);
    if (!mode->kit.all_mapped) {
        uint64_t rows = (uint64_t)mode->kit.env->threads * shape->topk;
        mode->decoded = xep_carve_array(carve, rows, mode->layout.combine_stride);
    }
    mode->picks = xep_carve_array(carve, mode->layout.recv_rows + shape->topk + 1, sizeof *mode->picks);
}

/*
 * Room for the worst case in LogFMT, not touched before it is used. Without it only LogFMT is refused: a machine that
 * promises no more memory than it has may still serve all else.
 */
static void reserve_coded(ll_t *mode)
{
    uint64_t per_slot = mode->layout.recv_rows * mode->layout.return_stride;
    if (!mode->kit.all_mapped) mode->coded = calloc(mode->kit.shape->slots, per_slot);
    for (uint32_t s = 0; s < mode->kit.shape->slots && mode->coded != NULL; s++)
        mode->slots[s].coded = mode->coded + s * per_slot;
}

/* ---- pages ---- */

/* Rows begin .. end - 1 of an area of rows of this many bytes. */
static void prefault_rows(const ll_t *mode, uint32_t rank, uint64_t area, uint64_t bytes, uint64_t begin, uint64_t end)
{
    if (end > mode->layout.recv_rows) end = mode->layout.recv_rows;
    if (begin < end) xep_kit_prefault(&mode->kit, rank, area + begin * bytes, area + end * bytes);
}

static void prefault_slot(const ll_t *mode, uint32_t rank, uint32_t slot, uint64_t begin, uint64_t end)
{
    const ll_layout_t *at = &mode->layout;
    const xep_shape_t *shape = mode->kit.shape;
    size_t stride = xep_row_stride((size_t)shape->hidden * shape->elem_bytes);
    prefault_rows(mode, rank, xep_area_at(at->input, slot), at->combine_stride, begin, end);
    if (rank != shape->rank) return;
    prefault_rows(mode, rank, xep_area_at(at->tokens, slot), sizeof(int32_t), begin, end);
    prefault_rows(mode, rank, xep_area_at(at->idx, slot), sizeof(int64_t), begin, end);
    prefault_rows(mode, rank, xep_area_at(at->weights, slot), sizeof(float), begin, end);
    prefault_rows(mode, rank, xep_area_at(at->scales, slot), at->scale_words * 4, begin, end);
    prefault_rows(mode, rank, xep_area_at(at->x, slot), stride, begin, end);
}

/*
 * Untouched pages would be met one by one for dozens of operations. The worst case is many times what is ever used,
 * so twice what an even load fills is touched: from the first row on, and from the first row of each expert where
 * padding puts it; of the peers', what is read there.
 */
static void prefault_heap(const ll_t *mode, uint32_t rank)
{
    const xep_shape_t *shape = mode->kit.shape;
    const ll_layout_t *at = &mode->layout;
    int delivered = rank == shape->rank && !mode->kit.all_mapped;
    uint64_t per_expert = shape->nranks * shape->tokens, experts = xep_kit_experts(&mode->kit, rank);
    uint64_t even = 2 * (per_expert * shape->topk / shape->experts) + 16;
    xep_kit_prefault(&mode->kit, rank, at->notices, at->delivered_heads.first);
    xep_kit_prefault(&mode->kit, rank, at->records.first, at->delivered_records.first);
    if (delivered) xep_kit_prefault(&mode->kit, rank, at->delivered_heads.first, at->tokens.first);
    if (delivered) xep_kit_prefault(&mode->kit, rank, at->delivered_records.first, at->x.first);
    for (uint32_t s = 0; s < shape->slots; s++) {
        prefault_slot(mode, rank, s, 0, even * experts);
        for (uint64_t e = 1; e < experts; e++)
            if (e * per_expert >= even * experts) prefault_slot(mode, rank, s, e * per_expert, e * per_expert + even);
    }
}

/* ---- open and close ---- */

static void ll_close(void *opaque)
{
    ll_t *mode = opaque;
    if (mode != NULL) free(mode->coded);
    xep_kit_close(mode);
}

static const xep_step_t dispatch_steps[] = {
    {.name = "room to send rows", .run = ll_send},
    {.name = "rows", .run = xep_step_wait, .word = xep_notices_word, .receives = 1},
    {.name = "copies", .run = ll_receive},
    {.name = "rows to leave", .run = xep_step_flush},
    {0},
};

static const xep_step_t combine_steps[] = {
    {.name = "the last combine of the slot to be read", .run = xep_combine_drain, .word = xep_combine_read_word},
    {.name = "copies", .run = ll_fill},
    {.name = "room to send rows", .run = ll_offer},
    {.name = "expert outputs", .run = xep_step_wait, .word = xep_combine_ready_word, .receives = 1},
    {.name = "agreement", .run = xep_combine_take_offers},
    {.name = "sums", .run = ll_sum},
    {.name = "room to say that rows were read", .run = xep_combine_tell_read},
    {.name = "rows to leave", .run = xep_step_flush},
    {0},
};

static void set_up(ll_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    ll_make_layout(shape, mode->kit.regions, &mode->layout); /* as heap_size has, which refuses what is too large */
    mode->slots = mode->kit.slots;
    mode->kit.dispatch_steps = dispatch_steps;
    mode->kit.combine_steps = combine_steps;
    mode->kit.notices = mode->layout.notices;
    mode->kit.mail = mode->layout.combine_mail;
    mode->kit.input = mode->layout.input;
    mode->kit.input_stride = mode->layout.combine_stride;
}

static xep_status_t ll_open(const xep_env_t *env, void **mode_p)
{
    void *opaque;
    xep_status_t status = xep_kit_open(env, sizeof(ll_t), sizeof(ll_slot_t), &opaque);
    if (status != XEP_OK) return status;
    ll_t *mode = opaque;
    set_up(mode);
    status = xep_arena_open(&mode->kit, carve_all, 1);
    if (status != XEP_OK) {
        ll_close(mode);
        return status;
    }
    reserve_coded(mode);
    for (uint32_t r = 0; r < env->shape->nranks; r++)
        if (mode->kit.base[r] != NULL) prefault_heap(mode, r);
    *mode_p = mode;
    return XEP_OK;
}

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    .state_bytes = sizeof(ll_state_t),
    .name = "ll",
    .brief = "low latency: a row per selection, in expert order, cast on the way; combine weighs and sums",
    .heap_size = ll_heap_size,
    .open = ll_open,
    .close = ll_close,
    .dispatch = ll_dispatch,
    .combine = ll_combine,
    .progress = xep_steps_progress,
    .input = xep_steps_input,
    .explain = xep_steps_explain,
};
