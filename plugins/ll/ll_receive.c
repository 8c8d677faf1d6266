/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch, as a receiver: what all ranks said, the verdict, the places of rows (steps 4 and 5 of ll.h). */
#include <string.h>

#include "ll_in_place.h"
#include "ll_pieces.h"

enum { LINE = 64, FETCHED_BYTES = 4096 /* of a source's indices: for more of them the prefetcher has time */ };

/* ---- what was said ---- */

static int may_be_parted(const ll_t *mode)
{
    return mode->kit.shape->by_nodes || mode->layout.inbox_bytes != 0;
}

/* Of a next piece there are none, but what its writer has for outputs, which is only compared. */
static int are_counts_sane(const ll_t *mode, const ll_notice_t *n)
{
    if (mode->kit.shape->in_pieces && !n->in_place && n->piece > 1) return 1;
    return n->selections <= (uint64_t)n->tokens * n->topk && n->most <= n->selections;
}

/*
 * Everything that is computed from a notice stays in bounds: counts, the lengths of its parcel, the slot that words go
 * to. Whether ranks agree is asked later.
 */
static int is_notice_sane(const ll_t *mode, const xep_op_t *op, uint32_t rank, const ll_notice_t *n)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t elem = xep_elem_bytes((xep_dtype_t)n->dtype), room = (uint64_t)shape->hidden * shape->elem_bytes;
    uint64_t most = n->padded != 0 ? shape->nranks * shape->tokens : mode->layout.common.recv_rows;
    int casts = n->quant != XEP_QUANT_NONE;
    return n->epoch == op->epoch && n->tokens <= shape->tokens && n->topk >= 1 && n->topk <= shape->topk &&
           n->slot < shape->slots && n->alignment >= 1 && n->hidden >= 1 && elem != 0 && n->hidden * elem <= room &&
           n->nscales <= shape->scales && n->quant <= XEP_QUANT_E4M3_STATIC && !(casts && elem < 2) &&
           n->capacity <= most && n->padded <= 1 && n->sends_weights <= 1 && are_counts_sane(mode, n) &&
           n->in_parts <= (mode->kit.base[rank] == NULL && may_be_parted(mode)) && ll_in_place_is_sane(mode, n);
}

static void fetch(const char *from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(from + i);
}

/* Lines that a source has just written are in its cache: asked for together they come in the time of one. */
static void fetch_parcel(const ll_t *mode, uint32_t source)
{
    const ll_parcel_t *parcel = &mode->parcels[source];
    fetch(parcel->head, parcel->weights < FETCHED_BYTES ? parcel->weights : FETCHED_BYTES);
}

/* Mapped: in the source's heap, where all receivers read the same parcel. Else in what was delivered. */
static void find_parcel(ll_t *mode, const xep_op_t *op, uint32_t source)
{
    ll_parcel_t *parcel = &mode->parcels[source];
    const ll_layout_t *at = &mode->layout;
    const char *heap = mode->kit.base[source];
    int mapped = heap != NULL;
    uint64_t entry = xep_notices_entry(&mode->kit, op->turn);
    if (!mapped) heap = ll_delivered(mode, op, source, &entry);
    ll_make_parcel(&ll_slot(mode, op->slot)->from[source], parcel);
    parcel->head = heap + xep_area_at(mapped ? at->heads : at->delivered_heads, entry);
    parcel->items = heap + xep_area_at(mapped ? at->items : at->delivered_items, entry);
    ll_in_place_find(mode, &ll_slot(mode, op->slot)->from[source], source);
}

/* Ranks that this dispatch is without have no tokens, and no room for any. */
static void imagine_notices(ll_t *mode, const xep_op_t *op)
{
    for (uint32_t r = 0; op->out != NULL && r < mode->kit.shape->nranks; r++) {
        ll_notice_t *notice = &ll_slot(mode, op->slot)->from[r];
        if (op->out[r] == 0) continue;
        *notice = ll_state(op)->notice;
        notice->tokens = notice->most = 0;
        notice->selections = 0;
        ll_make_parcel(notice, &mode->parcels[r]);
        mode->parcels[r].head = mode->parcels[r].items = mode->kit.own; /* nothing of it is read */
    }
}

