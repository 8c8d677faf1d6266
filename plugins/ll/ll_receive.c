/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch, as a receiver: what all ranks said, the verdict, the places of rows (steps 4 and 5 of ll.h). */
#include <string.h>

#include "ll_flow.h"

enum { LINE = 64, FETCHED_BYTES = 4096 /* of a source's indices: for more of them the prefetcher has time */ };

/* ---- what was said ---- */

/*
 * Everything that is computed from a notice stays in bounds: counts, the lengths of its packet, the slot that words go
 * to. Whether ranks agree is asked later.
 */
static int is_notice_sane(const ll_t *mode, const xep_op_t *op, const ll_notice_t *n)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t elem = xep_elem_bytes((xep_dtype_t)n->dtype), room = (uint64_t)shape->hidden * shape->elem_bytes;
    uint64_t most = n->padded != 0 ? shape->nranks * shape->tokens : mode->layout.common.recv_rows;
    int casts = n->quant != XEP_QUANT_NONE;
    return xep_rows_epoch(n->word) == op->epoch && n->tokens <= shape->tokens && n->topk >= 1 &&
           n->topk <= shape->topk && n->slot < shape->slots && n->alignment >= 1 && n->hidden >= 1 && elem != 0 &&
           n->hidden * elem <= room && n->nscales <= shape->scales * UINT64_C(4) && !(casts && elem < 2) &&
           n->capacity <= most && n->padded <= 1 && n->sends_weights <= 1 && n->most <= (uint64_t)n->tokens * n->topk;
}

static void fetch(const char *from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(from + i);
}

/* Lines that a source has just written are in its cache: asked for together they come in the time of one. */
static void fetch_packet(const ll_packet_t *packet)
{
    fetch(packet->head, packet->weights < FETCHED_BYTES ? packet->weights : FETCHED_BYTES);
}

/* Mapped: in the source's heap, where all receivers read the same packet. Else in what was delivered. */
static void find_packet(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    ll_packet_t *packet = &slot->list.packets[source];
    const ll_layout_t *at = &mode->layout;
    const char *heap = mode->kit.base[source];
    const int mapped = heap != NULL;
    uint64_t entry = xep_notices_entry(&mode->kit, op->turn);
    if (!mapped) {
        heap = mode->kit.hears_in[source];
        entry = ll_delivered_entry(mode, op, mode->nodes.fed[source]);
    }
    ll_make_packet(&slot->from[source], slot->fields.bytes, packet);
    packet->head = heap + xep_area_at(mapped ? at->heads : at->delivered_heads, entry);
    packet->items = heap + xep_area_at(mapped ? at->items : at->delivered_items, entry);
    fetch_packet(packet);
}

xep_status_t ll_refuse_notice(const ll_t *mode, xep_op_t *op, uint32_t rank)
{
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                               "invalid notice from rank %u: it does not fit this buffer or this operation", rank);
}

/* Copies the notices, so that what was checked is what is used, and finds the packets. */
xep_status_t ll_take_notices(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_slot_t *slot = ll_slot(mode, op->slot);
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        xep_notices_take(&mode->kit, op, r, &ll_state(op)->notice, &slot->from[r]);
        if (!is_notice_sane(mode, op, &slot->from[r])) return ll_refuse_notice(mode, op, r);
        find_packet(mode, op, r);
    }
    return XEP_OK;
}

/* ---- the verdict: from what all ranks read alike ---- */

/* Most rows (padded: of one expert) that rank can get, from the notices alone: enough room for these is enough. */
static uint64_t rows_at_most(const ll_t *mode, const ll_notice_t *from, uint32_t rank)
{
    uint64_t experts = mode->kit.first_expert[rank + 1] - mode->kit.first_expert[rank], rows = 0;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++)
        rows += from[rank].padded ? from[s].most
                                  : xep_least((uint64_t)from[s].tokens * from[s].topk, experts * from[s].most);
    return from[rank].padded ? rows : rows + experts * (from[rank].alignment - 1);
}

/* Other ranks write the memory of the indices: an invalid index is counted in an unused place. */
void ll_count_source(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const int32_t *idx = (const int32_t *)(const void *)slot->list.packets[source].head;
    const uint64_t selections = (uint64_t)slot->from[source].tokens * slot->from[source].topk;
    const uint32_t experts = mode->kit.shape->experts;
    for (uint64_t i = 0; i < selections; i++) mode->counts[(uint32_t)idx[i] < experts ? (uint32_t)idx[i] : experts]++;
}

void ll_count_all(const ll_t *mode, const xep_op_t *op)
{
    memset(mode->counts, 0, (mode->kit.shape->experts + UINT64_C(1)) * sizeof *mode->counts);
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) ll_count_source(mode, op, s);
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

