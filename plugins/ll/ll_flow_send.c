/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Flows as a source: what goes to which rank, in which parts, and when there is room for it. Rows are listed by
 * destination once, when a dispatch begins: going through all tokens for each of many ranks took longer than sending.
 */
#include "ll_flow.h"

/* ---- what goes where ---- */

static ll_flow_t *flow_to(const ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    return &ll_slot(mode, op->slot)->flows[mode->nodes.node_of[rank]];
}

/* A token once to each flow that has one of its experts; bound NULL: only counted. */
static void list_tokens(const ll_t *mode, const xep_op_t *op, uint32_t *bound)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    for (uint32_t f = 0; f < mode->nodes.nodes; f++) slot->flows[f].rows = slot->flows[f].seen = 0;
    for (uint64_t t = 0; t < slot->tokens; t++) {
        const int32_t *experts = ll_state(op)->experts + t * slot->topk;
        for (uint32_t k = 0; k < slot->topk; k++) {
            if (experts[k] < 0) continue;
            uint32_t owner = mode->kit.owner[experts[k]];
            ll_flow_t *flow = flow_to(mode, op, owner);
            if (mode->kit.base[owner] != NULL || flow->seen == t + 1) continue;
            flow->seen = t + 1;
            if (bound != NULL) bound[flow->begin + flow->rows] = (uint32_t)t;
            flow->rows++;
        }
    }
}

/*
 * By nodes rows come in parts if there are more bytes than a part has; few rows come with their notice. If a receive
 * ring is smaller than that, parts are halves of it, so that one travels while the other is taken.
 */
static uint64_t choose_part(const ll_t *mode, const ll_packet_t *packet, uint64_t rows)
{
    uint64_t parts = mode->kit.shape->by_nodes ? rows * packet->stride / mode->kit.env->part_bytes + 1 : 1,
             part = (rows + parts - 1) / parts, room = ll_recv_ring_room(mode, packet);
    return room != 0 && rows > room ? xep_least(part, (room + 1) / 2) : part;
}

/* Counts first and lists then, so that the lists of all flows lie one behind the other in one array. */
xep_status_t ll_begin_flows(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    ll_slot_t *slot = ll_slot(mode, op->slot);
    uint64_t begin = 0;
    list_tokens(mode, op, NULL);
    for (uint32_t f = 0; f < mode->nodes.nodes; f++) {
        ll_flow_t *flow = &slot->flows[f];
        flow->to = mode->nodes.forwarder[f];
        flow->part = choose_part(mode, &ll_state(op)->packet, flow->rows);
        flow->begin = begin;
        begin += flow->rows;
    }
    list_tokens(mode, op, slot->bound);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) slot->sent[r] = (xep_cursor_t){0};
    return XEP_OK;
}

/* ---- parts ---- */

/* Whether all rows go in front of the notice. */
static int is_whole(const ll_flow_t *flow)
{
    return flow->part >= flow->rows;
}

/*
 * The last row of a transfer in parts, of those of the flow: every other transfer has rows, and the one after it the
 * word.
 */
static uint64_t part_end(const ll_flow_t *flow, uint32_t number)
{
    return xep_least((number / 2 + UINT64_C(1)) * flow->part, flow->rows);
}

/* How many tokens are complete when so many rows have come: tokens without a row count with the row before them. */
static uint64_t tokens_of_rows(const ll_slot_t *slot, const ll_flow_t *flow, uint64_t rows)
{
    if (rows == flow->rows) return slot->tokens;
    return slot->bound[flow->begin + rows - 1] + UINT64_C(1);
}

/* Tokens that must have been taken before a part that ends with this row has room; 0: it always has. */
static uint64_t tokens_before(const ll_t *mode, const xep_op_t *op, const ll_flow_t *flow, uint64_t end)
{
    uint64_t room = ll_recv_ring_room(mode, &ll_state(op)->packet);
    return room == 0 || end <= room ? 0 : tokens_of_rows(ll_slot(mode, op->slot), flow, end - room);
}

static int has_room(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint64_t end)
{
    uint64_t tokens = tokens_before(mode, op, flow_to(mode, op, rank), end);
    if (tokens == 0) return 1;
    const _Atomic uint64_t *word = xep_kit_own(&mode->kit, ll_taken_offset(mode, op, rank));
    return xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch) >= tokens;
}

/* ---- what is sent ---- */

/*
 * Rows whose items are in the packet: while rows are still coming (xep_op_t.coming), those of tokens before the first
 * missing one.
 */
static uint64_t packed_rows(const ll_slot_t *slot, const xep_op_t *op, const ll_flow_t *flow)
{
    const uint32_t *bound = slot->bound + flow->begin;
    if (ll_state(op)->packed == slot->tokens) return flow->rows;
    return xep_count_below(bound, sizeof *bound, flow->rows, ll_state(op)->packed);
}

