/* SPDX-License-Identifier: BSD-3-Clause */

/* Steps of a dispatch and a combine where rows go once to each node: normal_nodes.h. */
#include <string.h>

#include "normal_coded.h"
#include "normal_nodes.h"
#include "normal_steps.h"

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

/*
 * Where rows of upstream ranks begin at the local ranks follows from what lower ranks send there, as all know it; and
 * their dests are listed when they pass.
 */
static void find_begins(const normal_t *mode, const normal_routing_t *routing)
{
    const normal_nodes_t *nodes = mode->nodes;
    const uint32_t nranks = mode->kit.shape->nranks;
    for (uint32_t f = 0; f < nodes->who.upstreams; f++)
        *normal_dest_first(mode, routing, f, 0) = f * mode->kit.shape->tokens * nodes->most_locals;
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
static xep_status_t take_feeds(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    /* behind the header, the rows to all ranks and the selections of all experts */
    size_t at = sizeof(normal_record_t) + (shape->nranks + (size_t)shape->experts) * sizeof(uint32_t);
    if (op->cached_slot != XEP_NO_SLOT) return XEP_OK;
    for (uint32_t f = 0; f < mode->nodes->who.upstreams; f++) {
        normal_feed_tail_t *tail = &routing->passing->feeds[f];
        memcpy(tail, normal_find_record(mode, op, mode->nodes->who.upstream[f]) + at, sizeof *tail);
        xep_status_t status = check_tail(mode, op, f, tail);
        if (status != XEP_OK) return status;
    }
    find_begins(mode, routing);
    return XEP_OK;
}

/* ---- dispatch ---- */

/* Where rows of upstream ranks go: the slots of all local ranks, whatever of this rank's own rows stays in place. */
static xep_status_t find_places_of_locals(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_status_t status = take_feeds(mode, op);
    if (status != XEP_OK) return status;
    memset(slot->targets, 0, mode->kit.shape->nranks * sizeof *slot->targets);
    for (uint32_t p = 0; p < mode->nodes->who.locals; p++) {
        const uint32_t local = mode->nodes->who.local[p];
        slot->traffic->targets[p] = normal_target_of(mode, op, local);
        normal_aim_at_slot(mode, op, local);
    }
    return XEP_OK;
}

/*
 * Moves own rows to other nodes, own rows to local ranks a slice at a time, and rows that upstream ranks have passed:
 * each as far as it goes, until none are left. Looks at the words of late ranks before that, so that the time spent
 * here is not booked as waiting for a rank.
 */
static xep_status_t move_by_nodes(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    xep_wire_t *wire = mode->kit.env->wire;
    xep_status_t status = XEP_OK, passed = XEP_INPROGRESS, forwarded = XEP_INPROGRESS;
    if (op->coming != 0) return XEP_INPROGRESS;
    if (op->late.count != 0) status = xep_step_wait(mode, op);
    for (int moves = 1; status >= 0 && moves;) {
        passed = normal_pass_rows(mode, op);
        if (passed < 0) return passed;
        moves = normal_state(op)->moved < routing->tokens;
        if (moves) normal_move_slice(mode, op);
        forwarded = normal_forward_rows(mode, op);
        if (forwarded < 0) return forwarded;
        if (moves) status = wire->ops->progress(wire);
    }
    if (status < 0) return status;
    if (passed != XEP_OK || forwarded != XEP_OK || op->late.count != 0) {
        if (op->late.count == 0) status = xep_step_wait(mode, op);
        return status < 0 ? status : XEP_INPROGRESS;
    }
    return XEP_OK;
}

/* Forwarders have done already, unless the verdict is an error. */
static xep_status_t signal_by_nodes(void *mode, xep_op_t *op)
{
    xep_status_t status = normal_pass_rows(mode, op);
    return status == XEP_OK ? xep_step_store(mode, op) : status;
}

/* ---- combine ---- */

/* By nodes: rows come from the ranks that sum them. */
static int offer_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                          xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    (void)rank;
    if (number == 0) xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number == 0;
}

