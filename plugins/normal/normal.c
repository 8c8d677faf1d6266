/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The plugin: its private memory, the pages it wants to be present, its name. All arrays are measured and placed by the
 * kit in one allocation, and none is made later: an operation allocates nothing.
 */
#include "normal_coded.h"
#include "normal_masks.h"
#include "normal_nodes.h"
#include "normal_pieces.h"
#include "normal_steps.h"

#include <math.h>

#include "cast.h"

/*
 * Experts and ranks of every token, and the counts that follow from them. Only puts need the tokens in the order of
 * their destinations.
 */
static void lay_routing(const normal_t *mode, xep_carve_t *arena, normal_routing_t *routing)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t tokens = shape->tokens, ranks = shape->nranks, dests = tokens * mode->layout.max_dests;
    routing->experts = xep_carve_array(arena, tokens * shape->topk, sizeof *routing->experts);
    routing->first = xep_carve_array(arena, tokens + 1, sizeof *routing->first);
    routing->dests = xep_carve_array(arena, dests, sizeof *routing->dests);
    routing->tokens_to = xep_carve_array(arena, normal_goes_to_ranks(mode) ? dests : 0, sizeof *routing->tokens_to);
    routing->to_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->to_begin);
    routing->rows = xep_carve_array(arena, ranks, sizeof *routing->rows);
    routing->selections = xep_carve_array(arena, shape->experts, sizeof *routing->selections);
    routing->rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *routing->rank_rows);
    routing->src_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->src_begin);
    routing->there = xep_carve_array(arena, ranks, sizeof *routing->there);
    routing->local = xep_carve_array(arena, shape->local_experts, sizeof *routing->local);
}

static void lay_slot(const normal_t *mode, xep_carve_t *arena, normal_slot_t *slot)
{
    const xep_shape_t *shape = mode->kit.shape;
    slot->from = xep_carve_array(arena, shape->nranks, sizeof *slot->from);
    slot->targets = xep_carve_array(arena, shape->nranks, sizeof *slot->targets);
    slot->sources = xep_carve_array(arena, shape->nranks, sizeof *slot->sources);
    slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
    slot->row = xep_carve_array(arena, shape->sends_in_place ? mode->layout.common.recv_rows : 0, sizeof *slot->row);
    if (normal_goes_to_ranks(mode)) normal_lay_puts(mode, arena, &slot->staged);
    slot->piece_begin = xep_carve_array(arena, shape->in_pieces ? shape->nranks + UINT64_C(1) : 0, sizeof(uint64_t));
}

/*
 * Scratch that one operation uses at a time belongs to the mode; what must stay for the combines of a handle belongs to
 * its slot.
 */
static void lay_arrays(void *opaque, xep_carve_t *arena)
{
    normal_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t rows = (uint64_t)mode->kit.env->threads * (mode->layout.max_dests + 2); /* and two biases */
    mode->marks = xep_carve_array(arena, (shape->nranks + UINT64_C(63)) / 64, sizeof *mode->marks);
    mode->records = xep_carve_array(arena, shape->nranks, sizeof *mode->records);
    mode->skips = xep_carve_array(arena, shape->nranks, sizeof *mode->skips);
    mode->factors = xep_carve_array(arena, shape->nranks, sizeof *mode->factors);
    mode->rows = xep_carve_array(arena, rows, sizeof *mode->rows);
    const uint32_t direct = mode->kit.env->direct != NULL ? shape->nranks : 0;
    mode->gathered = xep_carve_array(arena, direct, sizeof *mode->gathered);
    mode->sources = xep_carve_array(arena, direct, sizeof *mode->sources);
    if (mode->kit.env->out != NULL) normal_lay_left(mode, arena);
    for (uint32_t s = 0; s < shape->slots; s++) {
        lay_routing(mode, arena, &normal_slot(mode, s)->own);
        lay_slot(mode, arena, normal_slot(mode, s));
    }
    if (shape->by_nodes) normal_lay_nodes(mode, arena);
}

/* ---- pages ---- */

/* Rows that a rank gets of tokens, so many standard deviations more or less. */
static uint64_t even_rows(double tokens, double fraction, double deviations)
{
    double rows = tokens * fraction + deviations * sqrt(tokens * fraction * (1 - fraction));
    return rows > 0 ? (uint64_t)rows : 0;
}

/*
 * Untouched pages would be met one by one for dozens of operations; but to map all pages of all peers takes longer than
 * those: 16 of 19 seconds of 8 ranks with 1,024 tokens each. So what an even load needs is mapped: all rows of this
 * rank and an eighth more; and where its own rows will lie at the others, behind those of the ranks before it. An
 * eighth more and less of that was half of all pages there were to map. Pages that are not touched if all ranks are
 * mapped are left out.
 */
