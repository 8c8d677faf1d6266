/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What this rank says to other nodes, and its rows on their way there: each once to the forwarder, as far as its ring
 * has room. A batch to each node in turn, so that no forwarder is idle while others get rows.
 */
#include <string.h>

#include "normal_nodes.h"
#include "normal_steps.h"

/* ---- what is said ---- */

/*
 * It lies in the slot and not on the stack, as the wire may read it until the flush. Own rows have their sums in
 * "returned" by (node, row), as they have their tokens: so begin says both.
 */
static normal_feed_tail_t *make_tail(const normal_t *mode, const xep_op_t *op, uint32_t node)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t *begin = slot->routing->passing->begin;
    normal_feed_tail_t *tail = &slot->traffic->tails[node];
    *tail = (normal_feed_tail_t){.rows = (uint32_t)(begin[node + 1] - begin[node]), .returned = begin[node]};
    return tail;
}

int normal_feed_record_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                                xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const normal_told_t told = {.selections = normal_slot(mode, op->slot)->routing->selections,
                                .experts = mode->kit.shape->experts,
                                .tail = number == 3 ? make_tail(mode, op, mode->kit.shape->node[rank]) : NULL,
                                .tail_bytes = sizeof(normal_feed_tail_t)};
    return xep_forwarders_are(&mode->nodes->who, rank) && normal_tell(mode, op, &told, number, transfer);
}

/* ---- batches ---- */

/*
 * The first row of a batch to a node. None goes on behind the end of the ring, and none has much more bytes than are
 * put at once; where the ring is too small for all rows it has a quarter of that, so that one travels while others are
 * taken.
 */
static uint64_t batch_begin(const normal_t *mode, const xep_op_t *op, uint32_t node, uint64_t batch)
{
    const uint64_t ring = mode->kit.shape->feed_rows, few = XEP_PUT_BYTES / xep_dispatch_row_bytes(op->dispatch) + 1;
    const int fits = normal_rows_to(normal_slot(mode, op->slot)->routing, node) <= ring;
    const uint64_t rows = xep_least(fits ? ring : (ring + 3) / 4, xep_least(few, NORMAL_BATCH_ROWS));
    if (batch * rows < ring) return batch * rows; /* nearly always: divisions showed where there is one token */
    const uint64_t of_ring = (ring + rows - 1) / rows;
    return batch / of_ring * ring + batch % of_ring * rows;
}

/* How many of this rank's rows a forwarder has taken. */
static uint64_t rows_taken(const normal_t *mode, const xep_op_t *op, uint32_t node)
{
    const _Atomic uint64_t *word = xep_kit_own(&mode->kit, normal_taken_offset(mode, normal_index(mode, op), node));
    return xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch);
}

/* ---- metadata ---- */

static char *stage_metadata(const normal_t *mode, const xep_op_t *op, uint32_t node, uint64_t row, size_t stride)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    const xep_dispatch_args_t *args = op->dispatch;
    uint64_t number = routing->passing->begin[node] + row, token = routing->passing->tokens[number];
    size_t experts = routing->topk * sizeof(int32_t);
    char *to = slot->traffic->staged + number * stride, *at = to;
    int32_t narrow = (int32_t)token;
    memcpy(at, &narrow, sizeof narrow);
    at += sizeof narrow;
    memcpy(at, routing->experts + token * routing->topk, experts);
    at += experts;
    if (args->topk_weights != NULL) {
        memcpy(at, (const char *)args->topk_weights + token * args->topk_weights_stride, experts);
        at += experts;
    }
    xep_fields_store(&slot->fields, 0, NULL, token, at, 1, 0);
    return to;
}

/* The metadata of a batch with the word, which comes after its rows. */
static void passed_transfer(const normal_t *mode, const xep_op_t *op, uint32_t node, uint64_t begin, uint64_t end,
                            xep_transfer_t *transfer)
{
    const uint32_t index = normal_index(mode, op), line = mode->nodes->who.line[node];
    const size_t stride = normal_passing_bytes(mode, op, op->dispatch->topk_weights != NULL);
    const char *staged = stage_metadata(mode, op, node, begin, stride);
    for (uint64_t row = begin + 1; row < end; row++) stage_metadata(mode, op, node, row, stride);
    *transfer =
        (xep_transfer_t){.signal = 1,
                         .src = staged,
                         .bytes = (end - begin) * stride,
                         .offset = normal_ring_offset(mode, mode->layout.feed_metadata, index, line, begin, stride),
                         .signal_offset = normal_passed_offset(mode, index, line),
                         .value = xep_rows_word(op->epoch, end)};
}

