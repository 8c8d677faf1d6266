/* SPDX-License-Identifier: BSD-3-Clause */

/* Pieces of a dispatch: what is in which, and the outputs of those that are gone. */
#include "ll_pieces.h"

#include <string.h>

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

/* Indices lie in memory that other ranks write: one that is no expert is counted where nobody looks. */
static void pass_source(ll_t *mode, uint32_t source, const ll_notice_t *notice)
{
    const int32_t *idx = (const int32_t *)(const void *)mode->parcels[source].head;
    const uint32_t experts = mode->kit.shape->experts;
    for (uint64_t i = 0; i < (uint64_t)notice->tokens * notice->topk; i++)
        mode->counts[(uint32_t)idx[i] < experts ? (uint32_t)idx[i] : experts]++;
}

/*
 * A rank's rows of an expert are in the order of sources, and these in the order of tokens.
 * So sources before this one move the begins of experts on, and those behind it do not matter.
 */
static void find_own(ll_t *mode, ll_slot_t *slot, const ll_notice_t *from)
{
    for (uint32_t s = 0; s < mode->kit.shape->rank; s++) pass_source(mode, s, &from[s]);
    for (uint64_t i = 0; i < slot->tokens * slot->topk; i++) {
        if (slot->experts[i] < 0) continue;
        uint64_t row = mode->counts[slot->experts[i]]++;
        slot->piece_of[i] = row / piece_rows(mode, from[mode->kit.owner[slot->experts[i]]].alignment);
    }
}

/*
 * All ranks have counted the same indices, and so come to the same number of pieces, or to the same error. What
 * begin_experts() leaves in counts is where find_own() begins.
 */
xep_status_t ll_cut_pieces(ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
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
        if (pieces > slot->pieces) slot->pieces = pieces;
    }
    if (slot->pieces > 1) find_own(mode, slot, from);
    return XEP_OK;
}

/* ---- the list of a piece ---- */

void ll_begin_list(ll_t *mode, xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t first = mode->kit.first_expert[mode->kit.shape->rank], experts = mode->kit.shape->local_experts;
    memset(mode->counts, 0, (mode->kit.shape->experts + UINT64_C(1)) * sizeof *mode->counts);
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) pass_source(mode, s, &slot->from[s]);
    memcpy(slot->all_count, mode->counts + first, experts * sizeof *slot->all_count);
    slot->all_rows = begin_experts(mode, first, first + experts, slot->from[mode->kit.shape->rank].alignment);
}

/*
 * Of items, a dispatch brings those of all tokens that come here, in whatever piece they are; a next piece those that
 * are in it. Rows are numbered anew each time: of the indices of others nothing is believed that was seen earlier.
 */
static int list_source(ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t *n_p, uint64_t *items_p)
{
    const ll_notice_t *notices = ll_slot(mode, op->slot)->from, *notice = &notices[source];
    const int32_t *idx = (const int32_t *)(const void *)mode->parcels[source].head;
    const uint32_t self = mode->kit.shape->rank, first = mode->kit.first_expert[self],
                   count = mode->kit.shape->local_experts;
    const uint64_t piece = ll_state(op)->piece, rows = piece_rows(mode, notices[self].alignment),
                   room = mode->parcels[source].room;
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
            mode->picks[n] = (ll_pick_t){.token = t, .k = k, .row = local};
            if (mode->pick_item != NULL)
                mode->pick_item[n] = mode->kit.base[source] != NULL ? t : (uint32_t)(items % room);
            n++;
        }
        items += (uint64_t)comes;
    }
    *n_p = n;
    *items_p = items;
    return n <= mode->layout.common.recv_rows;
}

xep_status_t ll_list_piece(ll_t *mode, xep_op_t *op, uint32_t source, uint64_t *n_p)
{
    uint64_t items;
    if (!list_source(mode, op, source, n_p, &items))
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                   "rank %u has other rows than it had before this piece", source);
    return ll_note_items(mode, op, source, items);
}

void ll_show_piece(const ll_t *mode, const xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    xep_recv_t *recv = op->recv;
    slot->piece = ll_state(op)->piece;
    if (slot->pieces == 1) return;
    recv->pieces = slot->pieces;
    recv->piece = slot->piece;
    recv->all_rows = slot->all_rows;
    /* a rank that gets less than others has pieces without rows, behind its last one */
    recv->first_row = slot->piece * piece_rows(mode, slot->from[mode->kit.shape->rank].alignment);
    if (recv->first_row > recv->all_rows) recv->first_row = recv->all_rows;
}

/* ---- outputs ---- */

typedef struct store {
    const ll_t *mode;
    const xep_op_t *op;
    xep_copy_fn copy;
} store_t;

/*
 * A share of the (expert, reader) pairs. Each row has a place of its own in "returned", that of its token and selection
 * (origin), so that neither threads nor owners write over one another. The fence is for streaming stores.
 */
static void store_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const store_t *store = arg;
    const ll_t *mode = store->mode;
    const ll_slot_t *slot = ll_slot(mode, store->op->slot);
    const uint32_t nranks = mode->kit.shape->nranks, pairs = mode->kit.shape->local_experts * nranks;
    const size_t bytes = xep_combine_row_bytes(store->op->combine);
    size_t stride;
    const char *rows = xep_combine_outputs(&mode->kit, store->op, &stride);
    uint32_t end = (uint32_t)((uint64_t)pairs * (thread + 1) / nthreads);
    for (uint32_t pair = (uint32_t)((uint64_t)pairs * thread / nthreads); pair < end; pair++) {
        uint32_t reader = pair % nranks;
        uint64_t row = slot->pair_begin[pair], last = row + slot->pair_count[pair];
        if (mode->kit.base[reader] == NULL || row == last) continue;
        char *to = mode->kit.base[reader] + xep_area_at(mode->layout.returned, slot->from[reader].slot);
        for (; row < last; row++) {
            const char *from = rows + row * stride, *next = row + 1 < last ? from + stride : from;
            store->copy(to + slot->origin[row] * mode->layout.return_stride, from, bytes, next);
        }
    }
    xep_stores_fence();
}

/*
 * For mapped readers, this rank among them, which keep them until they are summed: when all pieces have come, so nobody
 * needs them in a cache now.
 */
static void store_outputs(ll_t *mode, const xep_op_t *op)
{
    uint64_t bytes = op->recv->rows * xep_combine_row_bytes(op->combine);
    xep_copy_fn copy = xep_copy_for(mode->kit.env, bytes);
    mode->kit.env->parallel(mode->kit.env, store_share, &(store_t){.mode = mode, .op = op, .copy = copy});
}

xep_status_t ll_return_outputs(void *mode, xep_op_t *op)
{
    if (op->combine != NULL) store_outputs(mode, op);
    return XEP_OK;
}