/* A next piece is of the handle whose slot the dispatch has said: another one is no reason to forget that. */
static void take_slot(ll_t *mode, xep_op_t *op, uint32_t rank)
{
    uint32_t *there = xep_combine_slot_there(&mode->kit, op->slot, rank),
             *said = &ll_slot(mode, op->slot)->from[rank].slot;
    if (op->kind != XEP_OP_NEXT) *there = *said;
    else if (*said != *there && ll_state(op)->stranger == XEP_NO_RANK) ll_state(op)->stranger = rank;
    *said = *there;
}

/* Copies the notices, so that what was checked is what is used, and finds the parcels. */
static xep_status_t take_notices(ll_t *mode, xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    mode->listed = op->epoch;
    imagine_notices(mode, op);
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        ll_notice_t *notice = &slot->from[r];
        xep_notices_take(&mode->kit, op, r, &ll_state(op)->notice, notice);
        if (!is_notice_sane(mode, op, r, notice))
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "invalid notice from rank %u: it does not fit this buffer or this operation", r);
        take_slot(mode, op, r);
        find_parcel(mode, op, r);
        fetch_parcel(mode, r);
    }
    return XEP_OK;
}

/* ---- the verdict: from what all ranks read alike ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Most rows (padded: of one expert) that rank can get, from the notices alone: enough room for these is enough. */
static uint64_t rows_at_most(const ll_t *mode, const ll_notice_t *from, uint32_t rank)
{
    uint64_t experts = mode->kit.first_expert[rank + 1] - mode->kit.first_expert[rank], rows = 0;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++)
        rows += from[rank].padded ? from[s].most : least(from[s].selections, experts * from[s].most);
    return from[rank].padded ? rows : rows + experts * (from[rank].alignment - 1);
}

/* Indices lie in memory that other ranks write: one that is no expert is counted where nobody looks. */
static void count_all(ll_t *mode, const ll_notice_t *from)
{
    const uint32_t experts = mode->kit.shape->experts;
    memset(mode->counts, 0, (experts + UINT64_C(1)) * sizeof *mode->counts);
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        const int32_t *idx = (const int32_t *)(const void *)mode->parcels[s].head;
        for (uint64_t i = 0; i < (uint64_t)from[s].tokens * from[s].topk; i++)
            mode->counts[(uint32_t)idx[i] < experts ? (uint32_t)idx[i] : experts]++;
    }
}

/* What rank gets of all that was counted: rows, and the most of one expert. */
static uint64_t rows_exactly(const ll_t *mode, const ll_notice_t *from, uint32_t rank, uint64_t *most_p)
{
    uint64_t sum = 0;
    *most_p = 0;
    for (uint32_t e = mode->kit.first_expert[rank]; e < mode->kit.first_expert[rank + 1]; e++) {
        sum += from[rank].padded ? mode->counts[e] : ll_align_rows(mode->counts[e], from[rank].alignment);
        if (mode->counts[e] > *most_p) *most_p = mode->counts[e];
    }
    return sum;
}

/*
 * The cheap bound first: it needs notices alone, and nearly always there is room. Only then all indices are counted,
 * which all ranks do alike and so agree on the rank that is too small, the lowest.
 */
static xep_status_t check_room(ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    const uint32_t count = op->with.count, *rank = op->with.rank;
    uint64_t most;
    uint32_t i = 0;
    while (i < count && rows_at_most(mode, from, rank[i]) <= from[rank[i]].capacity) i++;
    if (i == count) return XEP_OK;
    count_all(mode, from);
    if (op->dispatch->flags & XEP_DISPATCH_PIECES) return ll_cut_pieces(mode, op, from);
    for (; i < count; i++) {
        const uint32_t r = rank[i];
        uint64_t rows = rows_exactly(mode, from, r, &most);
        if (from[r].padded) rows = most;
        if (rows <= from[r].capacity) continue;
        xep_kit_tell_rows(op, rows_exactly(mode, from, mode->kit.shape->rank, &most));
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_OVERFLOW,
                                   "rank %u would get %llu rows%s, it has room for %llu%s", r, (unsigned long long)rows,
                                   from[r].padded ? " of one expert" : "", (unsigned long long)from[r].capacity,
                                   mode->kit.shape->in_pieces ? " (params.recv_rows; or XEP_DISPATCH_PIECES)" : "");
    }
    return XEP_OK;
}