/* ---- rows ---- */

static void rows_transfer(const normal_t *mode, const xep_op_t *op, uint32_t node, uint64_t begin, uint64_t end,
                          xep_transfer_t *transfer)
{
    const normal_passing_t *passing = normal_slot(mode, op->slot)->routing->passing;
    const size_t bytes = xep_dispatch_row_bytes(op->dispatch), stride = xep_row_stride(bytes);
    *transfer = (xep_transfer_t){.src = op->dispatch->x,
                                 .src_stride = op->dispatch->x_stride,
                                 .index = passing->tokens + passing->begin[node] + begin,
                                 .rows = end - begin,
                                 .bytes = bytes,
                                 .offset = normal_ring_offset(mode, mode->layout.feed_rows, normal_index(mode, op),
                                                              mode->nodes->who.line[node], begin, stride),
                                 .stride = stride,
                                 .blocked = rows_taken(mode, op, node) + mode->kit.shape->feed_rows < end};
}

/*
 * Of each batch whose turn it is the rows, then what is told of them; done as early as it can be: behind the last own
 * row, whatever upstream ranks still have to pass. After an error there is only done: nobody there waits for rows.
 */
static int feed_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                         xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t node = mode->kit.shape->node[rank], batch = number / 2;
    if (!xep_forwarders_are(&mode->nodes->who, rank)) return 0;
    const uint64_t rows = xep_kit_state(op)->verdict == XEP_OK ? normal_rows_to(slot->routing, node) : 0,
                   begin = batch_begin(mode, op, node, batch),
                   end = xep_least(batch_begin(mode, op, node, batch + 1), rows);
    if (begin >= rows) {
        if (number % 2 == 1 || (batch > 0 && batch_begin(mode, op, node, batch - 1) >= rows)) return 0;
        normal_done_transfer(mode, op, transfer);
        return 1;
    }
    if (batch > slot->traffic->turn) return 0;
    if (number % 2 == 0) rows_transfer(mode, op, node, begin, end, transfer);
    else passed_transfer(mode, op, node, begin, end, transfer);
    return 1;
}

/* A batch to each node in turn; one that has no room for it makes it up later. */
xep_status_t normal_pass_rows(normal_t *mode, xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_status_t status = xep_send_each(&mode->kit, op, feed_transfer, slot->traffic->passed);
    slot->traffic->turn++;
    for (uint32_t n = 0; n < mode->kit.shape->nodes && status == XEP_OK && xep_kit_state(op)->verdict == XEP_OK; n++)
        if (batch_begin(mode, op, n, slot->traffic->turn) < normal_rows_to(slot->routing, n)) status = XEP_INPROGRESS;
    return status;
}

/* ---- what the step waits for ---- */

static int has_come(const _Atomic uint64_t *word, uint64_t value)
{
    return atomic_load_explicit(word, memory_order_acquire) >= value;
}

/*
 * For an upstream rank: its last row; for a forwarder whose ring is too small for all rows: room for the last one. If a
 * rank is both, the word that has not come counts.
 */
const _Atomic uint64_t *normal_passing_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    uint32_t node = mode->kit.shape->node[rank], feed = mode->nodes->who.feed_of[rank];
    const _Atomic uint64_t *word = &normal_line(mode, normal_index(mode, op), rank)->counts;
    *value_p = 0;
    if (feed != UINT32_MAX && routing->passing->feeds[feed].rows != 0) {
        word = xep_kit_own(&mode->kit, normal_passed_offset(mode, normal_index(mode, op), feed));
        *value_p = xep_rows_word(op->epoch, routing->passing->feeds[feed].rows);
        if (!has_come(word, *value_p)) return word;
    }
    if (mode->nodes->who.forwarder[node] != rank || normal_rows_to(routing, node) <= mode->kit.shape->feed_rows)
        return word;
    *value_p = xep_rows_word(op->epoch, normal_rows_to(routing, node) - mode->kit.shape->feed_rows);
    return xep_kit_own(&mode->kit, normal_taken_offset(mode, normal_index(mode, op), node));
}
