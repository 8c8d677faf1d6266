/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows of upstream ranks on their way to the ranks of this node: each is read once, in the ring, and stored wherever it
 * belongs. Metadata is copied before it is checked, as its writer may still write it; of a row nothing is looked at.
 */
#include <string.h>

#include "normal_nodes.h"

/** Rows of one upstream rank, whose places are found. */
typedef struct forward {
    const normal_t *mode;
    const xep_op_t *op;
    const normal_traffic_t *traffic;
    xep_copy_fn copy;
    const char *ring;      /* the first of the rows */
    const uint64_t *first; /* [rows + 1] in dests */
    const normal_dest_t *dests;
    uint64_t rows;
    size_t bytes, stride, metadata; /* of a row; of its metadata */
} forward_t;

static xep_status_t protocol_error(const normal_t *mode, xep_op_t *op, uint32_t feed, const char *what, int64_t value,
                                   uint64_t least, uint64_t most)
{
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                               "invalid row passed by rank %u: %s: %lld (%llu to %llu)",
                               mode->nodes->who.upstream[feed], what, (long long)value, (unsigned long long)least,
                               (unsigned long long)most);
}

/* ---- places ---- */

/*
 * Tokens come in ascending order, as their rows are counted. None comes twice, so an upstream rank cannot have more
 * rows here than tokens; and none is below 0, as -1 is what it begins with.
 */
static xep_status_t check_token(const normal_t *mode, xep_op_t *op, uint32_t feed, int32_t token)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    uint32_t source = mode->nodes->who.upstream[feed];
    if (token <= slot->traffic->feeds[feed].token || (uint64_t)token >= slot->from[source].tokens)
        return protocol_error(mode, op, feed, "token", token, (uint64_t)(slot->traffic->feeds[feed].token + 1),
                              slot->from[source].tokens - 1);
    slot->traffic->feeds[feed].token = token;
    return XEP_OK;
}

/* One more of a row, in the order of sums: ascending, or the last selected last; returns how many there are. */
static uint32_t add_place(normal_dest_t *dests, uint32_t count, uint32_t place, int by_selection)
{
    uint32_t at = 0;
    while (at < count && (by_selection ? dests[at].rank != place : dests[at].rank < place)) at++;
    const int is_there = at < count && dests[at].rank == place;
    if (is_there && by_selection) memmove(dests + at, dests + at + 1, (count - at - 1) * sizeof *dests);
    else if (!is_there) memmove(dests + at + 1, dests + at, (count++ - at) * sizeof *dests);
    dests[by_selection ? count - 1 : at].rank = place;
    return count;
}

/* The local ranks that have one of its experts, and the next row that this upstream rank has at each of them. */
static xep_status_t find_dests(const normal_t *mode, xep_op_t *op, uint32_t feed, const char *experts,
                               normal_dest_t *dests, uint32_t *count_p)
{
    const xep_shape_t *shape = mode->kit.shape;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t *begins = slot->routing->passing->begins + (size_t)feed * mode->nodes->who.locals;
    uint32_t *next = slot->traffic->next + (size_t)feed * mode->nodes->who.locals, count = 0;
    for (uint32_t k = 0; k < op->dispatch->topk; k++) {
        int64_t expert = xep_idx_at(experts, k, 0);
        if (expert == -1) continue;
        if ((uint64_t)expert >= shape->experts)
            return protocol_error(mode, op, feed, "expert", expert, 0, shape->experts - UINT64_C(1));
        uint32_t owner = mode->kit.owner[expert];
        if (shape->node[owner] != mode->nodes->who.node) continue;
        count = add_place(dests, count, shape->place[owner], shape->sums_by_selection);
    }
    for (uint32_t n = 0; n < count; n++) dests[n].row = (uint32_t)(begins[dests[n].rank] + next[dests[n].rank]++);
    *count_p = count;
    return count != 0 ? XEP_OK : protocol_error(mode, op, feed, "experts of this node", 0, 1, op->dispatch->topk);
}