/*
 * Cuts a put from the items of a part: consecutive tokens are one put. In a receive ring that may be crowded they lie
 * one behind the other, around the ring.
 */
static int cut_items(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, uint64_t *row_p,
                     xep_put_t *put)
{
    const ll_t *mode = opaque;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_flow_t *flow = flow_to(mode, op, rank);
    const size_t stride = ll_state(op)->packet.stride;
    const uint64_t room = ll_recv_ring_room(mode, &ll_state(op)->packet);
    uint64_t row = number / 2 * flow->part + *row_p,
             end = xep_least(part_end(flow, number), packed_rows(slot, op, flow)), most = XEP_PUT_BYTES / stride + 1,
             run = 1;
    if (row >= end) return 0;
    const uint32_t *bound = slot->bound + flow->begin + row;
    uint64_t item = room == 0 ? bound[0] : row % room;
    /* a put must not cross the end of the receive ring, where the ring begins again */
    if (room != 0) most = xep_least(most, room - item);
    while (run < most && row + run < end && bound[run] == bound[0] + run) run++;
    *put = (xep_put_t){.src = ll_state(op)->items + bound[0] * stride,
                       .offset =
                           xep_area_at(mode->layout.delivered_items, ll_delivery_entry(mode, op, rank)) + item * stride,
                       .bytes = run * stride,
                       .rows = run};
    return 1;
}

/* The items of a part that are there, and how many are still coming. */
static void make_items(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer)
{
    const ll_flow_t *flow = flow_to(mode, op, rank);
    const uint64_t packed = packed_rows(ll_slot(mode, op->slot), op, flow), begin = number / 2 * flow->part,
                   end = part_end(flow, number);
    *transfer = (xep_transfer_t){.cut = cut_items, .blocked = !has_room(mode, op, rank, end)};
    if (packed < end) transfer->coming = end - (packed > begin ? packed : begin);
}

/*
 * The head, the items that rank needs, the notice; or, where there are parts, the items later. The head whole, since
 * the receiver looks for its experts in it itself.
 */
int ll_packet_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    const ll_state_t *state = ll_state(op);
    const ll_flow_t *flow = flow_to(mode, op, rank);
    if (flow->to != rank) return 0;
    switch (number) {
    case 0:
        *transfer =
            (xep_transfer_t){.src = xep_kit_own_area(&mode->kit, mode->layout.heads,
                                                     xep_notices_entry(&mode->kit, op->turn)),
                             .rows = 1,
                             .bytes = state->packet.head_bytes,
                             .offset = xep_area_at(mode->layout.delivered_heads, ll_delivery_entry(mode, op, rank))};
        return 1;
    case 1:
        *transfer = (xep_transfer_t){0};
        if (is_whole(flow)) make_items(mode, op, rank, number, transfer);
        return 1;
    case 2:
        xep_notices_transfer(&mode->kit, op, &state->notice, is_whole(flow) ? state->notice.tokens : 0, transfer);
        return 1;
    default: return 0;
    }
}

/* Even numbers are rows, odd ones the word behind them. Even if nothing is moved, receivers wait for the words. */
static int part_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                         xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    const ll_flow_t *flow = flow_to(mode, op, rank);
    if (flow->to != rank || is_whole(flow) || number / 2 * flow->part >= flow->rows) return 0;
    if (number % 2 == 1)
        xep_notices_more(&mode->kit, op, tokens_of_rows(ll_slot(mode, op->slot), flow, part_end(flow, number)),
                         transfer);
    else if (xep_kit_state(op)->verdict == XEP_OK) make_items(mode, op, rank, number, transfer);
    else *transfer = (xep_transfer_t){0};
    return 1;
}

/* The list ends at the first part for which the receiver must make room: all later ones need that, too. */
static int open_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer)
{
    return part_transfer(mode, op, rank, number, transfer) && !transfer->blocked;
}

xep_status_t ll_send_parts(ll_t *mode, xep_op_t *op)
{
    return xep_send_each(&mode->kit, op, open_transfer, ll_slot(mode, op->slot)->sent);
}

xep_status_t ll_send_all_parts(ll_t *mode, xep_op_t *op)
{
    return xep_send_each(&mode->kit, op, part_transfer, ll_slot(mode, op->slot)->sent);
}

const _Atomic uint64_t *ll_room_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const ll_t *mode = opaque;
    const ll_flow_t *flow = flow_to(mode, op, rank);
    uint64_t tokens = tokens_before(mode, op, flow, flow->rows);
    const int waits = tokens != 0 && flow->to == rank && xep_kit_state(op)->verdict == XEP_OK;
    *value_p = waits ? xep_rows_word(op->epoch, tokens) : 0;
    return xep_kit_own(&mode->kit, ll_taken_offset(mode, op, rank));
}
