/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory, its progress, its name. */
#include "ll.h"

#include <carve.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void carve_slot(const ll_t *mode, xep_carve_t *carve, ll_slot_t *slot)
{
    const xep_shape_t *shape = mode->shape;
    uint64_t selections = shape->tokens * shape->topk, pairs = (uint64_t)shape->local_experts * shape->nranks;
    slot->experts = xep_carve_array(carve, selections, sizeof *slot->experts);
    slot->weights = xep_carve_array(carve, selections, sizeof *slot->weights);
    slot->from = xep_carve_array(carve, shape->nranks, sizeof *slot->from);
    slot->pair_begin = xep_carve_array(carve, pairs, sizeof *slot->pair_begin);
    slot->pair_count = xep_carve_array(carve, pairs, sizeof *slot->pair_count);
    slot->expert_begin = xep_carve_array(carve, shape->local_experts, sizeof *slot->expert_begin);
    slot->expert_count = xep_carve_array(carve, shape->local_experts, sizeof *slot->expert_count);
    slot->expert_rows = xep_carve_array(carve, shape->local_experts, sizeof *slot->expert_rows);
    if (!mode->all_mapped) slot->origin = xep_carve_array(carve, mode->layout.recv_rows, sizeof *slot->origin);
}

static void carve_all(ll_t *mode, xep_carve_t *carve)
{
    const xep_shape_t *shape = mode->shape;
    uint64_t listed = shape->tokens * (shape->topk + UINT64_C(2)), ranks = shape->nranks;
    mode->owner = xep_carve_array(carve, shape->experts, sizeof *mode->owner);
    mode->first_expert = xep_carve_array(carve, ranks + 1, sizeof *mode->first_expert);
    mode->counts = xep_carve_array(carve, shape->experts + UINT64_C(1), sizeof *mode->counts);
    mode->next_row = xep_carve_array(carve, shape->experts + UINT64_C(1), sizeof *mode->next_row);
    mode->input_begin = xep_carve_array(carve, shape->local_experts * ranks, sizeof *mode->input_begin);
    mode->pick_begin = xep_carve_array(carve, ranks + 1, sizeof *mode->pick_begin);
    mode->parcels = xep_carve_array(carve, ranks, sizeof *mode->parcels);
    mode->places = xep_carve_array(carve, ranks, sizeof *mode->places);
    mode->sources = xep_carve_array(carve, ranks, sizeof *mode->sources);
    mode->rows = xep_carve_array(carve, listed, sizeof *mode->rows);
    mode->row_weights = xep_carve_array(carve, listed, sizeof *mode->row_weights);
    mode->row_begin = xep_carve_array(carve, shape->tokens + 1, sizeof *mode->row_begin);
    for (uint32_t s = 0; s < shape->slots; s++) carve_slot(mode, carve, &mode->slots[s]);
    if (!mode->all_mapped) {
        uint64_t rows = (uint64_t)mode->env->threads * shape->topk;
        mode->decoded = xep_carve_array(carve, rows, mode->layout.combine_stride);
    }
    mode->picks = xep_carve_array(carve, mode->layout.recv_rows + shape->topk + 1, sizeof *mode->picks);
}

/* Zeroed and not touched: what worst cases need is mostly never used. */
static xep_status_t get_memory(ll_t *mode)
{
    const xep_env_t *env = mode->env;
    xep_carve_t carve = {0};
    carve_all(mode, &carve);
    if (!carve.overflow) mode->arena = calloc(1, carve.end + 64);
    if (mode->arena == NULL)
        return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no %llu bytes for the lists of %u slots", (unsigned long long)carve.end,
                         mode->shape->slots);
    carve = (xep_carve_t){.base = (char *)(((uintptr_t)mode->arena + 63) & ~(uintptr_t)63)};
    carve_all(mode, &carve);
    return XEP_OK;
}

/*
 * Room for the worst case in LogFMT, not touched before it is used. Without it only LogFMT is refused: a machine that
 * promises no more memory than it has may still serve all else.
 */