/* A cached dispatch goes where the first one went: combines of both count on it. */
static xep_status_t take_dests(const normal_t *mode, xep_op_t *op, uint32_t feed, const char *metadata, uint64_t *first)
{
    const normal_nodes_t *nodes = mode->nodes;
    normal_dest_t *dests = normal_slot(mode, op->slot)->routing->passing->dests + first[0];
    uint32_t count;
    int32_t token;
    memcpy(&token, metadata, sizeof token);
    xep_status_t status = check_token(mode, op, feed, token);
    if (status == XEP_OK) status = find_dests(mode, op, feed, metadata + sizeof token, nodes->found, &count);
    if (status != XEP_OK) return status;
    if (op->cached_slot == XEP_NO_SLOT) {
        memcpy(dests, nodes->found, count * sizeof *dests);
        first[1] = first[0] + count;
    } else if (first[1] - first[0] != count || memcmp(nodes->found, dests, count * sizeof *dests) != 0)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                   "invalid row passed by rank %u: token %d goes to other ranks (as in the cached "
                                   "dispatch)",
                                   nodes->who.upstream[feed], token);
    return XEP_OK;
}

/* No local rank gets more rows of an upstream rank than were announced; and no fewer, when all have come. */
static xep_status_t check_counts(const normal_t *mode, xep_op_t *op, uint32_t feed, int all)
{
    const xep_forwarders_t *who = &mode->nodes->who;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t *rows = slot->routing->rank_rows + (size_t)who->upstream[feed] * mode->kit.shape->nranks;
    const uint32_t *next = slot->traffic->next + (size_t)feed * who->locals;
    for (uint32_t p = 0; p < who->locals; p++) {
        const uint32_t announced = rows[who->local[p]];
        if (next[p] > announced || (all && next[p] < announced))
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "wrong number of rows from rank %u for rank %u: %u (%u, as announced)",
                                       who->upstream[feed], who->local[p], next[p], announced);
    }
    return XEP_OK;
}

static xep_status_t find_places(const normal_t *mode, xep_op_t *op, uint32_t feed, uint64_t *first,
                                const forward_t *forward)
{
    xep_status_t status = XEP_OK;
    for (uint64_t i = 0; i < forward->rows && status == XEP_OK; i++)
        status = take_dests(mode, op, feed, mode->nodes->metadata + i * forward->metadata, first + i);
    return status == XEP_OK ? check_counts(mode, op, feed, 0) : status; /* nothing is stored yet */
}

/* ---- rows ---- */

static void store_rows(void *arg, uint32_t thread, uint32_t nthreads)
{
    const forward_t *forward = arg;
    const normal_nodes_t *nodes = forward->mode->nodes;
    const uint64_t end = forward->rows * (thread + 1) / nthreads;
    const size_t experts = forward->op->dispatch->topk * sizeof(int32_t);
    for (uint64_t i = forward->rows * thread / nthreads; i < end; i++) {
        const char *row = forward->ring + i * forward->stride, *next = i + 1 < end ? row + forward->stride : row;
        const char *beside = nodes->metadata + i * forward->metadata, *weights = beside + sizeof(int32_t) + experts;
        int weighted = normal_state(forward->op)->weighted;
        normal_metadata_t from = {.experts = (const int32_t *)(const void *)(beside + sizeof(int32_t)),
                                  .weights = weighted ? weights : NULL,
                                  .packed = weighted ? weights + experts : weights};
        memcpy(&from.token, beside, sizeof from.token);
        for (uint64_t d = forward->first[i]; d < forward->first[i + 1]; d++) {
            normal_dest_t dest = forward->dests[d];
            const normal_target_t *target = &forward->traffic->targets[dest.rank];
            forward->copy(target->x + dest.row * forward->stride, row, forward->bytes, next);
            normal_store_metadata(forward->mode, forward->op, &from, nodes->who.local[dest.rank], target, dest.row);
        }
    }
    xep_stores_fence();
}

