/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What goes to ranks that are not mapped, and in which parts. Rows are listed by where they go once, when a dispatch
 * begins: to look at all tokens for each of many ranks took longer than to send to them.
 */
#include <string.h>

#include "ll.h"

/* ---- lines: ranks, or by nodes nodes ---- */

static uint32_t line_of(const ll_t *mode, uint32_t rank)
{
    return mode->kit.shape->by_nodes ? mode->kit.shape->node[rank] : rank;
}

uint32_t ll_count_lines(const ll_t *mode)
{
    return mode->kit.shape->by_nodes ? mode->kit.shape->nodes : mode->kit.shape->nranks;
}

static uint64_t rows_of_line(const ll_slot_t *slot, uint32_t line)
{
    return slot->bound_begin[line + 1] - slot->bound_begin[line];
}

/* A token once to each line that has one of its experts; bound NULL: only counted. line_next: where each goes on. */
static void list_tokens(ll_t *mode, const xep_op_t *op, uint32_t *bound)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    /* the last token of each line, plus 1: 0 is a line that has none so far */
    memset(mode->line_seen, 0, ll_count_lines(mode) * sizeof *mode->line_seen);
    for (uint64_t t = 0; t < slot->tokens; t++) {
        const int32_t *experts = slot->experts + t * slot->topk;
        for (uint32_t k = 0; k < slot->topk; k++) {
            if (experts[k] < 0 || !ll_brings(mode, op, t * slot->topk + k)) continue;
            uint32_t owner = mode->kit.owner[experts[k]], line = line_of(mode, owner);
            if (mode->kit.base[owner] != NULL || mode->line_seen[line] == t + 1) continue;
            mode->line_seen[line] = t + 1;
            if (bound != NULL) bound[mode->line_next[line]] = (uint32_t)t;
            mode->line_next[line]++;
        }
    }
}

/*
 * Those whose items are in the parcel: while rows are still coming (xep_op_t.coming), of tokens before the first that
 * is not.
 */
static uint64_t packed_of_line(const ll_slot_t *slot, const xep_op_t *op, uint32_t line)
{
    const uint32_t *bound = slot->bound + slot->bound_begin[line];
    uint64_t low = 0, high = rows_of_line(slot, line);
    if (ll_state(op)->packed == slot->tokens) return high;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (bound[middle] < ll_state(op)->packed) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* ---- parts ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* More than an inbox holds: halves of it, so that one travels while the other is taken. */
static int crowds(const ll_t *mode, const xep_op_t *op, uint32_t line)
{
    uint64_t room = ll_state(op)->parcel.room;
    return room != 0 && rows_of_line(ll_slot(mode, op->slot), line) > room;
}

/*
 * By nodes parts where there are more bytes than one has: a few rows come with their notice.
 * Returns the rows of a part; 0: all of them go with the notice.
 */
static uint64_t choose_transfer(const ll_t *mode, const xep_op_t *op, uint32_t line)
{
    const ll_parcel_t *parcel = &ll_state(op)->parcel;
    uint64_t rows = rows_of_line(ll_slot(mode, op->slot), line), parts = 1, transfer = 0;
    if (mode->kit.shape->by_nodes) parts = rows * parcel->stride / mode->kit.env->part_bytes + 1;
    if (parts > 1) transfer = (rows + parts - 1) / parts;
    if (!crowds(mode, op, line)) return transfer;
    uint64_t half = (parcel->room + 1) / 2;
    return transfer == 0 ? half : least(transfer, half);
}

/*
 * Counted first and listed then, so that the lists of all lines lie one behind the other in one array. line_next is at
 * first how many tokens a line has, then where its next one is written.
 */
void ll_list_bound(ll_t *mode, xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t lines = ll_count_lines(mode);
    slot->crowds = 0;
    memset(mode->line_next, 0, lines * sizeof *mode->line_next);
    list_tokens(mode, op, NULL);
    slot->bound_begin[0] = 0;
    for (uint32_t l = 0; l < lines; l++) {
        slot->bound_begin[l + 1] = slot->bound_begin[l] + mode->line_next[l];
        mode->line_next[l] = slot->bound_begin[l];
    }
    list_tokens(mode, op, slot->bound);
    for (uint32_t l = 0; l < lines; l++) {
        slot->part_rows[l] = choose_transfer(mode, op, l);
        slot->crowds |= crowds(mode, op, l);
    }
    /* the rest is counted from the first part on, those that go at once included: rest_transfer() */
    if (slot->crowds) memset(slot->rest, 0, mode->kit.shape->nranks * sizeof *slot->rest);
}

static uint64_t part_rows(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    return ll_slot(mode, op->slot)->part_rows[line_of(mode, rank)];
}

/* Tokens whose rows are there when so many rows have come: those without one count with the row before them. */
static uint64_t tokens_of_rows(const ll_slot_t *slot, uint32_t line, uint64_t rows)
{
    if (rows == rows_of_line(slot, line)) return slot->tokens;
    return slot->bound[slot->bound_begin[line] + rows - 1] + UINT64_C(1);
}

/* Tokens that must have been taken before a part that ends with this row has room; 0: it always has. */
static uint64_t tokens_before(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint64_t end)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    uint64_t room = ll_state(op)->parcel.room;
    return room == 0 || end <= room ? 0 : tokens_of_rows(slot, line_of(mode, rank), end - room);
}

