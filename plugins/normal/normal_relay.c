/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a rank says to another node it says to one rank there, in whose heap all ranks of the node look at it: records
 * and digests lie there as if their writer had stored them itself.
 */
#include <string.h>

#include "normal_nodes.h"
#include "normal_steps.h"

/* ---- an upstream rank: what goes to its forwarders ---- */

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

/* ---- what is heard of an upstream rank ---- */

/* In the heap of its forwarder here, or in the own one. */
static const char *find_heard(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    return xep_kit_heard(&mode->kit, rank, normal_record_offset(mode, op->turn, rank));
}

/* Behind the rows to all ranks; what came by the wire has those of all experts. */
static const char *find_heard_selections(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const xep_shape_t *shape = mode->kit.shape;
    const uint32_t before = mode->kit.base[rank] == NULL ? mode->kit.first_expert[shape->rank] : 0;
    return find_heard(mode, op, rank) + sizeof(normal_record_t) + (shape->nranks + (size_t)before) * sizeof(uint32_t);
}

xep_status_t normal_agree_by_nodes(void *mode, xep_op_t *op)
{
    return normal_agree_by(mode, op, find_heard, find_heard_selections);
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
        memcpy(tail, find_heard(mode, op, mode->nodes->who.upstream[f]) + at, sizeof *tail);
        xep_status_t status = check_tail(mode, op, f, tail);
        if (status != XEP_OK) return status;
    }
    find_begins(mode, routing);
    return XEP_OK;
}
