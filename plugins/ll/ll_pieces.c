/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces of a dispatch: what is in which, and the outputs of those that are gone. */
#include "ll_pieces.h"

#include <string.h>

#include "ll_flow.h"

void ll_lay_pieces(const ll_t *mode, xep_carve_t *carve, ll_slot_t *slot)
{
    const xep_shape_t *shape = mode->kit.shape;
    ll_pieces_t measured, *laid = xep_carve_array(carve, 1, sizeof *laid), *pieces = laid != NULL ? laid : &measured;
    slot->pieces = laid;
    pieces->of = xep_carve_array(carve, shape->tokens * shape->topk, sizeof *pieces->of);
    slot->all_count = xep_carve_array(carve, shape->local_experts, sizeof *slot->all_count);
}

/* Which piece op brings. */
static uint64_t number_of(const ll_t *mode, const xep_op_t *op)
{
    return op->kind == XEP_OP_NEXT ? ll_slot(mode, op->slot)->pieces->shown + 1 : 0;
}

/* ---- the cut ---- */

/* Rows of a piece of a rank whose first rows of experts are so aligned; 0: there is no room for any. */
static uint64_t piece_rows(const ll_t *mode, uint64_t alignment)
{
    return mode->layout.common.recv_rows / alignment * alignment;
}

/* Of each expert of a rank, counts becomes the first row among all that the rank gets. Returns all these. */
static uint64_t begin_experts(ll_t *mode, uint32_t first, uint32_t end, uint64_t alignment)
{
    uint64_t rows = 0;
    for (uint32_t e = first; e < end; e++) {
        uint64_t count = mode->counts[e];
        mode->counts[e] = rows;
        rows += ll_align_rows(count, alignment);
    }
    return rows;
}

/*
 * A rank's rows of an expert are in the order of sources, and these in the order of tokens.
 * So sources before this one move the begins of experts on, and those behind it do not matter.
 */
static void find_own(const ll_t *mode, const xep_op_t *op, const ll_notice_t *from)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    for (uint32_t s = 0; s < mode->kit.shape->rank; s++) ll_count_source(mode, op, s);
    for (uint64_t i = 0; i < slot->tokens * slot->topk; i++) {
        if (slot->experts[i] < 0) continue;
        uint64_t row = mode->counts[slot->experts[i]]++;
        slot->pieces->of[i] = row / piece_rows(mode, from[mode->kit.owner[slot->experts[i]]].alignment);
    }
}

/*
 * All ranks count the same indices, and so come to the same number of pieces, or to the same error. What
 * begin_experts() leaves in counts is where find_own() begins.
 */
static xep_status_t cut_pieces(ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    ll_count_all(mode, op);
    const uint32_t *first = mode->kit.first_expert;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        uint64_t room = piece_rows(mode, from[r].alignment);
        if (room == 0)
            return mode->kit.env
                ->fail(mode->kit.env, op, XEP_ERR_OVERFLOW,
                       "expert_alignment of rank %u is more than a slot has rows: %u (params.recv_rows: %llu)", r,
                       from[r].alignment, (unsigned long long)mode->layout.common.recv_rows);
        uint64_t rows = begin_experts(mode, first[r], first[r + 1], from[r].alignment),
                 pieces = (rows + room - 1) / room;
        if (pieces > slot->pieces->count) slot->pieces->count = pieces;
    }
    if (slot->pieces->count == 1) return XEP_OK;
    slot->combines = XEP_STEPS_PIECES;
    find_own(mode, op, from);
    return XEP_OK;
}

/* ---- the list of a piece ---- */

static void begin_list(ll_t *mode, const xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t first = mode->kit.first_expert[mode->kit.shape->rank], experts = mode->kit.shape->local_experts;
    ll_count_all(mode, op);
    memcpy(slot->all_count, mode->counts + first, experts * sizeof *slot->all_count);
    slot->pieces->all_rows = begin_experts(mode, first, first + experts, slot->from[mode->kit.shape->rank].alignment);
}

/*
 * Of items, a dispatch brings those of all tokens that come here, in whatever piece they are; a next piece those that
 * are in it. Rows are numbered anew each time: of the indices of others nothing is believed that was seen earlier.
 */