/* Step 4. */
static xep_status_t conclude(ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    /* a rank is left out whose word others had: what they have concluded holds here, too */
    if (op->is_ruled) return xep_agree_ruling(mode->kit.env, op);
    xep_status_t verdict = ll_compare_notices(mode, op, from);
    if (verdict != XEP_OK) return verdict;
    if (op->kind != XEP_OP_NEXT) return check_room(mode, op, from);
    uint32_t stranger = ll_state(op)->stranger;
    if (stranger == XEP_NO_RANK) return XEP_OK;
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_MISMATCH,
                               "rank %u and rank %u disagree on the handle whose next piece it is",
                               stranger < mode->kit.shape->rank ? stranger : mode->kit.shape->rank,
                               stranger < mode->kit.shape->rank ? mode->kit.shape->rank : stranger);
}

/* ---- where rows go ---- */

/* Where rows of each (expert, source) begin. XEP_ERR_PROTOCOL: there is no room for them, and notices and indices
 * said there is. */
static xep_status_t lay_rows(ll_t *mode, xep_op_t *op, uint64_t *rows_p)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_notice_t *own = &slot->from[mode->kit.shape->rank];
    const uint32_t nranks = mode->kit.shape->nranks, experts = mode->kit.shape->local_experts;
    const uint64_t padded_rows = own->padded ? nranks * mode->kit.shape->tokens : 0, alignment = own->alignment;
    const uint32_t *pair_count = slot->pair_count;
    uint32_t *pair_begin = slot->pair_begin, *next_row = mode->next_row;
    uint64_t row = 0, received = 0, most = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint64_t begin = padded_rows != 0 ? e * padded_rows : row, end = begin;
        for (uint32_t s = 0; s < nranks; s++) {
            *pair_begin++ = (uint32_t)end; /* used only when all rows fit, and they are fewer than 2^32 */
            end += *pair_count++;
        }
        uint64_t count = end - begin, rows = ll_align_rows(count, alignment);
        next_row[e] = (uint32_t)begin;
        slot->expert_begin[e] = begin;
        slot->expert_count[e] = count;
        slot->expert_rows[e] = rows;
        received += count;
        row = begin + rows;
        if (count > most) most = count;
    }
    *rows_p = own->padded ? received : row;
    if ((own->padded ? most : row) <= own->capacity) return XEP_OK;
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                               "more rows came than were announced: %llu (room for %llu)",
                               (unsigned long long)(own->padded ? most : row), (unsigned long long)own->capacity);
}

/* The choice of the width outside of the loop: it is as long as there are rows. */
static inline void fill_experts(const xep_recv_t *recv, uint64_t begin, uint64_t end, int64_t expert)
{
    if (recv->topk_idx_dtype == XEP_INT64)
        for (uint64_t row = begin; row < end; row++) ((int64_t *)recv->topk_idx)[row] = expert;
    else
        for (uint64_t row = begin; row < end; row++) ((int32_t *)recv->topk_idx)[row] = (int32_t)expert;
}

/* A row's index is its expert, its weight 1: combine applies those of the source. Rows that alignment leaves unused,
 * and those up to the capacity, have no expert. */
