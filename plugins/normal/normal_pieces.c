/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces of a dispatch: which rows they are, moving and showing them. The first one is the dispatch's. */
#include "normal_pieces.h"

#include "normal_metadata.h"

/*
 * All numbers count rows that the receiver gets, over all pieces; piece i is those from i * room on. What it has of
 * the source's rows is told from two ends: from the first row of that source, and from the first of the slot.
 */
normal_range_t normal_cut(const normal_t *mode, uint64_t begin, uint64_t rows, uint64_t piece)
{
    const uint64_t room = mode->layout.common.recv_rows, low = piece * room, high = low + room, end = begin + rows;
    uint64_t from = begin > low ? begin : low, to = end < high ? end : high;
    return from < to ? (normal_range_t){from - begin, to - from, from - low} : (normal_range_t){0, 0, 0};
}

/* Where all are mapped nobody needs tokens by rank otherwise; a routing that is used again has them already. */
void normal_begin_pieces(normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    slot->piece = 0;
    if (mode->kit.all_mapped && op->cached_slot == XEP_NO_SLOT) normal_list_tokens(mode, slot->routing);
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
    normal_metadata_t from = {.scales_stride = args->scales_stride};
    for (uint64_t i = begin; i < end; i++) {
        /* the next row is fetched while this one is copied: tokens of a rank may lie far apart */
        const uint64_t t = tokens[i], next = tokens[i + 1 < end ? i + 1 : i];
        const char *x = args->x;
        if (target->x != NULL)
            move->copy(target->x + i * stride, x + t * args->x_stride, bytes, x + next * args->x_stride);
        from.token = (int32_t)t;
        from.experts = routing->experts + t * routing->topk;
        if (args->topk_weights != NULL) from.weights = (const char *)args->topk_weights + t * args->topk_weights_stride;
        from.scales = (const char *)args->scales + (ptrdiff_t)t * args->scales_token_stride;
        normal_store_metadata(mode, args, &from, rank, target, i);
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
void normal_move_piece(normal_t *mode, const xep_op_t *op, xep_copy_fn copy)
{
    piece_move_t move = {.mode = mode, .op = op, .copy = copy};
    mode->kit.env->parallel(mode->kit.env, move_rows, &move);
}

/* ---- showing ---- */

void normal_show_piece(normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t nranks = mode->kit.shape->nranks;
    xep_recv_t *recv = op->recv;
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
}
