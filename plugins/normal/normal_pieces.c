/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces of a dispatch: which rows they are, moving and showing them. The first one is the dispatch's. */
#include "normal_pieces.h"

#include "normal_steps.h"

/* ---- the first piece ---- */

/* The dispatch before in this slot may have had more, and this one may end before it has counted its rows. */
xep_status_t normal_begin_pieces(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    slot->pieces = 1;
    slot->piece = 0;
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

/* Where all are mapped nobody needs tokens by rank otherwise; a routing that is used again has them already. */
static void list_tokens(normal_t *mode, const xep_op_t *op)
{
    if (mode->kit.all_mapped && op->cached_slot == XEP_NO_SLOT)
        normal_list_tokens(mode, normal_slot(mode, op->slot)->routing);
}

/* Of several pieces nothing is shown before the first is here. */
xep_status_t normal_agree_in_pieces(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const xep_kit_state_t *state = xep_kit_state(op);
    normal_slot_t *slot = normal_slot(mode, op->slot);
    if ((op->dispatch->flags & XEP_DISPATCH_PIECES) == 0) return normal_agree(mode, op);
    xep_status_t status = normal_take_records(mode, op, normal_find_record);
    if (status == XEP_OK && state->verdict == XEP_OK) status = count_pieces(mode, op);
    if (status != XEP_OK) return status;
    if (slot->pieces > 1) {
        normal_make_digest(mode, op);
        list_tokens(mode, op);
        return XEP_OK;
    }
    normal_conclude(mode, op);
    if (state->verdict == XEP_OK) normal_show_tail(op);
    return XEP_OK;
}

/* ---- moving ---- */

typedef struct piece_move {
    const normal_t *mode;
    const xep_op_t *op;
    xep_copy_fn copy;
} piece_move_t;

/* A thread's share of the rows for one rank: its tokens are known by their row there. */
static void move_to_rank(const piece_move_t *move, uint32_t rank, uint64_t begin, uint64_t end)
{
    const normal_t *mode = move->mode;
    const normal_slot_t *slot = normal_slot(mode, move->op->slot);
    const normal_routing_t *routing = slot->routing;
    const xep_dispatch_args_t *args = move->op->dispatch;
    const normal_target_t *target = &slot->targets[rank];
    const uint32_t *tokens = routing->tokens_to + routing->to_begin[rank] + normal_sends(mode, move->op, rank).first;
    const size_t bytes = xep_dispatch_row_bytes(args), stride = xep_row_stride(bytes);
    normal_metadata_t from = {0};
    for (uint64_t i = begin; i < end; i++) {
        /* the next row is fetched while this one is copied: tokens of a rank may lie far apart */
        const uint64_t t = tokens[i], next = tokens[i + 1 < end ? i + 1 : i];
        const char *x = args->x;
        if (target->x != NULL)
            move->copy(target->x + i * stride, x + t * args->x_stride, bytes, x + next * args->x_stride);
        from.token = (int32_t)t;
        from.experts = routing->experts + t * routing->topk;
        if (args->topk_weights != NULL) from.weights = (const char *)args->topk_weights + t * args->topk_weights_stride;
        normal_store_metadata(mode, move->op, &from, rank, target, i);
    }
}

static void move_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const piece_move_t *move = arg;
    for (uint32_t i = 0; i < move->mode->kit.shape->nranks; i++) {
        uint32_t rank = xep_kit_peer(&move->mode->kit, i);
        uint64_t rows = normal_sends(move->mode, move->op, rank).rows;
        move_to_rank(move, rank, rows * thread / nthreads, rows * (thread + 1) / nthreads);
    }
    xep_stores_fence();
}