static void fill_metadata(const ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const xep_recv_t *recv = op->recv;
    const uint32_t experts = recv->local_experts;
    int padded = recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED;
    for (uint32_t e = 0; e < experts; e++) {
        uint64_t begin = slot->expert_begin[e], end = begin + slot->expert_count[e];
        if (begin == end) continue;
        fill_experts(recv, begin, end, e);
        if (!padded) fill_experts(recv, end, begin + slot->expert_rows[e], -1);
        for (uint64_t row = begin; row < end && !slot->weights_sent; row++) recv->topk_weights[row] = 1.0f;
    }
    if (!padded) fill_experts(recv, recv->rows, recv->capacity, -1);
}

/* Picks are in memory of one step at a time: listed anew where another operation has been there meanwhile. */
static xep_status_t list_rows(ll_t *mode, xep_op_t *op, uint64_t *rows_p)
{
    for (uint32_t i = 0; i < op->with.count && mode->listed != op->epoch; i++) find_parcel(mode, op, op->with.rank[i]);
    mode->listed = op->epoch;
    xep_status_t status = ll_list_rows(mode, op);
    if (status == XEP_OK) status = lay_rows(mode, op, rows_p);
    if (status == XEP_OK) ll_number_rows(mode);
    return status;
}

/*
 * When the operation ends, so that one that fails has counted nothing. Of all pieces with the first one: the array of
 * the caller may be gone when others end.
 */
void ll_count_stats(const ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t *count = slot->pieces > 1 ? slot->all_count : slot->expert_count;
    int32_t *stats = op->dispatch->expert_stats;
    if (stats == NULL || op->kind != XEP_OP_DISPATCH) return;
    for (uint32_t e = 0; e < op->recv->local_experts; e++) stats[e] += (int32_t)count[e];
}

/* Step 4, and the places of 5. After a verdict that is an error nothing of recv is set, but the rows that would have
 * come. */
xep_status_t ll_receive(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    xep_kit_state_t *state = xep_kit_state(op);
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const int is_next = op->kind == XEP_OP_NEXT;
    uint64_t rows = 0;
    xep_status_t status = take_notices(mode, op);
    if (status != XEP_OK) return status;
    /* the verdict raises it where rows need more than one; all next pieces keep it */
    if (!is_next) slot->pieces = 1;
    state->verdict = conclude(mode, op, slot->from);
    if (state->verdict != XEP_OK) return XEP_OK;
    status = list_rows(mode, op, &rows);
    if (status != XEP_OK) return status;
    memset(slot->copied, 0, mode->kit.shape->nranks * sizeof *slot->copied);
    memset(slot->taken_told, 0, mode->kit.shape->nranks * sizeof *slot->taken_told);
    if (!is_next) xep_kit_tell_rows(op, slot->pieces > 1 ? slot->all_rows : rows);
    ll_fill_recv(mode, op, rows);
    ll_show_piece(mode, op);
    fill_metadata(mode, op);
    return XEP_OK;
}

/* Rows that are here to their places, and whoever is kept out by them may go on. */
static xep_status_t take_what_is_here(ll_t *mode, xep_op_t *op)
{
    uint64_t rows;
    xep_status_t status = mode->listed != op->epoch ? list_rows(mode, op, &rows) : XEP_OK;
    if (status != XEP_OK) return status;
    ll_unpack_rows(mode, op);
    return ll_tell_taken(mode, op);
}

/*
 * The rows of 5, those that are here each time. Behind the look at the words: when all were there, all rows are, all
 * that this rank forwards is relayed, and all receivers have room for its last rows.
 */
xep_status_t ll_take_rows(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    const int moves = xep_kit_state(op)->verdict == XEP_OK;
    xep_status_t status = xep_step_wait(mode, op), others = XEP_OK;
    if (status < 0) return status;
    ll_relay(mode, op);
    if (moves) others = take_what_is_here(mode, op);
    if (others == XEP_OK) others = ll_send_rest(mode, op);
    /* an error counts at once; "in progress" of either keeps the step from ending */
    if (others < 0 || status == XEP_OK) status = others;
    if (status == XEP_OK && moves && op->dispatch->flags & XEP_DISPATCH_IN_PLACE) ll_point_rows(mode, op);
    return status;
}
