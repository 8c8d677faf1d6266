/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * How a dispatch deals with ranks that are out: normal_masks.h says why. All of it is rare, except the two stores and
 * the fence around the rows.
 */
#include <string.h>

#include "normal_masks.h"
#include "normal_steps.h"

/* ---- words ---- */

static uint64_t counts_offset(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    return normal_line_offset(mode, normal_index(mode, op), rank) + offsetof(normal_line_t, counts);
}

/* The record of rank, as another rank or this one has it. */
static uint64_t counts_at(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t receiver)
{
    const char *word = mode->kit.base[receiver] + counts_offset(mode, op, rank);
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)word, memory_order_acquire);
}

/* A rank writes its record to all before its first row, and all its rows before its first done. */
static xep_holds_t holds(void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    xep_holds_t held = xep_kit_holds(opaque, op, rank);
    if (held == XEP_HOLDS_ALL || op->kind != XEP_OP_DISPATCH) return held;
    return counts_at(mode, op, rank, mode->kit.shape->rank) >= op->epoch ? XEP_HOLDS_FIRST : XEP_HOLDS_NOTHING;
}

/* A dispatch has its verdict from the records, before any row comes. */
static xep_status_t verdict(void *mode, const xep_op_t *op)
{
    if (op->kind != XEP_OP_DISPATCH) return xep_kit_verdict(mode, op);
    return normal_state(op)->concluded ? xep_kit_state(op)->verdict : XEP_INPROGRESS;
}

const xep_mask_ops_t normal_masks = {.holds = holds,
                                     .fetch = xep_kit_fetch,
                                     .verdict = verdict,
                                     .reads = xep_masks_reads};

/*
 * A rank that has another's last word also has its record. Else that record may be at any other rank: header and rows
 * are the same in all these copies, and the writer's own copy has no rows. No entry is written again before this rank
 * has ended op. If some ranks are not mapped, this rank cannot fetch a record that it lacks: then the other one is
 * silent, and its record is not looked for.
 */
static const char *find_left_record(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    if (!xep_op_is_without(op, rank)) return normal_find_record(mode, op, rank);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        if (r != rank && counts_at(mode, op, rank, r) == op->epoch)
            return mode->kit.base[r] + normal_record_offset(mode, op->turn, rank);
    return NULL;
}

/* ---- a rank that stores, and may be out ---- */

/* The epoch of the dispatch whose rows a rank is storing. */
static _Atomic uint64_t *storing_word(const normal_t *mode, uint32_t rank)
{
    return (_Atomic uint64_t *)(void *)(mode->kit.base[rank] + mode->layout.storing);
}

/* Release: the rows of all threads come before it. */
static void end_storing(const normal_t *mode)
{
    atomic_store_explicit(storing_word(mode, mode->kit.shape->rank), 0, memory_order_release);
}

/*
 * This rank sets its word and then checks whether it is out; the others tell it first and then check this word. So
 * either this rank sees that it is out, and stores nothing (0), or they see that it stores.
 */
static int begin_storing(const normal_t *mode, const xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    atomic_store_explicit(storing_word(mode, mode->kit.shape->rank), op->epoch, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!env->is_told(env)) return 1;
    end_storing(mode);
    return 0;
}

/*
 * A rank that has not begun to store checks first whether it is out. One that was stopped in the middle may go on at
 * any time. Rows in messages of a rank that is out are not stored.
 */
static int is_quiesced(const normal_t *mode, const xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    for (uint32_t r = 0; op->out != NULL && r < mode->kit.shape->nranks; r++)
        if (xep_op_is_without(op, r) && mode->kit.base[r] != NULL &&
            atomic_load_explicit(storing_word(mode, r), memory_order_acquire) == op->epoch && !env->has_ended(env, r))
            return 0;
    return 1;
}

/* ---- routings without ranks ---- */

