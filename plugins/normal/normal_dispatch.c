/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch: steps 1 to 6 of the protocol in normal.h. */
#include <string.h>

#include "normal_steps.h"

/* Tokens moved between two looks at the wire, where there are unmapped ranks to feed: 3.5 MiB of 7168 bf16. */
enum { SLICE = 256 };

/** The arguments of a dispatch as the copying loop wants them, and the tokens it is to move. */
typedef struct move {
    const normal_t *mode;
    const xep_op_t *op;
    const normal_routing_t *routing;
    const normal_target_t *targets;
    xep_copy_fn copy;
    size_t bytes, stride; /* of a row, as received */
    uint64_t begin, end;
} move_t;

/* ---- step 4: rows and metadata ---- */

/* A row is read once and stored to every rank that gets it while it is in the cache. */
static void move_tokens(void *arg, uint32_t thread, uint32_t nthreads)
{
    const move_t *move = arg;
    const normal_routing_t *routing = move->routing;
    const xep_dispatch_args_t *args = move->op->dispatch;
    size_t stride = args->x_stride;
    uint64_t count = move->end - move->begin;
    uint64_t begin = move->begin + count * thread / nthreads, end = move->begin + count * (thread + 1) / nthreads;

    normal_metadata_t from = {0};
    for (uint64_t t = begin; t < end; t++) {
        const char *row = (const char *)args->x + t * stride, *next = t + 1 < end ? row + stride : row;
        from.token = (int32_t)t;
        from.experts = routing->experts + t * routing->topk;
        if (args->topk_weights != NULL) from.weights = (const char *)args->topk_weights + t * args->topk_weights_stride;
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++) {
            normal_dest_t dest = routing->dests[i];
            const normal_target_t *target = &move->targets[dest.rank];
            const uint64_t to = dest.row - target->first;
            if (to >= target->rows) continue; /* it is in another piece, or the rank gets none */
            if (target->x != NULL) move->copy(target->x + to * move->stride, row, move->bytes, next);
            normal_store_metadata(move->mode, move->op, &from, dest.rank, target, to);
        }
    }
    xep_stores_fence();
}

normal_target_t normal_target_of(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const normal_layout_t *at = &mode->layout;
    char *heap = mode->kit.base[rank];
    uint32_t there = normal_slot(mode, op->slot)->from[rank].slot;
    return (normal_target_t){.x = heap + xep_area_at(at->common.x, there),
                             .tokens = (int32_t *)(void *)(heap + xep_area_at(at->common.tokens, there)),
                             .idx = heap + xep_area_at(at->common.idx, there),
                             .weights = (float *)(void *)(heap + xep_area_at(at->common.weights, there)),
                             .beside = heap + xep_area_at(at->common.beside, there),
                             .beside_rows = at->common.recv_rows};
}

/* At row of what is there now, for these rows of this rank. */
static void aim(const xep_op_t *op, normal_target_t *target, uint64_t row, const normal_range_t *range)
{
    const xep_dispatch_args_t *args = op->dispatch;
    target->first = range->first;
    target->rows = range->rows;
    if (target->x != NULL) target->x += row * xep_row_stride(xep_dispatch_row_bytes(args));
    target->tokens += row;
    target->idx += row * args->topk * xep_elem_bytes(args->topk_idx_dtype);
    target->weights += row * args->topk;
    target->beside_row += row;
}

void normal_aim_at_slot(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    normal_target_t *target = &normal_slot(mode, op->slot)->targets[rank];
    const normal_range_t range = normal_sends(mode, op, rank);
    *target = normal_target_of(mode, op, rank);
    aim(op, target, range.at, &range);
}

xep_status_t normal_find_mapped_places(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    memset(normal_slot(mode, op->slot)->targets, 0, mode->kit.shape->nranks * sizeof(normal_target_t));
    for (uint32_t i = 0; i < op->with.count; i++) normal_aim_at_slot(mode, op, op->with.rank[i]);
    return XEP_OK;
}

/* No x of what is staged: the wire takes rows from where the caller has them. */
xep_status_t normal_find_places(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    memset(slot->targets, 0, mode->kit.shape->nranks * sizeof *slot->targets);
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        if (mode->kit.base[r] != NULL) {
            normal_aim_at_slot(mode, op, r);
            continue;
        }
        const normal_range_t range = normal_sends(mode, op, r);
        slot->targets[r] = slot->staged;
        aim(op, &slot->targets[r], slot->routing->to_begin[r] + range.first, &range);
    }
    return XEP_OK;
}

/* Tokens that are to be moved, and are there. */
static uint64_t count_ready(const xep_op_t *op)
{
    const uint64_t here = op->dispatch->tokens - op->coming, moved = normal_state(op)->moved;
    return here > moved ? here - moved : 0;
}

static void move_until(normal_t *mode, xep_op_t *op, uint64_t end)
{
    normal_state_t *state = normal_state(op);
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    size_t bytes = xep_dispatch_row_bytes(op->dispatch);
    move_t move = {
        .mode = mode,
        .op = op,
        .routing = routing,
        .targets = slot->targets,
        .copy = xep_copy_for(mode->kit.env, routing->first[routing->tokens] * bytes),
        .bytes = bytes,
        .stride = xep_row_stride(bytes),
        .begin = state->moved,
        .end = end,
    };
    mode->kit.env->parallel(mode->kit.env, move_tokens, &move);
    state->moved = end;
}