/* The cheap bound needs notices alone, and nearly always there is room. */
int ll_has_room(const ll_t *mode, const xep_op_t *op, const ll_notice_t *from)
{
    for (uint32_t i = 0; i < op->with.count; i++)
        if (rows_at_most(mode, from, op->with.rank[i]) > from[op->with.rank[i]].capacity) return 0;
    return 1;
}

/* All ranks count all indices alike, and so agree on the rank that is too small, the lowest. */
xep_status_t ll_check_room(const ll_t *mode, xep_op_t *op, const ll_notice_t *from)
{
    uint64_t most;
    if (ll_has_room(mode, op, from)) return XEP_OK;
    ll_count_all(mode, op);
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
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
        if (slot->expert_count[e] == 0) continue; /* of few tokens most */
        uint64_t begin = slot->expert_begin[e], end = begin + slot->expert_count[e];
        fill_experts(recv, begin, end, e);
        if (!padded) fill_experts(recv, end, begin + slot->expert_rows[e], -1);
        for (uint64_t row = begin; row < end && !slot->weights_sent; row++) recv->topk_weights[row] = 1.0f;
    }
    if (!padded) fill_experts(recv, recv->rows, recv->capacity, -1);
}

static void count_pairs(const ll_t *mode, const ll_slot_t *slot)
{
    const uint32_t nranks = mode->kit.shape->nranks;
    const ll_pick_t *pick = slot->list.picks;
    memset(slot->pair_count, 0, (size_t)mode->kit.shape->local_experts * nranks * sizeof *slot->pair_count);
    for (uint32_t s = 0; s < nranks; s++)
        for (; pick < &slot->list.picks[slot->list.begin[s + 1]]; pick++) slot->pair_count[pick->row * nranks + s]++;
}

/* The list is in the order of sources; numbering it expert by expert is what puts rows in expert order. */
static void number_rows(const ll_t *mode, const ll_list_t *list)
{
    const uint64_t rows = list->begin[mode->kit.shape->nranks];
    for (uint64_t i = 0; i < rows; i++) list->picks[i].row = mode->next_row[list->picks[i].row]++;
}

xep_status_t ll_place_rows(ll_t *mode, xep_op_t *op, uint64_t *rows_p)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    count_pairs(mode, slot);
    xep_status_t status = lay_rows(mode, op, rows_p);
    if (status != XEP_OK) return status;
    number_rows(mode, &slot->list);
    memcpy(slot->list.copied, slot->list.begin, mode->kit.shape->nranks * sizeof *slot->list.copied);
    return XEP_OK;
}

void ll_show_rows(ll_t *mode, const xep_op_t *op, uint64_t rows)
{
    ll_fill_recv(mode, op, rows);
    fill_metadata(mode, op);
}

void ll_note_slots(ll_t *mode, const xep_op_t *op)
{
    const ll_notice_t *from = ll_slot(mode, op->slot)->from;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        *xep_combine_slot_there(&mode->kit, op->slot, r) = from[r].slot;
}

/* Step 4. */
xep_status_t ll_conclude(ll_t *mode, xep_op_t *op)
{
    const ll_notice_t *from = ll_slot(mode, op->slot)->from;
    xep_status_t verdict = ll_compare_notices(mode, op, from);
    return verdict == XEP_OK ? ll_check_room(mode, op, from) : verdict;
}

/* After a verdict that is an error nothing of recv is set, but the rows that would have come. */
xep_status_t ll_list_and_place(ll_t *mode, xep_op_t *op, xep_status_t verdict)
{
    uint64_t rows;
    ll_note_slots(mode, op);
    xep_kit_state(op)->verdict = verdict;
    if (verdict != XEP_OK) return XEP_OK;
    xep_status_t status = ll_list_rows(mode, op);
    if (status == XEP_OK) status = ll_place_rows(mode, op, &rows);
    if (status != XEP_OK) return status;
    xep_kit_tell_rows(op, rows);
    ll_show_rows(mode, op, rows);
    return XEP_OK;
}

xep_status_t ll_receive(void *mode, xep_op_t *op)
{
    return ll_list_and_place(mode, op, ll_conclude(mode, op));
}

/*
 * Counts when the operation ends, so that a failed one counts nothing. The first piece counts for all: the caller's
 * array may be gone when later ones end.
 */
xep_status_t ll_count_stats(void *mode, xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    int32_t *stats = op->dispatch->expert_stats;
    for (uint32_t e = 0; stats != NULL && e < op->recv->local_experts; e++) stats[e] += (int32_t)slot->all_count[e];
    return XEP_OK;
}