static int list_source(ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t *n_p, uint64_t *items_p)
{
    const ll_list_t *list = &ll_slot(mode, op->slot)->list;
    const ll_notice_t *notices = ll_slot(mode, op->slot)->from, *notice = &notices[source];
    const int32_t *idx = (const int32_t *)(const void *)list->packets[source].head;
    const uint32_t self = mode->kit.shape->rank, first = mode->kit.first_expert[self],
                   count = mode->kit.shape->local_experts;
    const uint64_t piece = number_of(mode, op), rows = piece_rows(mode, notices[self].alignment),
                   room = ll_recv_ring_room(mode, &list->packets[source]);
    uint64_t n = *n_p, items = 0;
    for (uint32_t t = 0; t < notice->tokens; t++, idx += notice->topk) {
        int comes = 0;
        if (n > mode->layout.common.recv_rows) return 0; /* before it runs out of the list, which has room for K more */
        for (uint32_t k = 0; k < notice->topk; k++) {
            uint32_t local = (uint32_t)idx[k] - first;
            if (local >= count) continue;
            int is_in = mode->counts[first + local]++ - piece * rows < rows;
            comes |= is_in || piece == 0;
            if (!is_in) continue;
            list->picks[n] = (ll_pick_t){.token = t, .k = k, .row = local};
            if (list->item != NULL) list->item[n] = mode->kit.base[source] != NULL ? t : (uint32_t)(items % room);
            n++;
        }
        items += (uint64_t)comes;
    }
    *n_p = n;
    *items_p = items;
    return n <= mode->layout.common.recv_rows;
}

static xep_status_t list_piece(ll_t *mode, xep_op_t *op)
{
    uint64_t *begin = ll_slot(mode, op->slot)->list.begin, items;
    xep_status_t status = XEP_OK;
    begin_list(mode, op);
    begin[0] = 0;
    for (uint32_t s = 0; s < mode->kit.shape->nranks && status == XEP_OK; s++) {
        begin[s + 1] = begin[s];
        if (!list_source(mode, op, s, &begin[s + 1], &items))
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "rank %u changed its rows between two pieces", s);
        if (ll_slot(mode, op->slot)->list.item != NULL) status = ll_note_items(mode, op, s, items);
    }
    return status;
}

/* Where all rows fit they are listed as without pieces. */
static xep_status_t list_rows(ll_t *mode, xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    if (slot->combines != 0) return list_piece(mode, op);
    xep_status_t status = ll_list_rows(mode, op);
    return status == XEP_OK && slot->list.item != NULL ? ll_find_items(mode, op) : status;
}

/* ---- the verdict ---- */

/* Ranks that are in different pieces have nothing else to compare. */
static xep_status_t compare_pieces(const ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    static const xep_agree_param_t params[] = {
        XEP_AGREE_PARAM("piece, from 1 (0: without XEP_DISPATCH_PIECES)", XEP_AGREE_NUMBER, ll_notice_t, piece),
        XEP_AGREE_PARAM("whether a piece has outputs", XEP_AGREE_YES_NO, ll_notice_t, has_outputs),
        XEP_AGREE_PARAM("dtype", XEP_AGREE_DTYPE, ll_notice_t, outputs_dtype),
        XEP_AGREE_PARAM("hidden", XEP_AGREE_NUMBER, ll_notice_t, outputs_hidden),
    };
    return xep_agree(mode->kit.env, op, params, sizeof params / sizeof params[0], from, sizeof *from);
}

/* The dispatch has told the slots of the handle, which a piece of another one is no reason to forget. Its rank. */
static uint32_t keep_slots(ll_t *mode, const xep_op_t *op)
{
    ll_notice_t *from = ll_slot(mode, op->slot)->from;
    uint32_t stranger = XEP_NO_RANK;
    for (uint32_t r = mode->kit.shape->nranks; r-- > 0;) {
        const uint16_t slot = (uint16_t)*xep_combine_slot_there(&mode->kit, op->slot, r);
        if (from[r].slot != slot) stranger = r;
        from[r].slot = slot;
    }
    return stranger;
}

static xep_status_t refuse_handle(const ll_t *mode, xep_op_t *op, uint32_t stranger)
{
    const uint32_t self = mode->kit.shape->rank;
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_MISMATCH,
                               "rank %u and rank %u disagree on the handle whose next piece it is",
                               stranger < self ? stranger : self, stranger < self ? self : stranger);
}

/* Of a dispatch. */
static xep_status_t check_room(ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    ll_slot(mode, op->slot)->pieces->count = 1;
    ll_slot(mode, op->slot)->combines = 0;
    if ((op->dispatch->flags & XEP_DISPATCH_PIECES) == 0) return ll_check_room(mode, op, from);
    return ll_has_room(mode, op, from) ? XEP_OK : cut_pieces(mode, op, from);
}

static xep_status_t conclude(ll_t *mode, xep_op_t *op)
{
    const ll_notice_t *from = ll_slot(mode, op->slot)->from;
    const int is_next = op->kind == XEP_OP_NEXT;
    uint32_t stranger = XEP_NO_RANK;
    if (is_next) stranger = keep_slots(mode, op);
    else ll_note_slots(mode, op);
    xep_status_t verdict = ll_compare_notices(mode, op, from);
    if (verdict == XEP_OK) verdict = compare_pieces(mode, op, from);
    if (verdict == XEP_OK && !is_next) verdict = check_room(mode, op, from);
    return stranger == XEP_NO_RANK || verdict != XEP_OK ? verdict : refuse_handle(mode, op, stranger);
}