static void lay_slot(const normal_t *mode, xep_carve_t *arena, normal_slot_t *slot)
{
    const xep_shape_t *shape = mode->kit.shape;
    const uint64_t ranks = shape->nranks, granting = mode->kit.all_mapped ? 0 : ranks;
    normal_left_t measured, *laid = xep_carve_array(arena, 1, sizeof *laid), *left = laid != NULL ? laid : &measured;
    left->narrow.rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *left->narrow.rank_rows);
    left->narrow.src_begin = xep_carve_array(arena, ranks + 1, sizeof *left->narrow.src_begin);
    left->narrow.there = xep_carve_array(arena, ranks, sizeof *left->narrow.there);
    left->narrow.local = xep_carve_array(arena, shape->local_experts, sizeof *left->narrow.local);
    left->grants = xep_carve_array(arena, granting, sizeof *left->grants);
    left->told = xep_carve_array(arena, granting, sizeof *left->told);
    left->granted = xep_carve_array(arena, granting, sizeof *left->granted);
    left->endings = xep_carve_array(arena, granting, sizeof *left->endings);
    slot->left = laid;
}

void normal_lay_left(normal_t *mode, xep_carve_t *arena)
{
    const xep_shape_t *shape = mode->kit.shape;
    mode->terms = xep_carve_array(arena, shape->tokens * mode->layout.max_dests, sizeof *mode->terms);
    mode->term_first = xep_carve_array(arena, shape->tokens + 1, sizeof *mode->term_first);
    for (uint32_t s = 0; s < shape->slots; s++) lay_slot(mode, arena, normal_slot(mode, s));
}

/* Other handles may use the same routing, and show what it says. */
static normal_routing_t *narrow_routing(const normal_t *mode, normal_slot_t *slot)
{
    if (slot->routing->whole != NULL) return slot->routing;
    normal_routing_t own = slot->left->narrow, *whole = slot->routing, *narrow = &slot->left->narrow;
    const xep_shape_t *shape = mode->kit.shape;
    size_t ranks = shape->nranks;
    *narrow = *whole;
    narrow->whole = whole;
    narrow->rank_rows = own.rank_rows;
    narrow->src_begin = own.src_begin;
    narrow->there = own.there;
    narrow->local = own.local;
    memcpy(own.rank_rows, whole->rank_rows, ranks * ranks * sizeof *own.rank_rows);
    memcpy(own.local, whole->local, shape->local_experts * sizeof *own.local);
    slot->routing = narrow;
    if (mode->kit.all_mapped) slot->there = own.there;
    return slot->routing;
}

static void forget_rows(const normal_t *mode, normal_routing_t *routing, uint32_t rank)
{
    size_t nranks = mode->kit.shape->nranks;
    memset(routing->rank_rows + rank * nranks, 0, nranks * sizeof *routing->rank_rows);
}

/* The rows of a cached routing without those of ranks that are silent in this dispatch. */
static void narrow_cached(normal_t *mode, xep_op_t *op)
{
    normal_routing_t *routing = narrow_routing(mode, normal_slot(mode, op->slot));
    routing->sum = routing->places = 0;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        if (op->out[r] == XEP_OUT_SILENT) forget_rows(mode, routing, r);
        else normal_digest_add(mode, routing, r);
    }
    normal_find_begins(mode, routing);
}

/* A silent rank has no tokens, takes no rows, and agrees with this rank's parameters. */
static void imagine_records(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    if (op->out == NULL) return;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        if (op->out[r] != XEP_OUT_SILENT) continue;
        slot->from[r] = slot->record;
        slot->from[r].tokens = slot->from[r].capacity = 0;
        slot->from[r].slot = 0;
        if (op->cached_slot == XEP_NO_SLOT) forget_rows(mode, slot->routing, r);
    }
    if (op->cached_slot != XEP_NO_SLOT) narrow_cached(mode, op);
    normal_left(mode, op)->uncounted = op->cached_slot != XEP_NO_SLOT || op->heard.count != op->with.count;
}

/* ---- gaps ---- */

/** An array of what was received. */
typedef struct received {
    char *base;
    size_t bytes; /* of a row */
} received_t;

static void move_rows(const received_t *array, uint64_t to, uint64_t from, uint64_t rows)
{
    if (array->base != NULL)
        memmove(array->base + to * array->bytes, array->base + from * array->bytes, rows * array->bytes);
}

/*
 * Moves rows in rank order to where the rows before them end, so none is overwritten before it is moved. Those of rank
 * r lie from lie[r] on, where this rank has granted room; those of rank r + 1 follow.
 */
