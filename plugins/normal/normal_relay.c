/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a rank says to another node it says to one rank there, which stores it at all ranks of the node: records and
 * digests lie there, and are looked at, as if their writer had stored them itself.
 */
#include <string.h>

#include "normal_nodes.h"

/* ---- an upstream rank: what goes to its forwarders ---- */

static int is_forwarder(const normal_t *mode, uint32_t rank)
{
    return mode->nodes->who.forwarder[mode->kit.shape->node[rank]] == rank;
}

/* This rank's line in the heap of its forwarder: which one it is there both have found from the shape alone. */
static uint64_t line_there(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    uint32_t line = mode->nodes->who.line[mode->kit.shape->node[rank]];
    return normal_feed_line_offset(mode, normal_index(mode, op), line);
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

/* The record from where it is: header, rows, selections and tail are four places here, one there. */
int normal_feed_record_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                                xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    uint32_t counted = op->cached_slot == XEP_NO_SLOT, node = shape->node[rank];
    if (number > 4 || !is_forwarder(mode, rank)) return 0;
    const struct {
        const void *src;
        size_t bytes;
    } arrays[] = {
        {&slot->record, sizeof slot->record},
        {slot->routing->rows, counted * shape->nranks * sizeof(uint32_t)},
        {slot->routing->selections, counted * shape->experts * sizeof(uint32_t)},
        {number == 3 ? make_tail(mode, op, node) : NULL, counted * sizeof(normal_feed_tail_t)},
    };
    if (number == 4) {
        uint64_t word = line_there(mode, op, rank) + offsetof(normal_feed_line_t, recorded);
        *transfer = (xep_transfer_t){.signal = 1, .signal_offset = word, .value = op->epoch};
        return 1;
    }
    uint64_t offset = normal_feed_record_offset(mode, normal_index(mode, op), mode->nodes->who.line[node]);
    *transfer = (xep_transfer_t){.rows = 1, .offset = offset, .src = arrays[number].src, .bytes = arrays[number].bytes};
    for (uint32_t i = 0; i < number; i++) transfer->offset += arrays[i].bytes;
    return 1;
}

/* Behind all rows that this rank has passed there, and once: nobody there waits for what passes here. */
int normal_feed_done_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                              xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const normal_digest_t *digest = &normal_slot(mode, op->slot)->digest;
    if (number > 0 || !is_forwarder(mode, rank) || normal_state(op)->forwarders_told) return 0;
    uint64_t line = line_there(mode, op, rank);
    *transfer = (xep_transfer_t){.signal = 1,
                                 .src = (const char *)digest,
                                 .bytes = sizeof *digest,
                                 .offset = line + offsetof(normal_feed_line_t, digest),
                                 .signal_offset = line + offsetof(normal_feed_line_t, done),
                                 .value = op->epoch};
    return 1;
}

/* ---- a forwarder ---- */

static const char *feed_record(const normal_t *mode, const xep_op_t *op, uint32_t feed)
{
    return xep_kit_own(&mode->kit, normal_feed_record_offset(mode, normal_index(mode, op), feed));
}

/* As normal_store_record() would at the upstream rank. Whether it may be used is looked at by who reads it. */
static void relay_record(const normal_t *mode, const xep_op_t *op, uint32_t feed)
{
    const normal_nodes_t *nodes = mode->nodes;
    const char *from = feed_record(mode, op, feed);
    size_t rows = op->cached_slot == XEP_NO_SLOT ? mode->kit.shape->nranks * sizeof(uint32_t) : 0;
    uint32_t source = nodes->who.upstream[feed], index = normal_index(mode, op);
    uint64_t counts = normal_line_offset(mode, index, source) + offsetof(normal_line_t, counts);
    for (uint32_t p = 0; p < nodes->who.locals; p++) {
        uint32_t local = nodes->who.local[p];
        char *to = mode->kit.base[local] + normal_record_offset(mode, op->turn, source);
        /*
         * the upstream rank has sent the selections of all experts; a local rank gets those of its own, as from any
         * other rank
         */
        size_t header = sizeof(normal_record_t) + rows, skipped = mode->kit.first_expert[local] * sizeof(uint32_t);
        memcpy(to, from, header);
        if (rows != 0)
            memcpy(to + header, from + header + skipped, xep_kit_experts(&mode->kit, local) * sizeof(uint32_t));
        xep_kit_signal(&mode->kit, local, counts, op->epoch);
    }
}

/*
 * One copy for all: were the upstream rank to write again meanwhile, local ranks would otherwise compare different
 * digests.
 */