void normal_move_slice(normal_t *mode, xep_op_t *op)
{
    const uint64_t ready = count_ready(op);
    move_until(mode, op, normal_state(op)->moved + (ready < SLICE ? ready : SLICE));
}

/* ---- steps ---- */

/* The words of steps 3 and 6: each is written by the rank it is asked for. */
const _Atomic uint64_t *normal_counts_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = op->epoch;
    return &normal_line(mode, normal_index(mode, op), rank)->counts;
}

const _Atomic uint64_t *normal_done_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = op->epoch;
    return &normal_line(mode, normal_index(mode, op), rank)->done;
}

/*
 * From here on counts and own places are known, and the user may be told (xep_request_wait_counts()). Of a cached
 * dispatch the user may have been told before, and look at them in another thread: they are not written again.
 */
void normal_conclude(normal_t *mode, xep_op_t *op)
{
    normal_make_digest(mode, op);
    if (xep_kit_state(op)->verdict != XEP_OK) return;
    if (normal_state(op)->shown) normal_show_weights(mode, op);
    else normal_show_rows(mode, op);
}

xep_status_t normal_agree(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = normal_take_records(mode, op, normal_find_record);
    if (status != XEP_OK) return status;
    normal_judge_room(mode, op);
    normal_conclude(mode, op);
    if (xep_kit_state(op)->verdict == XEP_OK) normal_show_tail(op);
    return XEP_OK;
}

/* The digest goes before the word, in the same line; rows were stored by threads that fenced them. */
void normal_store_done(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    uint64_t line = normal_line_there(mode, op);
    normal_line_t *there = (normal_line_t *)(void *)(mode->kit.base[rank] + line);
    there->digest = slot->digest;
    xep_kit_signal(&mode->kit, rank, line + offsetof(normal_line_t, done), op->epoch);
}

/* Feeds the wire between slices of the copying, so that both go on at once. */
xep_status_t normal_move_rows(normal_t *mode, xep_op_t *op)
{
    if (xep_kit_state(op)->verdict != XEP_OK) return XEP_OK;
    while (normal_state(op)->moved < normal_slot(mode, op->slot)->routing->tokens) {
        xep_status_t status = xep_step_put(mode, op);
        if (status < 0) return status;
        if (count_ready(op) == 0) return XEP_INPROGRESS;
        normal_move_slice(mode, op);
    }
    return XEP_OK;
}

xep_status_t normal_move(void *mode, xep_op_t *op)
{
    xep_status_t status = normal_move_rows(mode, op);
    return status == XEP_OK ? xep_step_send(mode, op) : status;
}

/* Rows that are coming are staged, which a buffer whose ranks are all mapped never is. */
xep_status_t normal_move_mapped(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const uint64_t tokens = normal_slot(mode, op->slot)->routing->tokens;
    if (xep_kit_state(op)->verdict == XEP_OK && tokens != 0) move_until(mode, op, tokens);
    return xep_step_store(mode, op);
}

/* The core may take the rows of a rank further while those of others are on their way. */
xep_status_t normal_wait_rows(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    xep_status_t status = xep_step_wait(opaque, op);
    if (env->rows_came == NULL || status < 0 || xep_kit_state(op)->verdict != XEP_OK) return status;
    const uint32_t late = status == XEP_OK ? 0 : op->late.count;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        uint32_t i = 0;
        while (i < late && op->late.ranks[i] != r) i++;
        if (i == late) env->rows_came(env, op, r);
    }
    return status;
}

/* A plan is made anew, or found: a cached dispatch skips the pass over topk_idx and keeps the routing of its handle. */
static xep_status_t take_routing(normal_t *mode, xep_op_t *op)
{
    normal_routing_t *routing;
    xep_status_t status = normal_choose_routing(mode, op, &routing);
    if (status == XEP_OK && op->cached_slot == XEP_NO_SLOT) status = normal_make_plan(mode, op, routing);
    if (status == XEP_OK) normal_use_routing(mode, op, routing);
    return status;
}

/* A cast makes scales: first. */
static xep_status_t take_beside(normal_t *mode, xep_op_t *op)
{
    const xep_status_t status = op->dispatch->quant != XEP_QUANT_NONE ? normal_begin_casts(mode, op) : XEP_OK;
    return status == XEP_OK ? normal_take_fields(mode, op) : status;
}

xep_status_t normal_dispatch(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    uint64_t begin_ns = xep_kit_phase(&mode->kit);
    xep_status_t status = XEP_OK;
    if (mode->kit.shape->sends_in_place) status = xep_in_place_choose(&mode->kit, op);
    if (status == XEP_OK) status = take_routing(mode, op);
    if (status != XEP_OK) return status;
    xep_kit_use_slot(&mode->kit, op);
    if (begin_ns != 0) xep_kit_end_phase(&mode->kit, op, "plan", begin_ns);
    normal_make_record(mode, op);
    if ((op->dispatch->quant | op->dispatch->nscales | op->dispatch->npayloads) != 0) status = take_beside(mode, op);
    if (status != XEP_OK) return status;
    if (op->cached_slot != XEP_NO_SLOT) normal_show_cached(mode, op);
    return xep_steps_begin(mode, op);
}