static void prefault_slot(const void *opaque, uint32_t rank, uint32_t slot, uint64_t tokens)
{
    const normal_t *mode = opaque;
    const normal_layout_t *at = &mode->layout;
    const xep_shape_t *shape = mode->kit.shape;
    double fraction = xep_even_tokens(1, xep_kit_experts(&mode->kit, rank), shape->experts, shape->topk),
           each = (double)tokens;
    uint64_t begin = rank == shape->rank ? 0 : even_rows(each * shape->rank, fraction, -2);
    uint64_t end = rank == shape->rank ? even_rows(each * shape->nranks, fraction, 2) * 9 / 8 + 16
                                       : even_rows(each * (shape->rank + 1), fraction, 2) + 1;
    if (end > at->common.recv_rows) end = at->common.recv_rows;
    if (begin > end) begin = end;
    xep_kit_prefault_received(&mode->kit, rank, slot, begin, end);
    xep_kit_prefault_area(&mode->kit, rank, at->common.input, slot, begin, end);
    xep_kit_prefault_area(&mode->kit, rank, at->input_weights, slot, begin, end);
    if (mode->kit.all_mapped || rank != shape->rank) return;
    uint64_t returned = shape->sends[rank] ? tokens * normal_returns(shape) : 0;
    xep_kit_prefault_area(&mode->kit, rank, at->returned, slot, 0, returned);
    xep_kit_prefault_area(&mode->kit, rank, at->returned_weights, slot, 0, returned);
    uint64_t passing = shape->upstreams * (shape->feed_rows < tokens ? shape->feed_rows : tokens);
    xep_kit_prefault_area(&mode->kit, rank, at->feed_rows, slot, 0, passing);
    xep_kit_prefault_area(&mode->kit, rank, at->sums, slot, 0, passing);
}

static void prefault_heap(const void *opaque, uint32_t rank)
{
    const normal_t *mode = opaque;
    const normal_layout_t *at = &mode->layout;
    xep_kit_prefault(&mode->kit, rank, at->common.combine_line, at->common.tokens.first);
}

/* ---- the plugin ---- */

const xep_kit_mode_t xep_kit_mode = {
    .mode_bytes = sizeof(normal_t),
    .layout = offsetof(normal_t, layout),
    .slot_bytes = sizeof(normal_slot_t),
    .dispatch_steps = normal_dispatch_steps,
    .combine_steps = normal_combine_steps,
    .lay_heap = normal_lay_heap,
    .lay_arrays = lay_arrays,
    .prefault = prefault_heap,
    .prefault_slot = prefault_slot,
};

static xep_status_t normal_open(const xep_env_t *env, void **mode_p)
{
    xep_status_t status = xep_kit_open(env, mode_p);
    if (status != XEP_OK) return status;
    normal_t *mode = *mode_p;
    normal_make_factors(mode->factors, env->shape->nranks);
    normal_choose_steps(mode);
    for (uint32_t r = 0; r < env->shape->nranks; r++) mode->records[r] = mode->kit.hears_in[r] + mode->layout.records;
    if (env->shape->by_nodes) normal_open_nodes(mode);
    normal_lay_casts(mode);
    normal_lay_coded(mode);
    return XEP_OK;
}

static xep_status_t normal_combine(void *mode, xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const int weighted = args->topk_weights != NULL || args->out_weights != NULL;
    xep_kit_state(op)->pieces = normal_slot(mode, op->slot)->combines;
    const xep_status_t status = args->quant != XEP_QUANT_NONE ? normal_choose_coded(mode, op) : XEP_OK;
    if (status != XEP_OK) return status;
    return xep_combine_begin(mode, op, weighted ? 1 : op->recv->rows != 0 ? 0 : XEP_AGREE_ANY);
}

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    XEP_KIT_OPS,
    .state_bytes = sizeof(normal_state_t),
    .name = "normal",
    .brief = "throughput: a row per token and rank, in source order; mapped ranks are written and read directly",
    .can = XEP_CAN_NODES | XEP_CAN_RETURN_WEIGHTS | XEP_CAN_PAYLOADS,
    .casts = XEP_CASTS,
    .combine_casts = XEP_CASTS | 1u << XEP_QUANT_LOGFMT,
    .arrangements = 1u << XEP_ROWS_BY_RANK,
    .open = normal_open,
    .close = xep_kit_close,
    .masks = &normal_masks,
    .place = &xep_kit_places,
    .traffic = normal_tell_traffic,
    .begins_early = XEP_BEGINS_EARLY,
    .goes_direct = 1,
    .dispatch = normal_dispatch,
    .combine = normal_combine,
    .next = normal_next,
};