/* ---- what is shown ---- */

/* Completes what recv shows. */
static void show_piece(const ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    ll_pieces_t *pieces = slot->pieces;
    xep_recv_t *recv = op->recv;
    pieces->shown = number_of(mode, op);
    if (slot->combines == 0) return;
    recv->pieces = pieces->count;
    recv->piece = pieces->shown;
    recv->all_rows = pieces->all_rows;
    /* a rank that gets less than others has pieces without rows, behind its last one */
    recv->first_row = pieces->shown * piece_rows(mode, slot->from[mode->kit.shape->rank].alignment);
    if (recv->first_row > recv->all_rows) recv->first_row = recv->all_rows;
}

/* As ll_receive() in ll_receive.c. */
static xep_status_t receive_piece(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_slot_t *slot = ll_slot(mode, op->slot);
    uint64_t rows;
    xep_status_t verdict = xep_kit_state(op)->verdict = conclude(mode, op);
    if (verdict != XEP_OK) return XEP_OK;
    xep_status_t status = list_rows(mode, op);
    if (status == XEP_OK) status = ll_place_rows(mode, op, &rows);
    if (status != XEP_OK) return status;
    if (slot->combines == 0) {
        slot->pieces->all_rows = rows;
        memcpy(slot->all_count, slot->expert_count, mode->kit.shape->local_experts * sizeof *slot->all_count);
    }
    if (op->kind != XEP_OP_NEXT) xep_kit_tell_rows(op, slot->pieces->all_rows);
    ll_show_rows(mode, op, rows);
    show_piece(mode, op);
    return XEP_OK;
}

/* ---- as a source ---- */

/* Brings the rows of these selections. All ranks know the counts of the notice already. */
xep_status_t ll_next(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_state_t *state = ll_state(op);
    const xep_combine_args_t *outputs = op->combine;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t piece = number_of(mode, op);
    for (uint64_t i = 0; i < slot->tokens * slot->topk; i++)
        slot->some[i] = slot->experts[i] >= 0 && slot->pieces->of[i] == piece ? slot->experts[i] : -1;
    ll_fill_notice(mode, op, &state->notice);
    state->notice.piece = (uint32_t)piece + 1;
    state->notice.outputs_hidden = 0;
    if (outputs != NULL) {
        state->notice.has_outputs = 1;
        state->notice.outputs_hidden = outputs->hidden;
        state->notice.outputs_dtype = (uint8_t)outputs->dtype;
    }
    return ll_begin_sending(mode, op, slot->some);
}

/* ---- outputs: of host memory alone, so that none are still coming; readers pull nothing, and need no table ---- */

static xep_status_t return_outputs(void *mode, xep_op_t *op)
{
    if (op->combine != NULL) ll_return_outputs(mode, op);
    return XEP_OK;
}

/* All rows are in the own "returned", own ones, too. */
static xep_status_t sum_returned(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) mode->sources[r] = ll_find_returned(mode, op);
    return ll_sum_rows(mode, op);
}

/* Rows of earlier pieces have gone as they are, and so go those of the last one, whatever a combine is to cast. */
xep_status_t ll_choose_pieces(ll_t *mode, xep_op_t *op)
{
    xep_kit_state(op)->pieces = XEP_STEPS_PIECES;
    if (!ll_sums_at_owner(op)) return XEP_OK;
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_UNSUPPORTED,
                               "invalid flags: XEP_COMBINE_SUM_AT_OWNER (not for a handle of several pieces: %llu)",
                               (unsigned long long)ll_slot(mode, op->slot)->pieces->count);
}

#define NEXT .kinds = XEP_KIND_NEXT
const xep_step_t ll_in_pieces_steps[] = {
    {.at = XEP_AT_OUTPUTS, .name = "outputs", .does = "return outputs", .run = return_outputs, NEXT},
    {.at = XEP_AT_OUTPUTS, XEP_STEP_PUT_OUTPUTS, .transfers = ll_outputs_transfer, NEXT},
    {.at = XEP_AT_OUTPUTS, XEP_STEP_FLUSH_OUTPUTS, NEXT},
    {.at = XEP_AT_PLACES, .run = receive_piece},
    /* of several pieces; a single one is summed as without */
    {.at = XEP_AT_INPUT, .run = return_outputs, .kinds = XEP_KIND_PIECES},
    {.at = XEP_AT_SUM, .run = sum_returned, .kinds = XEP_KIND_PIECES},
    {0},
};