/* Rows that lie together in the ring, from the first one that is not stored. */
static xep_status_t store_batch(normal_t *mode, xep_op_t *op, uint32_t feed, uint64_t rows)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const xep_env_t *env = mode->kit.env;
    uint64_t first = slot->traffic->feeds[feed].stored, wrap = mode->kit.shape->feed_rows;
    uint32_t index = normal_index(mode, op);
    size_t bytes = xep_dispatch_row_bytes(op->dispatch), stride = xep_row_stride(bytes);
    size_t metadata = normal_passing_bytes(mode, op, normal_state(op)->weighted);
    uint64_t written = slot->routing->passing->feeds[feed].rows * bytes,
             *dest_first = normal_dest_first(mode, slot->routing, feed, first);
    if (rows > NORMAL_BATCH_ROWS) rows = NORMAL_BATCH_ROWS;
    /* rows, and their metadata, up to the end of the ring: both are read as one range */
    if (rows > wrap - first % wrap) rows = wrap - first % wrap;
    forward_t forward = {
        .mode = mode,
        .op = op,
        .traffic = slot->traffic,
        .copy = xep_copy_for(env, written),
        .ring = xep_kit_own(&mode->kit, normal_ring_offset(mode, mode->layout.feed_rows, index, feed, first, stride)),
        .first = dest_first,
        .dests = slot->routing->passing->dests,
        .rows = rows,
        .bytes = bytes,
        .stride = stride,
        .metadata = metadata,
    };
    memcpy(mode->nodes->metadata,
           xep_kit_own(&mode->kit, normal_ring_offset(mode, mode->layout.feed_metadata, index, feed, first, metadata)),
           rows * metadata);
    xep_status_t status = find_places(mode, op, feed, dest_first, &forward);
    if (status != XEP_OK) return status;
    env->parallel(env, store_rows, &forward);
    slot->traffic->feeds[feed].stored += rows;
    return XEP_OK;
}

/* ---- an upstream rank ---- */

/*
 * Where its ring is too small for all its rows, it waits to hear what was taken, but no more once there is room for the
 * last row.
 */
static xep_status_t tell_taken(const normal_t *mode, xep_op_t *op, uint32_t feed)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_feed_t *state = &slot->traffic->feeds[feed];
    uint64_t rows = slot->routing->passing->feeds[feed].rows, room = mode->kit.shape->feed_rows;
    xep_wire_t *wire = mode->kit.env->wire;
    if (rows <= room || state->taken >= rows - room || state->stored == state->taken) return XEP_OK;
    uint64_t word = normal_taken_offset(mode, normal_index(mode, op), mode->nodes->who.node);
    xep_status_t status = wire->ops->put_signal(wire, mode->nodes->who.upstream[feed], 0, NULL, 0, word,
                                                xep_rows_word(op->epoch, state->stored));
    if (status == XEP_OK) state->taken = state->stored;
    return status;
}

/* XEP_OK: nothing more of this upstream rank is here. */
static xep_status_t forward_feed(normal_t *mode, xep_op_t *op, uint32_t feed)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    normal_feed_t *state = &slot->traffic->feeds[feed];
    uint64_t rows = slot->routing->passing->feeds[feed].rows;
    const _Atomic uint64_t *word = xep_kit_own(&mode->kit, normal_passed_offset(mode, normal_index(mode, op), feed));
    uint64_t passed = xep_rows_of(atomic_load_explicit(word, memory_order_acquire), op->epoch);
    /* more than the ring holds means that rows were written over before they were stored */
    const uint64_t held = state->stored + mode->kit.shape->feed_rows, most = held < rows ? held : rows;
    if (passed > most)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                   "rank %u has passed too many rows: %llu (at most %llu)",
                                   mode->nodes->who.upstream[feed], (unsigned long long)passed,
                                   (unsigned long long)most);
    xep_status_t status = XEP_OK;
    int begun = state->stored < passed;
    while (status == XEP_OK && state->stored < passed) {
        status = store_batch(mode, op, feed, passed - state->stored);
        if (status == XEP_OK) status = tell_taken(mode, op, feed);
    }
    if (status == XEP_OK && begun && state->stored == rows) status = check_counts(mode, op, feed, 1);
    return status == XEP_OK ? tell_taken(mode, op, feed) : status;
}

/*
 * Stored, and the upstream rank has heard of as many as it needs to pass the last one: an operation that ended before
 * would leave it waiting for room.
 */
static int is_all_stored(const normal_t *mode, const xep_op_t *op, uint32_t feed)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_feed_t *state = &slot->traffic->feeds[feed];
    uint64_t rows = slot->routing->passing->feeds[feed].rows, room = mode->kit.shape->feed_rows;
    return state->stored == rows && (rows <= room || state->taken >= rows - room);
}

xep_status_t normal_forward_rows(normal_t *mode, xep_op_t *op)
{
    int left = 0;
    for (uint32_t f = 0; f < mode->nodes->who.upstreams; f++) {
        if (is_all_stored(mode, op, f)) continue;
        xep_status_t status = forward_feed(mode, op, f);
        if (status < 0) return status;
        left |= status != XEP_OK || !is_all_stored(mode, op, f);
    }
    return left ? XEP_INPROGRESS : XEP_OK;
}
