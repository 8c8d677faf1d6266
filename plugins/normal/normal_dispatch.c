/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch: steps 1 to 6 of the protocol in normal.h. */
#include <string.h>

#include "normal_in_place.h"
#include "normal_metadata.h"
#include "normal_nodes.h"
#include "normal_pieces.h"

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
    char *send;           /* where this rank's rows go to be read in place; NULL: they are there, or nobody does */
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

    normal_metadata_t from = {.scales_stride = args->scales_stride};
    for (uint64_t t = begin; t < end; t++) {
        const char *row = (const char *)args->x + t * stride, *next = t + 1 < end ? row + stride : row;
        if (move->send != NULL && routing->first[t] < routing->first[t + 1])
            move->copy(move->send + t * move->mode->layout.in_place.stride, row, move->bytes, next);
        from.token = (int32_t)t;
        from.experts = routing->experts + t * routing->topk;
        if (args->topk_weights != NULL) from.weights = (const char *)args->topk_weights + t * args->topk_weights_stride;
        from.scales = (const char *)args->scales + (ptrdiff_t)t * args->scales_token_stride;
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++) {
            normal_dest_t dest = routing->dests[i];
            const normal_target_t *target = &move->targets[dest.rank];
            if (target->tokens == NULL) continue; /* it is out, or gets its rows through another rank */
            if (target->x != NULL) move->copy(target->x + dest.row * move->stride, row, move->bytes, next);
            normal_store_metadata(move->mode, args, &from, dest.rank, target, dest.row);
        }
    }
    xep_stores_fence();
}

/* The slot of a mapped rank, from row 0 on. */
static normal_target_t target_of(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const normal_layout_t *at = &mode->layout;
    char *heap = mode->kit.base[rank];
    uint32_t there = normal_slot(mode, op->slot)->from[rank].slot;
    return (normal_target_t){.x = heap + xep_area_at(at->common.x, there),
                             .tokens = (int32_t *)(void *)(heap + xep_area_at(at->common.tokens, there)),
                             .idx = heap + xep_area_at(at->common.idx, there),
                             .weights = (float *)(void *)(heap + xep_area_at(at->common.weights, there)),
                             .scales = heap + xep_area_at(at->common.scales, there)};
}

void normal_fill_targets(normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    const normal_target_t staging = {.tokens = slot->staged_tokens,
                                     .idx = slot->staged_idx,
                                     .weights = slot->staged_weights,
                                     .scales = slot->staged_scales};
    size_t stride = xep_row_stride(xep_dispatch_row_bytes(args));
    int in_place = normal_state(op)->in_place.offset != 0;

    memset(slot->targets, 0, mode->kit.shape->nranks * sizeof *slot->targets);
    for (uint32_t i = 0; i < op->with.count; i++) {
        uint32_t r = op->with.rank[i];
        int is_mapped = mode->kit.base[r] != NULL;
        normal_target_t *target = &slot->targets[r];
        if (!is_mapped && mode->nodes != NULL) continue;
        const normal_range_t range = normal_sends(mode, op, r);
        uint64_t row = is_mapped ? range.at : routing->to_begin[r] + range.first;
        *target = is_mapped ? target_of(mode, op, r) : staging;
        /* no x: the wire takes rows from where the caller has them, and ranks that read in place from where they lie */
        target->x = is_mapped && !in_place ? target->x + row * stride : NULL;
        target->tokens += row;
        target->idx += row * routing->topk * xep_elem_bytes(args->topk_idx_dtype);
        target->weights += row * routing->topk;
        target->scales += row * args->nscales * 4;
    }
}

/* Tokens that are to be moved, and are there. */
static uint64_t count_ready(const xep_op_t *op)
{
    const uint64_t here = op->dispatch->tokens - op->coming, moved = normal_state(op)->moved;
    return here > moved ? here - moved : 0;
}

/* Of tokens that are ready. */
static void move_slice(normal_t *mode, xep_op_t *op)
{
    normal_state_t *state = normal_state(op);
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    size_t bytes = xep_dispatch_row_bytes(op->dispatch);
    uint64_t ready = count_ready(op);
    move_t move = {
        .mode = mode,
        .op = op,
        .routing = routing,
        .targets = slot->targets,
        .copy = xep_copy_for(mode->kit.env, routing->first[routing->tokens] * bytes),
        .bytes = bytes,
        .stride = xep_row_stride(bytes),
        .send = state->in_place.fill,
        .begin = state->moved,
        .end = state->moved + (mode->kit.all_mapped || ready < SLICE ? ready : SLICE),
    };
    if (slot->pieces > 1) {
        normal_move_piece(mode, op, move.copy);
        move.end = routing->tokens;
    } else {
        mode->kit.env->parallel(mode->kit.env, move_tokens, &move);
    }
    state->moved = move.end;
}

