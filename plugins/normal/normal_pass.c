/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What this rank says to other nodes, and its rows on their way there: each once to the forwarder, as far as its ring
 * has room. A batch to each node in turn, so that no forwarder is idle while others get rows.
 */
#include <string.h>

#include "normal_nodes.h"
#include "normal_steps.h"

/* ---- what is said ---- */

static int is_forwarder(const normal_t *mode, uint32_t rank)
{
    return mode->nodes->who.forwarder[mode->kit.shape->node[rank]] == rank;
}

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
    return is_forwarder(mode, rank) && normal_tell(mode, op, &told, number, transfer);
}

/* Behind all rows that this rank has passed there, and once: nobody there waits for what passes here. */
int normal_feed_done_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                              xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    if (number > 0 || !is_forwarder(mode, rank) || normal_state(op)->forwarders_told) return 0;
    normal_done_transfer(mode, op, rank, transfer);
    return 1;
}

/* ---- room ---- */

/* How many of this rank's rows a forwarder has taken; at most those that were passed. */
static uint64_t rows_taken(const normal_t *mode, const xep_op_t *op, uint32_t node)
{
    const _Atomic uint64_t *word = xep_kit_own(&mode->kit, normal_taken_offset(mode, normal_index(mode, op), node));
    uint64_t told = normal_slot(mode, op->slot)->traffic->passes[node].told;
    uint64_t taken = xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch);
    return taken < told ? taken : told;
}

/* Neighbouring tokens whose rows are neighbours in the ring, too, travel as one. */
static uint64_t find_run(const normal_t *mode, const xep_op_t *op, const uint32_t *tokens, uint64_t row, uint64_t end)
{
    const xep_dispatch_args_t *args = op->dispatch;
    size_t bytes = xep_dispatch_row_bytes(args);
    uint64_t run = 1, most = end - row, wrap = mode->kit.shape->feed_rows;
    if (bytes != args->x_stride || bytes != xep_row_stride(bytes)) return 1;
    if (most > wrap - row % wrap) most = wrap - row % wrap;
    while (run < most && (run + 1) * bytes <= XEP_PUT_BYTES && tokens[row + run] == tokens[row] + run) run++;
    return run;
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

/* Sends the metadata of the rows under way with the word, which comes after the rows. One batch in the ring. */
static xep_status_t tell_passed(const normal_t *mode, const xep_op_t *op, uint32_t node)
{
    normal_pass_t *pass = &normal_slot(mode, op->slot)->traffic->passes[node];
    xep_wire_t *wire = mode->kit.env->wire;
    uint32_t index = normal_index(mode, op), line = mode->nodes->who.line[node];
    size_t stride = normal_passing_bytes(mode, op, op->dispatch->topk_weights != NULL);
    const char *staged = stage_metadata(mode, op, node, pass->told, stride);
    for (uint64_t row = pass->told + 1; row < pass->put; row++) stage_metadata(mode, op, node, row, stride);
    xep_status_t status =
        wire->ops->put_signal(wire, mode->nodes->who.forwarder[node],
                              normal_ring_offset(mode, mode->layout.feed_metadata, index, line, pass->told, stride),
                              staged, (pass->put - pass->told) * stride, normal_passed_offset(mode, index, line),
                              xep_rows_word(op->epoch, pass->put));
    if (status == XEP_OK) pass->told = pass->put;
    return status;
}

/* ---- rows ---- */

/* Whether the forwarder should hear of what is under way: a batch is full, or nothing more can follow. */
static int is_due(const normal_t *mode, const xep_op_t *op, const normal_pass_t *pass, uint64_t end)
{
    uint64_t rows = pass->put - pass->told;
    return rows != 0 && (pass->put == end || pass->put % mode->kit.shape->feed_rows == 0 || rows >= NORMAL_BATCH_ROWS ||
                         rows * xep_dispatch_row_bytes(op->dispatch) >= XEP_PUT_BYTES);
}

/* A batch at most. XEP_OK: it is told of, or there is no room; *more_p: another one may follow at once. */
static xep_status_t pass_batch(const normal_t *mode, xep_op_t *op, uint32_t node, int *more_p)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const xep_dispatch_args_t *args = op->dispatch;
    const uint32_t *tokens = slot->routing->passing->tokens + slot->routing->passing->begin[node];
    normal_pass_t *pass = &slot->traffic->passes[node];
    xep_wire_t *wire = mode->kit.env->wire;
    uint64_t rows = normal_rows_to(slot->routing, node), end = rows_taken(mode, op, node) + mode->kit.shape->feed_rows;
    size_t bytes = xep_dispatch_row_bytes(args), stride = xep_row_stride(bytes);
    if (end > rows) end = rows;
    while (pass->put < end && !is_due(mode, op, pass, end)) {
        uint64_t run = find_run(mode, op, tokens, pass->put, end);
        uint64_t there = normal_ring_offset(mode, mode->layout.feed_rows, normal_index(mode, op),
                                            mode->nodes->who.line[node], pass->put, stride);
        const char *from = (const char *)args->x + tokens[pass->put] * args->x_stride;
        xep_status_t status = wire->ops->put(wire, mode->nodes->who.forwarder[node], there, from, run * bytes);
        if (status != XEP_OK) return status;
        pass->put += run;
    }
    if (!is_due(mode, op, pass, end)) return XEP_OK;
    xep_status_t status = tell_passed(mode, op, node);
    *more_p |= status == XEP_OK && pass->put < end;
    return status;
}

static int is_all_passed(const normal_t *mode, const xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    for (uint32_t n = 0; n < mode->kit.shape->nodes; n++)
        if (slot->traffic->passes[n].told < normal_rows_to(slot->routing, n)) return 0;
    return 1;
}

xep_status_t normal_pass_rows(normal_t *mode, xep_op_t *op)
{
    const uint32_t nodes = mode->kit.shape->nodes;
    int more = 0;
    for (uint32_t i = 1; i < nodes; i++) {
        xep_status_t status = pass_batch(mode, op, (mode->nodes->who.node + i) % nodes, &more);
        if (status != XEP_OK) return status;
    }
    return !more && is_all_passed(mode, op) ? XEP_OK : XEP_INPROGRESS;
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