static void move_sources(const normal_t *mode, const xep_op_t *op, const uint64_t *begin, const uint64_t *lie)
{
    const xep_recv_t *recv = op->recv;
    const xep_fields_t *fields = &normal_slot(mode, op->slot)->fields;
    received_t arrays[5 + XEP_PAYLOADS_MOST] = {
        {recv->x, recv->x_stride},
        {(char *)recv->src_token, sizeof(int32_t)},
        {recv->topk_idx, recv->topk * xep_elem_bytes(op->dispatch->topk_idx_dtype)},
        {(char *)recv->topk_weights, recv->topk * sizeof(float)},
    };
    char *beside = xep_kit_own_area(&mode->kit, mode->layout.common.beside, op->slot);
    for (uint32_t i = 0; i < fields->count; i++)
        arrays[4 + i] = (received_t){beside + xep_field_place(&fields->of[i], mode->layout.common.recv_rows, 0),
                                     fields->of[i].stride};
    uint64_t to = 0;
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        uint64_t rows = begin[r + 1] - begin[r];
        uint64_t from = lie != NULL ? lie[r] : begin[r];
        for (size_t a = 0; a < sizeof arrays / sizeof arrays[0] && to != from && rows != 0; a++)
            move_rows(&arrays[a], to, from, rows);
        to += rows;
    }
}

static int brings_rows(const normal_t *mode, const normal_routing_t *routing, uint32_t rank)
{
    uint32_t nranks = mode->kit.shape->nranks;
    for (uint32_t d = 0; d < nranks; d++)
        if (routing->rank_rows[(size_t)rank * nranks + d] != 0) return 1;
    return 0;
}

/* Combines find rows by the new places, at their owners and at their readers. */
static void close_gaps(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t *begin = slot->routing->src_begin;
    int gaps = 0;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        gaps |= xep_op_is_without(op, r) && brings_rows(mode, slot->routing, r);
    if (gaps || normal_left(mode, op)->placed)
        move_sources(mode, op, begin, normal_left(mode, op)->placed ? slot->left->grants : NULL);
    if (!gaps && !normal_left(mode, op)->uncounted) {
        if (normal_left(mode, op)->placed) normal_show_tail(op);
        return;
    }
    normal_routing_t *routing = narrow_routing(mode, slot);
    for (uint32_t r = 0; r < mode->kit.shape->nranks && gaps; r++)
        if (xep_op_is_without(op, r)) forget_rows(mode, routing, r);
    normal_find_begins(mode, routing);
    op->recv->rows = routing->src_begin[mode->kit.shape->nranks];
    normal_count_selections(mode, op, routing->local);
    normal_show_rows(mode, op);
    normal_show_tail(op);
}

/* ---- steps of a dispatch ---- */

uint32_t normal_count_outs(const normal_t *mode)
{
    uint32_t outs = 0;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) outs += (uint32_t)xep_kit_is_out(&mode->kit, r);
    return outs;
}

static xep_status_t note_outs(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    normal_left_t *left = normal_left(mode, op);
    left->outs = normal_count_outs(mode);
    left->changed = left->uncounted = left->placed = 0;
    if (!mode->kit.all_mapped) normal_slot(mode, op->slot)->there = left->granted;
    return XEP_OK;
}

/*
 * Step 3, only once ranks that are out no longer store: they may count records that no survivor has, and so use other
 * places. A verdict that was taken over is not compared again. A rank that knows more than this one may have put rows
 * behind those that it shows already: then the tail waits for the last of them.
 */
static xep_status_t agree_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (!is_quiesced(mode, op)) return XEP_INPROGRESS;
    imagine_records(mode, op);
    xep_status_t status = normal_take_records(mode, op, find_left_record);
    if (status != XEP_OK) return status;
    if (!op->is_ruled) normal_judge_room(mode, op);
    normal_left(mode, op)->changed = normal_count_outs(mode) != normal_left(mode, op)->outs;
    normal_conclude(mode, op);
    if (xep_kit_state(op)->verdict == XEP_OK && !normal_must_ask(mode, op)) normal_show_tail(op);
    return XEP_OK;
}

/* "storing" is set from before the first row until after the last one, over all turns, and cleared before any done. */
xep_status_t normal_move_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    uint64_t tokens = xep_kit_state(op)->verdict == XEP_OK ? normal_slot(mode, op->slot)->routing->tokens : 0;
    int fenced = normal_state(op)->moved < tokens;
    if (fenced && !begin_storing(mode, op)) return XEP_INPROGRESS; /* the core will end it */
    xep_status_t status = normal_move_rows(mode, op);
    if (status != XEP_OK) return status;
    if (fenced) end_storing(mode);
    return xep_step_send(mode, op);
}