/* ---- what is sent ---- */

/*
 * Items from row on, before the end: tokens in a row are one put. In an inbox that may be crowded they lie one behind
 * the other, and over again.
 */
static int cut_run(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint64_t end, uint64_t row, xep_put_t *piece)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_parcel_t *parcel = &ll_state(op)->parcel;
    const uint32_t *bound = slot->bound + slot->bound_begin[line_of(mode, rank)] + row;
    const size_t stride = parcel->stride;
    uint64_t most = XEP_PUT_BYTES / stride + 1, run = 1;
    if (row >= end) return 0;
    uint64_t item = parcel->room == 0 ? bound[0] : row % parcel->room;
    /* one put must not go beyond the end of the inbox, where items begin at its first place again */
    if (parcel->room != 0) most = least(most, parcel->room - item);
    while (run < most && row + run < end && bound[run] == bound[0] + run) run++;
    *piece = (xep_put_t){.src = ll_items(mode, op) + bound[0] * stride,
                         .offset = xep_area_at(mode->layout.delivered_items, ll_delivery_entry(mode, op, rank)) +
                                   item * stride,
                         .bytes = run * stride,
                         .rows = run};
    return 1;
}

static int cut_items(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, uint64_t *row_p,
                     xep_put_t *piece)
{
    const ll_t *mode = opaque;
    (void)number;
    return cut_run(mode, op, rank, packed_of_line(ll_slot(mode, op->slot), op, line_of(mode, rank)), *row_p, piece);
}

/* Every other one is of rows; behind each, the word. */
static int cut_part(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, uint64_t *row_p,
                    xep_put_t *piece)
{
    const ll_t *mode = opaque;
    uint64_t rows = part_rows(mode, op, rank), begin = number / 2 * rows,
             packed = packed_of_line(ll_slot(mode, op->slot), op, line_of(mode, rank));
    return cut_run(mode, op, rank, least(begin + rows, packed), begin + *row_p, piece);
}

/* Of the rows from one on, before the end. */
static uint64_t count_coming(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint64_t begin, uint64_t end)
{
    const uint64_t packed = packed_of_line(ll_slot(mode, op->slot), op, line_of(mode, rank));
    return packed >= end ? 0 : end - (packed > begin ? packed : begin);
}

/*
 * Step 1 for a rank that is not mapped: the head, the items that rank needs, the notice; or, where there are parts, the
 * items later. The head whole, since the receiver looks for its experts in it itself.
 */
int ll_parcel_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    const ll_state_t *state = ll_state(op);
    if (!ll_delivers_to(mode, rank)) return 0;
    int in_parts = part_rows(mode, op, rank) != 0;
    uint64_t rows = in_parts ? 0 : rows_of_line(ll_slot(mode, op->slot), line_of(mode, rank));
    switch (number) {
    case 0:
        *transfer =
            (xep_transfer_t){.src = xep_kit_own_area(&mode->kit, mode->layout.heads,
                                                     xep_notices_entry(&mode->kit, op->turn)),
                             .rows = 1,
                             .bytes = state->parcel.head_bytes,
                             .offset = xep_area_at(mode->layout.delivered_heads, ll_delivery_entry(mode, op, rank))};
        return 1;
    case 1:
        *transfer = (xep_transfer_t){0};
        if (!in_parts) *transfer = (xep_transfer_t){.cut = cut_items, .coming = count_coming(mode, op, rank, 0, rows)};
        return 1;
    case 2:
        xep_notices_transfer(&mode->kit, op, in_parts ? &state->notice_in_parts : &state->notice, transfer);
        return 1;
    default: return 0;
    }
}

