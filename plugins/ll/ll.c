/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory, its progress, its name. */
#include "ll_coded.h"
#include "ll_flow.h"
#include "ll_in_place.h"
#include "ll_pieces.h"

#include <math.h>

#include "cast.h"

/* ---- memory ---- */

static void lay_flows(const ll_t *mode, xep_carve_t *carve, ll_slot_t *slot)
{
    const xep_shape_t *shape = mode->kit.shape;
    slot->flows = xep_carve_array(carve, mode->nodes.nodes, sizeof *slot->flows);
    slot->bound = xep_carve_array(carve, shape->tokens * shape->topk, sizeof *slot->bound);
    slot->sent = xep_carve_array(carve, shape->nranks, sizeof *slot->sent);
    slot->recv_rings = xep_carve_array(carve, shape->nranks, sizeof *slot->recv_rings);
}

/* Picks are the longest and come last, so that their unused pages follow all that is used. */
static void lay_list(const ll_t *mode, xep_carve_t *carve, ll_list_t *list)
{
    const uint64_t ranks = mode->kit.shape->nranks, most = mode->layout.common.recv_rows + mode->kit.shape->topk + 1;
    list->packets = xep_carve_array(carve, ranks, sizeof *list->packets);
    list->begin = xep_carve_array(carve, ranks + 1, sizeof *list->begin);
    list->copied = xep_carve_array(carve, ranks, sizeof *list->copied);
    if (mode->layout.recv_ring_bytes != 0) list->item = xep_carve_array(carve, most, sizeof *list->item);
    list->picks = xep_carve_array(carve, most, sizeof *list->picks);
}

/* What a handle keeps for its combines. Where each row came from is asked only when rows go back over the wire. */
static void lay_slot(const ll_t *mode, xep_carve_t *carve, ll_slot_t *slot)
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
    uint64_t rows = mode->layout.common.recv_rows;
    if (!mode->kit.all_mapped || shape->in_pieces) slot->origin = xep_carve_array(carve, rows, sizeof *slot->origin);
    if (shape->sends_in_place) slot->row = xep_carve_array(carve, rows, sizeof *slot->row);
    slot->all_count = slot->expert_count;
    if (shape->in_pieces || mode->kit.env->out != NULL)
        slot->some = xep_carve_array(carve, selections, sizeof *slot->some);
    if (shape->in_pieces) ll_lay_pieces(mode, carve, slot);
    if (!mode->kit.all_mapped) lay_flows(mode, carve, slot);
    lay_list(mode, carve, &slot->list);
}

/* Scratch is of one step at a time, and steps of several operations do not run at once: one of each is enough. */
static void lay_arrays(void *opaque, xep_carve_t *carve)
{
    ll_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t listed = shape->tokens * (shape->topk + UINT64_C(2)), ranks = shape->nranks;
    mode->counts = xep_carve_array(carve, shape->experts + UINT64_C(1), sizeof *mode->counts);
    mode->next_row = xep_carve_array(carve, shape->experts + UINT64_C(1), sizeof *mode->next_row);
    mode->input_begin = xep_carve_array(carve, shape->local_experts * ranks, sizeof *mode->input_begin);
    mode->here = xep_carve_array(carve, ranks, sizeof *mode->here);
    mode->sources = xep_carve_array(carve, ranks, sizeof *mode->sources);
    mode->rows = xep_carve_array(carve, listed, sizeof *mode->rows);
    mode->row_weights = xep_carve_array(carve, listed, sizeof *mode->row_weights);
    mode->row_begin = xep_carve_array(carve, shape->tokens + 1, sizeof *mode->row_begin);
    /* before the slots, which have arrays by upstream rank: their number is known from here on */
    if (!mode->kit.all_mapped) xep_forwarders_lay(shape, carve, &mode->nodes);
    const uint64_t threads = mode->kit.env->threads;
    mode->decoded = xep_carve_array(carve, threads * (shape->topk + UINT64_C(2)), mode->layout.common.combine_stride);
    mode->terms = xep_carve_array(carve, threads * shape->topk, sizeof *mode->terms);
    for (uint32_t s = 0; s < shape->slots; s++) lay_slot(mode, carve, ll_slot(mode, s));
}

/* Without it only what is of ll_coded.h is refused. */
static void reserve_coded(ll_t *mode)
{
    uint64_t per_slot = mode->layout.common.recv_rows * mode->layout.return_stride;
    char *coded = mode->kit.all_mapped ? NULL : xep_kit_reserve(&mode->kit, mode->kit.shape->slots, per_slot);
    for (uint32_t s = 0; s < mode->kit.shape->slots && coded != NULL; s++)
        ll_slot(mode, s)->coded = coded + s * per_slot;
}

/* ---- pages ---- */