/* ---- steps ---- */

/* The words of steps 3 and 6, in this rank's own heap: each is written by the rank it is asked for. */
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

/* Step 3. From here on counts and own places are known, and the user may be told (xep_request_wait_counts()). */
void normal_show_agreed(normal_t *mode, xep_op_t *op, int marks_tail)
{
    if (xep_kit_state(op)->verdict != XEP_OK) {
        xep_in_place_return(&mode->in_place, &normal_state(op)->in_place);
        return;
    }
    if (normal_slot(mode, op->slot)->pieces > 1) {
        normal_begin_pieces(mode, op);
        return;
    }
    normal_show_rows(mode, op);
    if (marks_tail) normal_show_tail(op);
}

static xep_status_t agree(void *opaque, xep_op_t *op)
{
    xep_status_t status = normal_take_records(opaque, op, normal_find_record);
    if (status == XEP_OK) normal_show_agreed(opaque, op, 1);
    return status;
}

static xep_status_t find_places(void *mode, xep_op_t *op)
{
    if (xep_kit_state(op)->verdict == XEP_OK) normal_fill_targets(mode, op);
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
xep_status_t normal_move(normal_t *mode, xep_op_t *op, xep_transfer_fn transfers)
{
    while (normal_state(op)->moved < normal_slot(mode, op->slot)->routing->tokens) {
        xep_status_t status = xep_send_transfers(&mode->kit, op, transfers);
        if (status < 0) return status;
        if (count_ready(op) == 0) return XEP_INPROGRESS;
        move_slice(mode, op);
    }
    return XEP_OK;
}

xep_status_t normal_move_all(normal_t *mode, xep_op_t *op)
{
    if (xep_kit_state(op)->verdict != XEP_OK || normal_slot(mode, op->slot)->routing->tokens == 0) return XEP_OK;
    xep_status_t status = normal_move(mode, op, normal_dispatch_transfer);
    if (status == XEP_OK) normal_note_rows(mode, op);
    return status;
}

static xep_status_t move(void *mode, xep_op_t *op)
{
    xep_status_t status = normal_move_all(mode, op);
    return status == XEP_OK ? xep_step_send(mode, op) : status;
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

/* Step 6: rows of all are where they stay. */
xep_status_t normal_show_received(normal_t *mode, xep_op_t *op)
{
    if (normal_slot(mode, op->slot)->pieces > 1) normal_show_piece(mode, op);
    return op->dispatch->flags & XEP_DISPATCH_IN_PLACE ? normal_point_rows(mode, op) : XEP_OK;
}

static xep_status_t compare(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = normal_compare_digests(mode, op);
    return status != XEP_OK || xep_kit_state(op)->verdict != XEP_OK ? status : normal_show_received(mode, op);
}

/* Where all ranks take part until the end; normal_masked.c has the steps where some may be left out. */
const xep_step_t normal_dispatch_steps[] = {
    {.name = "records to go out",
     .does = "send records",
     .run = xep_step_send,
     .store = normal_store_record,
     .transfers = normal_record_transfer},
    {.name = "counts", .does = "wait for counts", .run = xep_step_wait, .word = normal_counts_word},
    {.name = "agreement", .does = "agree", .run = agree},
    {.name = "places", .does = "find places", .run = find_places},
    {.name = "rows to go out",
     .does = "rows",
     .run = move,
     .store = normal_store_done,
     .transfers = normal_dispatch_transfer},
    {.name = "rows", .does = "wait for rows", .run = normal_wait_rows, .word = normal_done_word},
    {.name = "digests", .does = "compare digests", .run = compare},
    XEP_STEP_FLUSH,
    {.name = "the end", .does = "end", .run = normal_tell_rows},
    {0},
};

/* A plan is made anew, or found: a cached dispatch skips the pass over topk_idx and keeps the routing of its handle. */
static xep_status_t take_routing(normal_t *mode, xep_op_t *op)
{
    normal_routing_t *routing;
    xep_status_t status = normal_choose_routing(mode, op, &routing);
    if (status == XEP_OK && op->cached_slot == XEP_NO_SLOT) status = normal_make_plan(mode, op, routing);
    if (status == XEP_OK) normal_use_routing(mode, op, routing);
    return status;
}

/* Where rows of feeders go: the slots of all mates, whatever of this rank's own rows stays in place. */
static xep_status_t find_places_by_nodes(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    if (xep_kit_state(op)->verdict != XEP_OK) return XEP_OK;
    xep_status_t status = normal_take_feeds(mode, op);
    if (status != XEP_OK) return status;
    normal_fill_targets(mode, op);
    for (uint32_t p = 0; p < mode->nodes->who.mates; p++)
        slot->traffic->targets[p] = target_of(mode, op, mode->nodes->who.mate[p]);
    return XEP_OK;
}

/* As early as it can be: behind the last own row, whatever feeders still have to pass. */
static xep_status_t tell_forwarders(normal_t *mode, xep_op_t *op)
{
    xep_status_t status =
        normal_state(op)->forwarders_told ? XEP_OK : xep_send_transfers(&mode->kit, op, normal_feed_done_transfer);
    if (status == XEP_OK) normal_state(op)->forwarders_told = 1;
    return status;
}

/*
 * Own rows to other nodes, own rows to mates a slice at a time, and what feeders have passed meanwhile: each as far as
 * it goes, until nothing is left of any. The ranks that are waited for are looked at before all that, so that the work
 * here counts as nobody's delay.
 */
static xep_status_t move_by_nodes(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    xep_wire_t *wire = mode->kit.env->wire;
    xep_status_t status = XEP_OK, passed = XEP_INPROGRESS, forwarded = XEP_INPROGRESS;
    if (xep_kit_state(op)->verdict != XEP_OK) return XEP_OK;
    if (op->coming != 0) return XEP_INPROGRESS;
    if (op->late.count != 0) status = xep_step_wait(mode, op);
    for (int moves = 1; status >= 0 && moves;) {
        passed = normal_pass_rows(mode, op);
        if (passed == XEP_OK) passed = tell_forwarders(mode, op);
        if (passed < 0) return passed;
        moves = normal_state(op)->moved < routing->tokens;
        if (moves) move_slice(mode, op);
        forwarded = normal_forward_rows(mode, op);
        if (forwarded < 0) return forwarded;
        if (moves) status = wire->ops->progress(wire);
    }
    if (status < 0) return status;
    if (passed != XEP_OK || forwarded != XEP_OK || op->late.count != 0) {
        if (op->late.count == 0) status = xep_step_wait(mode, op);
        return status < 0 ? status : XEP_INPROGRESS;
    }
    if (mode->kit.env->checks_rows && routing->tokens != 0) normal_note_rows(mode, op);
    return XEP_OK;
}

const xep_step_t normal_dispatch_by_nodes[] = {
    {.name = "records to go out",
     .does = "send records",
     .run = xep_step_send,
     .store = normal_store_record,
     .transfers = normal_feed_record_transfer},
    {.name = "counts",
     .does = "wait for counts",
     .run = normal_relay_records,
     .word = normal_counts_word,
     .relayed = 1},
    {.name = "agreement", .does = "agree", .run = agree},
    {.name = "places", .does = "find places", .run = find_places_by_nodes},
    {.name = "rows to pass",
     .does = "rows",
     .run = move_by_nodes,
     .word = normal_passing_word,
     .rows_bits = XEP_FEED_ROWS_BITS},
    {.name = "signals to go out",
     .does = "send signals",
     .run = xep_step_send,
     .store = normal_store_done,
     .transfers = normal_feed_done_transfer},
    {.name = "rows", .does = "wait for rows", .run = normal_relay_dones, .word = normal_done_word, .relayed = 1},
    {.name = "digests", .does = "compare digests", .run = compare},
    XEP_STEP_FLUSH,
    {.name = "the end", .does = "end", .run = normal_tell_rows},
    {0},
};

xep_status_t normal_dispatch(void *mode, xep_op_t *op)
{
    normal_t *normal = mode;
    uint64_t begin_ns = xep_kit_phase(&normal->kit);
    xep_status_t status = normal_check_dispatch(mode, op);
    if (status == XEP_OK) status = normal_in_place_choose(mode, op);
    if (status == XEP_OK) status = take_routing(mode, op);
    if (status != XEP_OK) return status;
    xep_kit_use_slot(&normal->kit, op);
    xep_in_place_take(&normal->in_place, op, &normal_state(op)->in_place);
    xep_kit_end_phase(&normal->kit, op, "plan", begin_ns);
    if (normal->grants) normal_state(op)->outs = normal_count_outs(normal);
    normal_make_record(mode, op);
    /* the dispatch before in this slot may have had more, and this one may end before it has counted its rows */
    normal_slot(normal, op->slot)->pieces = 1;
    if (op->cached_slot != XEP_NO_SLOT) normal_show_cached(mode, op);
    if (normal->nodes != NULL) normal_begin_traffic(normal, op);
    return xep_steps_begin(mode, op);
}
