/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces of a dispatch: which rows they are, agreeing on them, showing them, and their outputs. */
#include "normal_pieces.h"

#include <stddef.h>

#include "normal_steps.h"

/* ---- the first piece ---- */

/* The dispatch before in this slot may have had more, and this one may end before it has counted its rows. */
static xep_status_t begin_pieces(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    slot->pieces = 1;
    slot->piece = 0;
    slot->combines = 0;
    slot->dispatched = op->epoch;
    return XEP_OK;
}

/*
 * All slots have the same room: a rank that says otherwise would come to another number. What a slot has room for is
 * one piece, and so is nothing.
 */
static xep_status_t count_pieces(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t room = mode->layout.common.recv_rows;
    for (uint32_t d = 0; d < mode->kit.shape->nranks; d++) {
        if (slot->from[d].capacity != room)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "invalid record from rank %u: capacity: %llu (%llu, in pieces)", d,
                                       (unsigned long long)slot->from[d].capacity, (unsigned long long)room);
        const uint64_t pieces = (normal_count_rows(mode, slot, d) + room - 1) / room;
        if (pieces > slot->pieces) slot->pieces = pieces;
    }
    return XEP_OK;
}

/* Of several pieces nothing is shown before the first is here. */
static xep_status_t agree_in_pieces(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const xep_kit_state_t *state = xep_kit_state(op);
    normal_slot_t *slot = normal_slot(mode, op->slot);
    if ((op->dispatch->flags & XEP_DISPATCH_PIECES) == 0) return normal_agree(mode, op);
    xep_status_t status = normal_take_records(mode, op, normal_find_record);
    if (status == XEP_OK && state->verdict == XEP_OK) status = count_pieces(mode, op);
    if (status != XEP_OK) return status;
    if (slot->pieces > 1) {
        slot->combines = XEP_STEPS_PIECES;
        normal_make_digest(mode, op);
        return XEP_OK;
    }
    normal_conclude(mode, op);
    if (state->verdict == XEP_OK) normal_show_tail(op);
    return XEP_OK;
}

/* ---- the next one ---- */

/*
 * Without rows there is no opinion on weights; without outputs, none on what they are. Whether there are outputs is
 * asked of all, ranks without rows among them.
 */
static void make_record(normal_t *mode, xep_op_t *op)
{
    const xep_combine_args_t *outputs = op->combine;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    uint32_t *params = slot->record.params;
    normal_make_record(mode, op);
    slot->record.routing = slot->dispatched;
    params[NORMAL_PIECES] = (uint32_t)slot->piece + 2;
    params[NORMAL_HAS_OUTPUTS] = outputs != NULL;
    params[NORMAL_DTYPE] = outputs != NULL ? outputs->dtype : XEP_AGREE_ANY;
    params[NORMAL_HIDDEN] = outputs != NULL ? outputs->hidden : XEP_AGREE_ANY;
    params[NORMAL_HAS_WEIGHTS] = outputs != NULL && op->recv->rows != 0 ? outputs->topk_weights != NULL : XEP_AGREE_ANY;
}

/* What the records of the dispatch have said of all ranks, and what its rows are, is asked of nobody again. */
xep_status_t normal_next(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    if (op->dispatch->quant != XEP_QUANT_NONE) op->dispatch = &slot->cast;
    op->cached_slot = op->slot;
    normal_state(op)->piece = slot->piece + 1;
    normal_state(op)->weighted = slot->weighted;
    make_record(mode, op);
    return xep_steps_begin(mode, op);
}

static xep_status_t compare_outputs(normal_t *mode, xep_op_t *op)
{
#define PARAM(_name, _kind, _index) XEP_AGREE_PARAM(_name, XEP_AGREE_##_kind, normal_record_t, params[_index])
    static const xep_agree_param_t params[] = {
        PARAM("piece, from 1 (0: without XEP_DISPATCH_PIECES)", NUMBER, NORMAL_PIECES),
        PARAM("whether a piece has outputs", YES_NO, NORMAL_HAS_OUTPUTS),
        PARAM("dtype", DTYPE, NORMAL_DTYPE),
        PARAM("hidden", NUMBER, NORMAL_HIDDEN),
        PARAM("whether there are topk_weights", YES_NO, NORMAL_HAS_WEIGHTS),
    };
#undef PARAM
    const normal_record_t *from = normal_slot(mode, op->slot)->from;
    xep_status_t verdict = xep_agree_calls(mode->kit.env, op, &from->params[NORMAL_REFUSED], sizeof *from);
    if (verdict == XEP_OK)
        verdict = xep_agree(mode->kit.env, op, params, sizeof params / sizeof params[0], from, sizeof *from);
    return verdict == XEP_OK ? normal_compare_routings(mode, op) : verdict;
}

/* The dispatch has told the slots of the handle, which a piece of another one is no reason to forget. */
static xep_status_t agree_on_next(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        xep_status_t status = normal_take_header(mode, op, r, normal_find_record);
        if (status != XEP_OK) return status;
        slot->from[r].slot = *xep_combine_slot_there(&mode->kit, op->slot, r);
    }
    xep_kit_state(op)->verdict = compare_outputs(mode, op);
    normal_make_digest(mode, op);
    return XEP_OK;
}