/* Rank by rank, so a row is read once for each: only those that are in the piece are touched. */
xep_status_t normal_move_rows_of_piece(normal_t *mode, xep_op_t *op, xep_transfer_fn transfers)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    const uint64_t bytes = routing->first[routing->tokens] * xep_dispatch_row_bytes(op->dispatch);
    piece_move_t move = {.mode = mode, .op = op, .copy = xep_copy_for(mode->kit.env, bytes)};
    if (normal_state(op)->moved == routing->tokens) return XEP_OK;
    xep_status_t status = xep_send_transfers(&mode->kit, op, transfers);
    if (status < 0) return status;
    if (op->coming != 0) return XEP_INPROGRESS;
    mode->kit.env->parallel(mode->kit.env, move_rows, &move);
    normal_state(op)->moved = routing->tokens;
    return XEP_OK;
}

xep_status_t normal_move_piece(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (normal_slot(mode, op->slot)->pieces == 1 || xep_kit_state(op)->verdict != XEP_OK) return normal_move(mode, op);
    xep_status_t status = normal_move_rows_of_piece(mode, op, normal_dispatch_transfer);
    return status == XEP_OK ? xep_step_send(mode, op) : status;
}

/* ---- showing ---- */

/* Rows of the piece are here: from now on the slot, and op's recv, show it. */
xep_status_t normal_show_piece(void *opaque, xep_op_t *op)
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
xep_status_t normal_tell_pieces(void *mode, xep_op_t *op)
{
    if (normal_slot(mode, op->slot)->pieces == 1) return normal_tell_rows(mode, op);
    if (op->dispatch->recv_rows_p != NULL) *op->dispatch->recv_rows_p = op->recv->all_rows;
    return XEP_OK;
}

/* ---- outputs ---- */

/* In "returned" of a reader lie the rows of all owners, its own ones among them: of all pieces. */
static uint64_t kept_begin(const normal_t *mode, const normal_slot_t *slot, uint32_t reader, uint32_t owner)
{
    const uint32_t *rows = slot->routing->rank_rows + (size_t)reader * mode->kit.shape->nranks;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < owner; i++) begin += rows[i];
    return begin;
}

static int find_kept(const normal_t *mode, const xep_op_t *op, uint32_t reader, const normal_range_t *range,
                     normal_place_t *place)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    if (mode->kit.base[reader] == NULL) return 0;
    *place = normal_returned_place(mode, mode->kit.base[reader], slot->from[reader].slot, slot->routing->topk,
                                   kept_begin(mode, slot, reader, mode->kit.shape->rank) + range->first);
    return 1;
}

xep_status_t normal_fill_pieces(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (normal_slot(mode, op->slot)->pieces == 1) return normal_fill(mode, op);
    if (op->coming != 0) return XEP_INPROGRESS;
    normal_fill_all(mode, op, find_kept);
    return XEP_OK;
}

void normal_kept_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                          xep_transfer_t *transfer)
{
    normal_returned_transfer(mode, op, rank, number,
                             kept_begin(mode, normal_slot(mode, op->slot), rank, mode->kit.shape->rank), transfer);
}

int normal_pieces_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    if (number >= NORMAL_RETURNED_TRANSFERS || normal_slot(mode, op->slot)->pieces == 1)
        return normal_combine_transfer(mode, op, rank, number, transfer);
    normal_kept_transfer(mode, op, rank, number, transfer);
    return 1;
}

/* All rows are in the own slot, own ones, too: what the user gave for the earlier pieces may be gone by now. */
xep_status_t normal_sum_pieces(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_terms_t terms = {slot->routing->first, slot->routing->dests, NORMAL_TERMS_PLAIN};
    if (slot->pieces == 1) return normal_sum(mode, op);
    if (op->coming != 0) return XEP_INPROGRESS;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        slot->sources[r] = normal_returned_place(mode, mode->kit.own, op->slot, slot->routing->topk,
                                                 kept_begin(mode, slot, mode->kit.shape->rank, r));
    normal_sum_tokens(mode, op, &terms, slot->routing->tokens);
    return XEP_OK;
}