/* Others read only the input of this rank, and this rank only theirs. */
static void prefault_rows(const ll_t *mode, uint32_t rank, uint32_t slot, uint64_t begin, uint64_t end)
{
    const xep_heap_layout_t *at = &mode->layout.common;
    if (end > at->recv_rows) end = at->recv_rows;
    if (begin > end) begin = end;
    xep_kit_prefault_area(&mode->kit, rank, at->input, slot, begin, end);
    if (rank == mode->kit.shape->rank) xep_kit_prefault_received(&mode->kit, rank, slot, begin, end);
}

/*
 * Rows that so many experts get from an even load. Own rows are allocated for twice as many: others may write there at
 * any time. Of a peer's, two standard deviations more are mapped: twice as many were a third of the time that making a
 * buffer took, with 8 ranks of 128 tokens (1.4 s, and 2.0).
 */
static uint64_t even_rows(const xep_shape_t *shape, uint64_t tokens, uint64_t experts, int own)
{
    double rows = (double)shape->nranks * (double)tokens * shape->topk * (double)experts / shape->experts;
    return (uint64_t)(own ? 2 * rows + 16 * (double)experts : rows + 2 * sqrt(rows) + 1);
}

/*
 * Untouched pages would be met one by one for dozens of operations. The worst case is many times what is ever used, so
 * what an even load fills is touched: from the first row on, and from the first row of each expert where padding puts
 * it; of the peers', what is read there.
 */
static void prefault_slot(const void *opaque, uint32_t rank, uint32_t slot, uint64_t tokens)
{
    const ll_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    int own = rank == shape->rank;
    uint64_t per_expert = shape->nranks * shape->tokens, experts = xep_kit_experts(&mode->kit, rank);
    uint64_t compact = even_rows(shape, tokens, experts, own), padded = even_rows(shape, tokens, 1, own);
    prefault_rows(mode, rank, slot, 0, compact);
    for (uint64_t e = 1; e < experts; e++)
        if (e * per_expert >= compact) prefault_rows(mode, rank, slot, e * per_expert, e * per_expert + padded);
}

/* What was delivered is read where it is: here, or by nodes at any rank of this node. */
static void prefault_heap(const void *opaque, uint32_t rank)
{
    const ll_t *mode = opaque;
    const ll_layout_t *at = &mode->layout;
    int delivered = (rank == mode->kit.shape->rank && !mode->kit.all_mapped) || mode->kit.shape->by_nodes;
    xep_kit_prefault(&mode->kit, rank, at->common.combine_line, at->delivered_heads.first);
    if (mode->kit.shape->sends[rank]) xep_kit_prefault(&mode->kit, rank, at->items.first, at->delivered_items.first);
    if (delivered) xep_kit_prefault(&mode->kit, rank, at->delivered_heads.first, at->common.tokens.first);
    if (delivered) xep_kit_prefault(&mode->kit, rank, at->delivered_items.first, at->common.x.first);
}

/* ---- open and close ---- */

const xep_kit_mode_t xep_kit_mode = {
    .mode_bytes = sizeof(ll_t),
    .layout = offsetof(ll_t, layout),
    .slot_bytes = sizeof(ll_slot_t),
    .dispatch_steps = ll_dispatch_steps,
    .combine_steps = ll_combine_steps,
    .lay_heap = ll_lay_heap,
    .lay_arrays = lay_arrays,
    .lazily = 1,
    .prefault = prefault_heap,
    .prefault_slot = prefault_slot,
};

static xep_status_t ll_combine(void *mode, xep_op_t *op)
{
    xep_status_t status = XEP_OK;
    ll_state(op)->experts = ll_slot(mode, op->slot)->experts;
    if (ll_slot(mode, op->slot)->combines != 0) status = ll_choose_pieces(mode, op);
    else if ((op->combine->flags | op->combine->quant) != 0) status = ll_choose_coded(mode, op);
    return status == XEP_OK ? xep_combine_begin(mode, op, XEP_AGREE_ANY) : status;
}

/* After all else: its failure must not keep the buffer from being made. */
static xep_status_t ll_open(const xep_env_t *env, void **mode_p)
{
    xep_status_t status = xep_kit_open(env, mode_p);
    if (status != XEP_OK) return status;
    ll_t *mode = *mode_p;
    ll_choose_steps(mode);
    reserve_coded(mode);
    return XEP_OK;
}

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    XEP_KIT_OPS,
    .state_bytes = sizeof(ll_state_t),
    .name = "ll",
    .brief = "low latency: a row per selection, in expert order, cast on the way; combine weighs and sums",
    .can = LL_CAN | XEP_CAN_NODES | XEP_CAN_SUM_AT_OWNER | XEP_CAN_PAYLOADS,
    .casts = XEP_CASTS,
    .combine_casts = XEP_CASTS | 1u << XEP_QUANT_LOGFMT,
    .arrangements = LL_ARRANGEMENTS,
    .open = ll_open,
    .close = xep_kit_close,
    .masks = &xep_kit_masks,
    .place = &xep_kit_places,
    .traffic = ll_tell_traffic,
    .dispatch = ll_dispatch,
    .combine = ll_combine,
    .begins_early = XEP_BEGINS_IN_CALL,
    .next = ll_next,
};