/*
 * With grants, of a rank that is out since the dispatch began some may have the record, and others not: their verdict
 * is the same (agreement.h), their counts are not, and rows lie where receivers have granted it all the same.
 */
static int is_excused(const normal_t *mode, const xep_op_t *op, const normal_digest_t *theirs)
{
    return !mode->kit.all_mapped && normal_count_outs(mode) != normal_left(mode, op)->outs &&
           theirs->verdict >> 1 == normal_slot(mode, op->slot)->digest.verdict >> 1;
}

/*
 * A rank that is out by now may have had the record of another such rank that no survivor has: what it stored lies
 * elsewhere than the others know, and all of them see that alike.
 */
static xep_status_t compare_digests(normal_t *mode, xep_op_t *op)
{
    const normal_digest_t *own = &normal_slot(mode, op->slot)->digest;
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        const normal_digest_t theirs = normal_line(mode, normal_index(mode, op), r)->digest;
        if (memcmp(&theirs, own, sizeof theirs) == 0 || is_excused(mode, op, &theirs)) continue;
        if (!xep_kit_is_out(&mode->kit, r)) return normal_tell_difference(mode, op, r, &theirs);
        mode->kit.env->leave_out(mode->kit.env, op, r);
        i--; /* it is no longer there */
    }
    return XEP_OK;
}

/* Whether all have put their rows where this rank has granted it, if it has. XEP_ERR_PROTOCOL: one has not. */
static xep_status_t check_begins(const normal_t *mode, xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        const uint64_t begin = normal_line(mode, normal_index(mode, op), r)->begin;
        if (begin != slot->left->grants[r])
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "rank %u has put its rows at the wrong place: row %llu (row %llu)", r,
                                       (unsigned long long)begin, (unsigned long long)slot->left->grants[r]);
    }
    return XEP_OK;
}

/* Step 6. Closes the gaps of excluded ranks only once no late store of theirs can arrive. */
static xep_status_t compare_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (!is_quiesced(mode, op)) return XEP_INPROGRESS;
    xep_status_t status = compare_digests(mode, op);
    if (status != XEP_OK || xep_kit_state(op)->verdict != XEP_OK) return status;
    if (normal_left(mode, op)->placed) status = check_begins(mode, op);
    if (status != XEP_OK) return status;
    if (op->out != NULL || normal_left(mode, op)->placed) close_gaps(mode, op);
    return XEP_OK;
}

/* ---- steps of a combine ---- */

/* The terms of each token without the rows of ranks that are out. */
static normal_terms_t list_terms(const normal_t *mode, const xep_op_t *op)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    const normal_adding_t how = xep_kit_state(op)->casts ? NORMAL_CODED : NORMAL_ALIKE;
    uint64_t end = 0;
    if (op->out == NULL) return (normal_terms_t){routing->first, routing->dests, how};
    for (uint64_t t = 0; t < routing->tokens; t++) {
        mode->term_first[t] = end;
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            if (op->out[routing->dests[i].rank] == 0) mode->terms[end++] = routing->dests[i];
    }
    mode->term_first[routing->tokens] = end;
    return (normal_terms_t){mode->term_first, mode->terms, how};
}

static xep_status_t sum_listed(void *mode, xep_op_t *op)
{
    const normal_terms_t terms = list_terms(mode, op);
    return normal_sum_terms(mode, op, &terms);
}

#define OUT .name = "ranks that are out to store nothing any more"
const xep_step_t normal_without_steps[] = {
    {.at = XEP_AT_BEGIN, .name = "ranks that are out", .does = "count them", .run = note_outs},
    {.at = XEP_AT_AGREE, OUT, .does = "agree", .run = agree_masked},
    {.at = XEP_AT_MOVE, .run = normal_move_masked, .transfers = normal_dispatch_transfer},
    {.at = XEP_AT_COMPARE, OUT, .does = "compare digests", .run = compare_masked},
    {.at = XEP_AT_DRAIN, XEP_COMBINE_STEP_DRAIN_BY(xep_masks_read_word)},
    {.at = XEP_AT_SUM, .run = sum_listed, .kinds = XEP_KIND_PLAIN},
    {.at = XEP_AT_SUM, .does = "decode and sum", .run = sum_listed, .kinds = XEP_KIND_CASTS},
    {0},
};