static void reserve_coded(ll_t *mode)
{
    uint64_t per_slot = mode->layout.recv_rows * mode->layout.return_stride;
    if (!mode->all_mapped) mode->coded = calloc(mode->shape->slots, per_slot);
    for (uint32_t s = 0; s < mode->shape->slots && mode->coded != NULL; s++) mode->slots[s].coded = mode->coded + s * per_slot;
}

static void place_experts(ll_t *mode)
{
    uint32_t nranks = mode->shape->nranks, each = mode->shape->experts / nranks, more = mode->shape->experts % nranks;
    for (uint32_t r = 0, e = 0; r < nranks; r++) {
        mode->first_expert[r] = e;
        for (uint32_t i = 0; i < each + (r < more); i++) mode->owner[e++] = r;
    }
    mode->first_expert[nranks] = mode->shape->experts;
}

/* ---- pages ---- */

/* Rows begin .. end - 1 of an area of rows of this many bytes. */
static void prefault_rows(const ll_t *mode, char *heap, uint32_t slot, uint64_t area, uint64_t bytes, uint64_t begin, uint64_t end)
{
    if (end > mode->layout.recv_rows) end = mode->layout.recv_rows;
    if (begin < end) mode->env->prefault(mode->env, heap + ll_area(mode, slot, area) + begin * bytes, (end - begin) * bytes);
}

static void prefault_slot(const ll_t *mode, char *heap, int own, uint32_t slot, uint64_t begin, uint64_t end)
{
    const ll_layout_t *at = &mode->layout;
    prefault_rows(mode, heap, slot, at->input, at->combine_stride, begin, end);
    if (!own) return;
    prefault_rows(mode, heap, slot, at->tokens, sizeof(int32_t), begin, end);
    prefault_rows(mode, heap, slot, at->idx, sizeof(int64_t), begin, end);
    prefault_rows(mode, heap, slot, at->weights, sizeof(float), begin, end);
    prefault_rows(mode, heap, slot, at->scales, at->scale_words * 4, begin, end);
    prefault_rows(mode, heap, slot, at->x, xep_row_stride((size_t)mode->shape->hidden * mode->shape->elem_bytes), begin, end);
}

/*
 * Untouched pages would be met one by one for dozens of operations. The worst case is many times what is ever used,
 * so twice what an even load fills is touched: from the first row on, and from the first row of each expert where
 * padding puts it; of the peers', what is read there.
 */
static void prefault(const ll_t *mode, uint32_t rank)
{
    const xep_shape_t *shape = mode->shape;
    char *heap = mode->base[rank];
    int own = rank == shape->rank;
    uint64_t per_expert = shape->nranks * shape->tokens, experts = mode->first_expert[rank + 1] - mode->first_expert[rank];
    uint64_t even = 2 * (per_expert * shape->topk / shape->experts) + 16;
    mode->env->prefault(mode->env, heap, mode->layout.inboxes);
    if (own && !mode->all_mapped) mode->env->prefault(mode->env, heap + mode->layout.inboxes, mode->layout.slots - mode->layout.inboxes);
    for (uint32_t s = 0; s < shape->slots; s++) {
        prefault_slot(mode, heap, own, s, 0, even * experts);
        for (uint64_t e = 1; e < experts; e++)
            if (e * per_expert >= even * experts) prefault_slot(mode, heap, own, s, e * per_expert, e * per_expert + even);
    }
}

/* ---- open and close ---- */

static void ll_close(void *opaque)
{
    ll_t *mode = opaque;
    if (mode == NULL) return;
    free(mode->coded);
    free(mode->arena);
    free(mode->slots);
    free(mode->base);
    free(mode);
}

static void connect_all(ll_t *mode)
{
    mode->all_mapped = 1;
    for (uint32_t r = 0; r < mode->shape->nranks; r++) {
        mode->base[r] = mode->env->wire->ops->map(mode->env->wire, r);
        if (mode->base[r] == NULL) mode->all_mapped = 0;
    }
}