static void make_word(const ll_t *mode, const xep_op_t *op, uint64_t tokens, xep_transfer_t *transfer)
{
    *transfer = (xep_transfer_t){.signal = 1,
                                 .signal_offset = ll_passed_offset(mode, op, mode->kit.shape->rank),
                                 .value = xep_rows_word(op->epoch, tokens)};
}

/* Where the rows of part number / 2 end; 0: there is no such part. */
static uint64_t end_of_transfer(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number)
{
    if (!ll_delivers_to(mode, rank)) return 0;
    uint64_t of_part = part_rows(mode, op, rank), begin = number / 2 * of_part,
             rows = rows_of_line(ll_slot(mode, op->slot), line_of(mode, rank));
    return begin >= rows ? 0 : least(begin + of_part, rows);
}

/*
 * Even numbers are rows, odd ones the word behind them. The first part for which the receiver has to make room ends the
 * list: all later ones need that, too, and ll_send_rest() sends them.
 */
int ll_items_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    uint64_t end = part_rows(mode, op, rank) == 0 ? 0 : end_of_transfer(mode, op, rank, number);
    if (end == 0 || tokens_before(mode, op, rank, end) != 0) return 0;
    if (number % 2 == 0)
        *transfer =
            (xep_transfer_t){.cut = cut_part,
                             .coming = count_coming(mode, op, rank, number / 2 * part_rows(mode, op, rank), end)};
    else make_word(mode, op, tokens_of_rows(ll_slot(mode, op->slot), line_of(mode, rank), end), transfer);
    return 1;
}

/* ---- crowded inboxes ---- */

static const _Atomic uint64_t *taken_word(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    return xep_kit_own(&mode->kit, ll_taken_offset(mode, op, rank));
}

static int has_room(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint64_t tokens)
{
    return xep_rows_of(atomic_load_explicit(taken_word(mode, op, rank), memory_order_acquire), op->epoch) >= tokens;
}

/* Parts that went at once are none here. Where nothing is moved, receivers still wait for the last word. */
static int rest_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                         xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    if (!ll_delivers_to(mode, rank) || !crowds(mode, op, line_of(mode, rank))) return 0;
    if (xep_kit_state(op)->verdict != XEP_OK) {
        make_word(mode, op, ll_slot(mode, op->slot)->tokens, transfer);
        return number == 0;
    }
    uint64_t end = end_of_transfer(mode, op, rank, number);
    if (end == 0) return 0;
    uint64_t before = tokens_before(mode, op, rank, end);
    if (before == 0) *transfer = (xep_transfer_t){0};
    else if (number % 2 == 0)
        *transfer = (xep_transfer_t){.cut = cut_part, .blocked = !has_room(mode, op, rank, before)};
    else make_word(mode, op, tokens_of_rows(ll_slot(mode, op->slot), line_of(mode, rank), end), transfer);
    return 1;
}

xep_status_t ll_send_rest(ll_t *mode, xep_op_t *op)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    return slot->crowds ? xep_send_each(&mode->kit, op, rest_transfer, slot->rest) : XEP_OK;
}

/*
 * Two waits in one, one after the other. First for the rows of rank; when they are here, and this rank crowds the inbox
 * of rank, for the word by which that one says that it has room for the last part.
 */
const _Atomic uint64_t *ll_rows_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const ll_t *mode = opaque;
    const _Atomic uint64_t *passed = ll_passed_word(mode, op, rank, value_p);
    if (!ll_slot(mode, op->slot)->crowds || mode->kit.base[rank] != NULL || xep_kit_state(op)->verdict != XEP_OK)
        return passed;
    if (atomic_load_explicit(passed, memory_order_acquire) < *value_p) return passed;
    if (!ll_delivers_to(mode, rank) || !crowds(mode, op, line_of(mode, rank))) return passed;
    uint64_t rows = rows_of_line(ll_slot(mode, op->slot), line_of(mode, rank));
    *value_p = xep_rows_word(op->epoch, tokens_before(mode, op, rank, rows));
    return taken_word(mode, op, rank);
}