static void relay_done(const normal_t *mode, const xep_op_t *op, uint32_t feed)
{
    const normal_nodes_t *nodes = mode->nodes;
    normal_digest_t digest = normal_feed_line(mode, op, feed)->digest;
    uint64_t line = normal_line_offset(mode, normal_index(mode, op), nodes->who.upstream[feed]);
    for (uint32_t p = 0; p < nodes->who.locals; p++) {
        memcpy(mode->kit.base[nodes->who.local[p]] + line + offsetof(normal_line_t, digest), &digest, sizeof digest);
        xep_kit_signal(&mode->kit, nodes->who.local[p], line + offsetof(normal_line_t, done), op->epoch);
    }
}

static int is_here(const _Atomic uint64_t *word, const xep_op_t *op)
{
    return atomic_load_explicit(word, memory_order_acquire) >= op->epoch;
}

xep_status_t normal_relay_records(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    normal_feed_t *feeds = normal_slot(mode, op->slot)->traffic->feeds;
    for (uint32_t f = 0; f < mode->nodes->who.upstreams; f++) {
        if (feeds[f].recorded || !is_here(&normal_feed_line(mode, op, f)->recorded, op)) continue;
        relay_record(mode, op, f);
        feeds[f].recorded = 1;
    }
    return xep_step_wait_relayed(opaque, op);
}

/* All rows of upstream ranks are stored since the step before, and by threads that have fenced them. */
xep_status_t normal_relay_dones(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    normal_feed_t *feeds = normal_slot(mode, op->slot)->traffic->feeds;
    for (uint32_t f = 0; f < mode->nodes->who.upstreams; f++) {
        if (feeds[f].ended || !is_here(&normal_feed_line(mode, op, f)->done, op)) continue;
        relay_done(mode, op, f);
        feeds[f].ended = 1;
    }
    return xep_step_wait_relayed(opaque, op);
}

/* ---- what will pass ---- */

/* A row that passes goes to one rank of this node at least, and to each of them once at most. */
static xep_status_t check_tail(const normal_t *mode, xep_op_t *op, uint32_t feed, const normal_feed_tail_t *tail)
{
    const normal_nodes_t *nodes = mode->nodes;
    const xep_shape_t *shape = mode->kit.shape;
    const uint32_t *rows =
        normal_slot(mode, op->slot)->routing->rank_rows + (size_t)nodes->who.upstream[feed] * shape->nranks;
    uint64_t most = 0, sum = 0, room = mode->layout.returned_rows;
    for (uint32_t p = 0; p < nodes->who.locals; p++) {
        if (rows[nodes->who.local[p]] > most) most = rows[nodes->who.local[p]];
        sum += rows[nodes->who.local[p]];
    }
    if (tail->rows >= most && tail->rows <= sum && tail->rows <= shape->tokens && tail->returned <= room &&
        tail->rows <= room - tail->returned)
        return XEP_OK;
    return mode->kit.env
        ->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
               "invalid tail from rank %u: %u rows, with sums from row %llu on (%llu to %llu rows, of %llu)",
               nodes->who.upstream[feed], tail->rows, (unsigned long long)tail->returned, (unsigned long long)most,
               (unsigned long long)sum, (unsigned long long)room);
}

/* Where rows of upstream ranks begin at the local ranks follows from what lower ranks send there, as all know it. */
static void find_begins(const normal_t *mode, const normal_routing_t *routing)
{
    const normal_nodes_t *nodes = mode->nodes;
    const uint32_t nranks = mode->kit.shape->nranks;
    for (uint32_t p = 0; p < nodes->who.locals; p++) {
        uint64_t begin = 0;
        for (uint32_t r = 0; r < nranks; r++) {
            if (nodes->who.feed_of[r] != UINT32_MAX)
                routing->passing->begins[(size_t)nodes->who.feed_of[r] * nodes->who.locals + p] = begin;
            begin += routing->rank_rows[(size_t)r * nranks + nodes->who.local[p]];
        }
    }
}

/* Those of a cached dispatch are the routing's already. */
xep_status_t normal_take_feeds(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    /* behind the header, the rows to all ranks and the selections of all experts */
    size_t at = sizeof(normal_record_t) + (shape->nranks + (size_t)shape->experts) * sizeof(uint32_t);
    if (op->cached_slot != XEP_NO_SLOT) return XEP_OK;
    for (uint32_t f = 0; f < mode->nodes->who.upstreams; f++) {
        normal_feed_tail_t *tail = &routing->passing->feeds[f];
        memcpy(tail, feed_record(mode, op, f) + at, sizeof *tail);
        xep_status_t status = check_tail(mode, op, f, tail);
        if (status != XEP_OK) return status;
    }
    find_begins(mode, routing);
    return XEP_OK;
}