static xep_status_t ll_open(const xep_env_t *env, void **mode_p)
{
    ll_t *mode = calloc(1, sizeof *mode);
    xep_status_t status = XEP_ERR_NO_MEMORY;
    if (mode == NULL) return env->fail(env, NULL, status, "no memory for the mode");
    mode->env = env;
    mode->shape = env->shape;
    mode->ring = 2 * env->shape->slots;
    mode->base = calloc(env->shape->nranks, sizeof *mode->base);
    mode->slots = calloc(env->shape->slots, sizeof *mode->slots);
    if (mode->base == NULL || mode->slots == NULL) {
        env->fail(env, NULL, status, "no memory for %u slots, %u ranks", env->shape->slots, env->shape->nranks);
        goto err_close;
    }
    status = ll_layout_make(env->shape, &mode->layout);
    if (status != XEP_OK) {
        env->fail(env, NULL, status, "no heap for this shape");
        goto err_close;
    }
    connect_all(mode);
    status = get_memory(mode);
    if (status != XEP_OK) goto err_close;
    reserve_coded(mode);
    place_experts(mode);
    for (uint32_t r = 0; r < env->shape->nranks; r++)
        if (mode->base[r] != NULL) prefault(mode, r);
    *mode_p = mode;
    return XEP_OK;

err_close:
    ll_close(mode);
    return status;
}

/* ---- operations ---- */

/* Step by step, no further than those of the send phase when asked for. */
static xep_status_t advance(ll_t *mode, xep_op_t *op, int sends_only)
{
    ll_state_t *state = ll_state(op);
    while (ll_step(op)->run != NULL && (ll_step(op)->sends || !sends_only)) {
        xep_status_t status = ll_step(op)->run(mode, op);
        if (status != XEP_OK) return status;
        state->step++;
        state->cursor = (ll_cursor_t){0};
    }
    return ll_step(op)->run == NULL ? state->verdict : XEP_INPROGRESS;
}

static xep_status_t begin(ll_t *mode, xep_op_t *op)
{
    xep_status_t status = advance(mode, op, 1);
    return status < 0 ? status : XEP_OK;
}

static xep_status_t ll_dispatch(void *opaque, xep_op_t *op)
{
    xep_status_t status = ll_send(opaque, op);
    return status == XEP_OK ? begin(opaque, op) : status;
}

static xep_status_t ll_combine(void *opaque, xep_op_t *op)
{
    xep_status_t status = ll_check_combine(opaque, op);
    return status == XEP_OK ? begin(opaque, op) : status;
}

static xep_status_t ll_progress(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    xep_status_t status = XEP_OK;
    if (!mode->all_mapped) status = ll_wire_status(mode, op, mode->env->wire->ops->progress(mode->env->wire));
    return status == XEP_OK ? advance(mode, op, 0) : status;
}

static xep_status_t ll_input(void *opaque, uint32_t slot, void **base_p, size_t *stride_p)
{
    const ll_t *mode = opaque;
    if (!ll_is_drained(mode, slot)) return XEP_INPROGRESS;
    *base_p = ll_own(mode, ll_area(mode, slot, mode->layout.input));
    *stride_p = mode->layout.combine_stride;
    return XEP_OK;
}

static void ll_explain(void *opaque, const xep_op_t *op, char *text, size_t bytes)
{
    const ll_t *mode = opaque;
    const ll_step_t *step = ll_step(op);
    xep_words_explain(step->word, mode, op, mode->shape->nranks, step->run != NULL ? step->name : "nothing", text, bytes);
}

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    .abi = XEP_PLUGIN_ABI,
    .size = sizeof(xep_plugin_t),
    .env_size = sizeof(xep_env_t),
    .op_bytes = sizeof(xep_op_t),
    .wire_ops_size = sizeof(xep_wire_ops_t),
    .op_size = sizeof(ll_state_t),
    .name = "ll",
    .brief = "low latency: a row per selection, in expert order, cast on the way; combine weighs and sums",
    .heap_size = ll_heap_size,
    .open = ll_open,
    .close = ll_close,
    .dispatch = ll_dispatch,
    .combine = ll_combine,
    .progress = ll_progress,
    .input = ll_input,
    .explain = ll_explain,
};