/* Local ranks have their rows; other nodes have returned one for each token that has passed there. */
static void find_sources(const normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    for (uint32_t p = 0; p < mode->nodes->who.locals; p++) normal_find_source(mode, op, mode->nodes->who.local[p]);
    for (uint32_t n = 0; n < mode->kit.shape->nodes; n++)
        if (n != mode->nodes->who.node)
            slot->sources[mode->nodes->who.forwarder[n]] =
                normal_returned_at(mode, op, slot->routing->passing->begin[n]);
}

/*
 * By nodes: sums tokens whose rows have all come, while others travel; a slice at a time, so that the wire goes on. If
 * ranks disagree nothing is summed, but sums of others still come. As in a dispatch, looks at the words of late ranks
 * before the work, so that the time is not booked as waiting for a rank.
 */
static xep_status_t sum_by_nodes(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    const normal_terms_t terms = {routing->passing->term_first, routing->passing->terms,
                                  xep_kit_state(op)->casts ? NORMAL_CODED
                                  : mode->own_sums != NULL ? NORMAL_ROUNDED
                                                           : NORMAL_ALIKE};
    xep_wire_t *wire = mode->kit.env->wire;
    normal_state_t *state = normal_state(op);
    xep_status_t status = XEP_OK;
    if (xep_kit_state(op)->verdict != XEP_OK) return xep_step_wait(mode, op);
    if (op->late.count != 0) status = xep_step_wait(mode, op);
    /* end is what normal_find_summed() says; the first turn has to come there */
    for (uint64_t end = UINT64_MAX; status >= 0 && op->coming == 0 && state->moved < end;) {
        status = normal_find_summed(mode, op, &end);
        if (status != XEP_OK || state->moved == end) break;
        /* places depend on the offers alone, which were taken before the first sum and are not looked at again */
        if (state->moved == 0) find_sources(mode, op);
        normal_sum_tokens(mode, op, &terms,
                          end - state->moved < NORMAL_BATCH_ROWS ? end : state->moved + NORMAL_BATCH_ROWS);
        status = wire->ops->progress(wire);
    }
    if (status < 0) return status;
    if (state->moved == routing->tokens && op->coming == 0 && op->late.count == 0) return XEP_OK;
    if (op->late.count == 0) status = xep_step_wait(mode, op);
    return status < 0 ? status : XEP_INPROGRESS;
}

const xep_step_t normal_by_nodes_steps[] = {
    {.at = XEP_AT_LISTS, .name = "feeds", .does = "begin feeds", .run = normal_begin_traffic},
    {.at = XEP_AT_TELL, .run = xep_step_send, .transfers = normal_feed_record_transfer},
    {.at = XEP_AT_HEAR, .run = xep_step_wait_through, .hears_through = 1},
    {.at = XEP_AT_PLACES, .run = find_places_of_locals},
    {.at = XEP_AT_MOVE,
     .name = "rows to pass",
     .does = "rows",
     .run = move_by_nodes,
     .word = normal_passing_word,
     .counts_rows = 1,
     .agreed = 1},
    {.at = XEP_AT_MOVE,
     .name = "signals to go out",
     .does = "send signals",
     .run = signal_by_nodes,
     .store = normal_store_done},
    {.at = XEP_AT_ROWS, .run = xep_step_wait_through, .hears_through = 1},
    {.at = XEP_AT_OFFER, .run = xep_step_send, .transfers = offer_transfer},
    {.at = XEP_AT_OFFER,
     .name = "outputs of the node",
     .does = "wait for the node",
     .run = xep_step_wait,
     .word = normal_locals_word},
    {.at = XEP_AT_OFFER, .name = "sums of the node to go out", .does = "sum for others", .run = normal_return_sums},
    {.at = XEP_AT_SUM,
     .name = "sums of other nodes",
     .does = "sum",
     .run = sum_by_nodes,
     .word = normal_summed_word,
     .counts_rows = 1},
    {0},
};