/* ---- showing ---- */

/* Rows of the piece are here: from now on the slot, and op's recv, show it. */
static xep_status_t show_piece(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t nranks = mode->kit.shape->nranks;
    xep_recv_t *recv = op->recv;
    if (slot->pieces == 1) return XEP_OK; /* as all dispatches are shown */
    slot->piece = normal_state(op)->piece;
    /* piece_begin[0] is 0 and stays so */
    for (uint32_t r = 0; r < nranks; r++)
        slot->piece_begin[r + 1] = slot->piece_begin[r] + normal_shows(mode, slot, r).rows;
    normal_fill_recv(mode, op, slot->piece_begin[nranks]);
    recv->src_begin = slot->piece_begin;
    recv->rank_rows = slot->routing->rank_rows;
    recv->pieces = slot->pieces;
    recv->piece = slot->piece;
    recv->all_rows = slot->routing->src_begin[nranks];
    /* a rank that gets less than others has pieces without rows, behind its last one */
    recv->first_row = slot->piece * mode->layout.common.recv_rows;
    if (recv->first_row > recv->all_rows) recv->first_row = recv->all_rows;
    normal_count_selections(mode, op, slot->expert_rows);
    normal_align_experts(mode, op, slot->expert_rows);
    recv->expert_rows = slot->expert_rows;
    return XEP_OK;
}

/* Recv has said it. */
static xep_status_t tell_pieces(void *mode, xep_op_t *op)
{
    if (normal_slot(mode, op->slot)->pieces == 1) return normal_tell_rows(mode, op);
    if (op->dispatch->recv_rows_p != NULL) *op->dispatch->recv_rows_p = op->recv->all_rows;
    return XEP_OK;
}

/* ---- outputs ---- */

static int find_kept(const normal_t *mode, const xep_op_t *op, uint32_t reader, const normal_range_t *range,
                     normal_place_t *place)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    if (mode->kit.base[reader] == NULL) return 0;
    *place = normal_returned_place(mode, mode->kit.base[reader], slot->from[reader].slot, slot->routing->topk,
                                   normal_returned_begin(mode, slot, reader, mode->kit.shape->rank) + range->first);
    return 1;
}

/* Of host memory alone, so that none are still coming. */
static xep_status_t fill_pieces(void *opaque, xep_op_t *op)
{
    normal_fill_all(opaque, op, find_kept);
    return XEP_OK;
}

/* Rows, then weights, of a piece that has outputs. */
static int outputs_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                            xep_transfer_t *transfer)
{
    if (op->combine == NULL || number >= NORMAL_RETURNED_TRANSFERS) return 0;
    normal_returned_transfer(mode, op, rank, number, transfer);
    return 1;
}

static xep_status_t return_outputs(void *mode, xep_op_t *op)
{
    return op->combine == NULL ? XEP_OK : fill_pieces(mode, op);
}

/* All rows are in the own slot, own ones, too: what the user gave for the earlier pieces may be gone by now. */
static xep_status_t sum_pieces(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_terms_t terms = {slot->routing->first, slot->routing->dests, NORMAL_ALIKE};
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        slot->sources[r] = normal_returned_place(mode, mode->kit.own, op->slot, slot->routing->topk,
                                                 normal_returned_begin(mode, slot, mode->kit.shape->rank, r));
    normal_sum_tokens(mode, op, &terms, slot->routing->tokens);
    return XEP_OK;
}

#define NEXT  .kinds = XEP_KIND_NEXT
#define FIRST .kinds = XEP_KIND_PLAIN | XEP_KIND_CASTS
const xep_step_t normal_in_pieces_steps[] = {
    {.at = XEP_AT_OUTPUTS, .name = "outputs", .does = "return outputs", .run = return_outputs, NEXT},
    {.at = XEP_AT_OUTPUTS, XEP_STEP_PUT_OUTPUTS, .transfers = outputs_transfer, NEXT},
    {.at = XEP_AT_OUTPUTS, XEP_STEP_FLUSH_OUTPUTS, NEXT},
    {.at = XEP_AT_BEGIN, .name = "pieces", .does = "begin pieces", .run = begin_pieces, FIRST},
    {.at = XEP_AT_AGREE, .run = agree_in_pieces, FIRST},
    {.at = XEP_AT_AGREE, .run = agree_on_next, NEXT},
    {.at = XEP_AT_SHOW, .name = "rows", .does = "show", .run = show_piece, .agreed = 1},
    {.at = XEP_AT_END, .run = tell_pieces, FIRST},
    /* of several pieces; a single one is summed as without */
    {.at = XEP_AT_INPUT, .run = fill_pieces, .kinds = XEP_KIND_PIECES},
    {.at = XEP_AT_SUM, .run = sum_pieces, .kinds = XEP_KIND_PIECES},
    {0},
};
