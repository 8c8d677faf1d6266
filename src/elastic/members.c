/* SPDX-License-Identifier: BSD-3-Clause */

/* A round without news costs a load of the doorbell, one of left_out and a store of the beat, all in own memory. */
#include "members.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "group_out.h"
#include "log.h"

/* ---- the two words of a rank in an operation, as an agreement counts them ---- */

enum { WORDS = 2 };

static uint64_t first_word(uint64_t epoch)
{
    return WORDS * epoch;
}

static uint64_t last_word(uint64_t epoch)
{
    return WORDS * epoch + 1;
}

/* ---- being left out ---- */

/* Told once, to all operations in flight: nothing that they bring may be used, as others may be writing over it. */
static int is_left_out(xep_buffer_t *buffer)
{
    if (xep_buffer_check_in(buffer) == XEP_OK) return 0;
    buffer->group->left_out = 1;
    if (!buffer->broken) {
        xep_log(XEP_LOG_ERROR, "%s", xep_last_error());
        xep_request_end_all(buffer, XEP_ERR_PEER, xep_last_error());
    }
    return 1;
}

/* ---- who an operation is without ---- */

/* Of a dispatch it is the handle's, where users find it as long as they have the handle. */
static uint8_t *without_of(const xep_request_t *req)
{
    const xep_buffer_t *buffer = req->buffer;
    size_t row = req->op.kind == XEP_OP_DISPATCH ? buffer->nrequests + req->op.slot : (size_t)(req - buffer->requests);
    return buffer->members->without + row * buffer->shape.nranks;
}

/* 0 or XEP_OUT_*. */
static uint8_t out_of(const xep_agreement_t *agreement, uint64_t epoch, uint32_t rank)
{
    if (!agreement->out[rank] || xep_ballot_is_with(&agreement->mine, rank, last_word(epoch))) return 0;
    return xep_ballot_is_with(&agreement->mine, rank, first_word(epoch)) ? XEP_OUT_HEARD : XEP_OUT_SILENT;
}

/* Those that it is with, and those that it is without in this way. */
static xep_ranks_t list_ranks(const xep_request_t *req, uint32_t *rank, uint8_t way)
{
    const uint8_t *without = without_of(req);
    xep_ranks_t ranks = {.rank = rank};
    for (uint32_t r = 0; r < req->buffer->shape.nranks; r++) {
        if (r == req->buffer->shape.rank) ranks.self = ranks.count;
        if (without[r] == 0 || without[r] == way) rank[ranks.count++] = r;
    }
    return ranks;
}

/* Whom it waited for at its last look, and is without by now. */
static void drop_late(xep_request_t *req)
{
    xep_late_t *late = &req->op.late;
    const uint8_t *without = without_of(req);
    uint32_t left = 0;
    for (uint32_t i = 0; i < late->count; i++)
        if (without[late->ranks[i]] == 0) late->ranks[left++] = late->ranks[i];
    late->count = left;
    if (left == 0) late->since_ns = 0;
}

static void list_all(xep_request_t *req)
{
    uint32_t nranks = req->buffer->shape.nranks,
             *memory = req->buffer->members->ranks + (size_t)(req - req->buffer->requests) * 2 * nranks;
    req->op.with = list_ranks(req, memory, 0);
    req->op.heard = list_ranks(req, memory + nranks, XEP_OUT_HEARD);
    drop_late(req);
}

/*
 * What the mode has left out by itself stays so. Unsettled: the agreement says that it is with a rank that is out,
 * whose word this rank may lack; xep_members_settle() fetches it before the operation goes on.
 */
static void choose(xep_request_t *req)
{
    const xep_agreement_t *agreement = &req->buffer->members->agreement;
    uint32_t nranks = req->buffer->shape.nranks, count = 0;
    uint8_t *without = without_of(req);
    for (uint32_t r = 0; r < nranks; r++) {
        if (without[r] == 0) without[r] = out_of(agreement, req->op.epoch, r);
        count += without[r] != 0;
        req->unsettled |= agreement->out[r] && without[r] == 0;
    }
    req->op.out = count != 0 ? without : NULL;
    list_all(req);
}

/* ---- the agreement ---- */

/*
 * What has ended had the word of every rank it was with. What has not begun has none that this rank could find. The
 * top is the last operation that this rank has called: of later ones the suspect's word counts for nobody, unless
 * another survivor, who was further ahead, has it.
 */
static void suspect(void *arg, uint32_t rank, xep_out_reason_t reason)
{
    xep_buffer_t *buffer = arg;
    xep_members_t *members = buffer->members;
    uint32_t count = 0;
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        xep_holds_t held = XEP_HOLDS_NOTHING;
        if (!xep_request_in_flight(req)) continue;
        if (req->state == XEP_REQUEST_ACTIVE) held = members->ways->holds(req, rank);
        if (held < XEP_HOLDS_FIRST) members->missing[count++] = first_word(req->op.epoch);
        if (held < XEP_HOLDS_ALL) members->missing[count++] = last_word(req->op.epoch);
    }
    xep_ballot_suspect(&members->agreement.mine, rank, reason, last_word(buffer->epoch), members->missing, count);
    xep_group_put_out(buffer->group, rank, reason);
}

/* Whom this process has given up, in whatever call. */
static int suspect_out(xep_buffer_t *buffer)
{
    int changed = 0;
    buffer->members->seen_outs = atomic_load_explicit(&buffer->group->outs, memory_order_acquire);
    atomic_store_explicit(&buffer->waits.counts->ranks_out, buffer->members->seen_outs, memory_order_relaxed);
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        if (!xep_group_is_out(buffer->group, r) || xep_ballot_suspects(&buffer->members->agreement.mine, r)) continue;
        suspect(buffer, r, (xep_out_reason_t)atomic_load(&buffer->group->out[r].reason));
        changed = 1;
    }
    return changed;
}

/* Between what the others are told and the look at the own word decide() has a fence. */
static int decide(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    if (!xep_agreement_decide(&members->agreement)) return 0;
    members->decided_ns = xep_clock_ns();
    members->doubted_ns = 0;
    if (is_left_out(buffer)) return 0;
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        if (req->state == XEP_REQUEST_ACTIVE) choose(req);
    }
    return 1;
}

/* Looking and deciding is for whoever has something new to look at, or waits for others to say the same. */
static int agree(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    xep_agreement_t *agreement = &members->agreement;
    int changed = suspect_out(buffer);
    changed |= xep_agreement_listen(agreement);
    if (changed || agreement->open) changed |= xep_members_learn_gone(buffer);
    if (agreement->out_by != 0) atomic_store(&members->own->left_out, agreement->out_by);
    if (is_left_out(buffer)) return 0;
    if (changed) xep_agreement_publish(agreement);
    if (agreement->is_full) {
        xep_log(XEP_LOG_ERROR, "too many ranks are out: %u, more than control messages can name",
                xep_ballot_count(&agreement->mine));
        atomic_store(&members->own->left_out, buffer->shape.nranks + UINT64_C(1));
    }
    return !agreement->open || (!changed && decide(buffer));
}

int xep_members_advance(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    if (members == NULL) {
        xep_members_look_at_device(buffer);
        return 1;
    }
    int news = members->ways->look(buffer);
    if (atomic_load_explicit(&members->own->left_out, memory_order_relaxed) != 0 && is_left_out(buffer)) return 0;
    if (!members->agreement.open && !news &&
        members->seen_outs == atomic_load_explicit(&buffer->group->outs, memory_order_relaxed))
        return 1;
    return agree(buffer);
}

/* ---- operations ---- */

void xep_members_tell_begun(const xep_buffer_t *buffer)
{
    atomic_store_explicit(&buffer->members->own->begun, buffer->epoch, memory_order_relaxed);
}

/*
 * The row is used again and again, so what it said of an earlier operation goes first. Until somebody is out all rows
 * are zeros, and have cost a tenth of what masks add to an operation of one token: test/bench/mask_cost.
 */
xep_status_t xep_members_choose(xep_request_t *req)
{
    if (req->buffer->members->decided_ns == 0) return XEP_OK;
    memset(without_of(req), 0, req->buffer->shape.nranks);
    choose(req);
    return XEP_OK;
}

void xep_members_leave_out(xep_request_t *req, uint32_t rank)
{
    uint8_t *without = without_of(req);
    without[rank] = XEP_OUT_HEARD;
    req->op.out = without;
    list_all(req);
}

/* XEP_OUT_SILENT and XEP_OUT_HEARD matter inside alone: users see 1. */
void xep_members_show(const xep_request_t *req)
{
    uint8_t *without = without_of(req);
    for (uint32_t r = 0; r < req->buffer->shape.nranks; r++) without[r] = without[r] != 0;
}

static int has_any(const uint8_t *set, uint32_t nranks)
{
    return memchr(set, 1, nranks) != NULL;
}

/* Of the ranks that are out but in this operation, some survivor has the word. */
xep_status_t xep_members_settle(xep_request_t *req)
{
    req->unsettled = 0;
    const xep_buffer_t *buffer = req->buffer;
    const xep_members_t *members = buffer->members;
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; r < buffer->shape.nranks && status == XEP_OK; r++)
        if (members->agreement.out[r] && !xep_op_is_without(&req->op, r))
            status = members->ways->settle(req, r, &without_of(req)[r]);
    if (req->op.out == NULL && has_any(without_of(req), buffer->shape.nranks)) req->op.out = without_of(req);
    list_all(req);
    return status;
}

/* ---- making a buffer ---- */

xep_status_t xep_members_check(const xep_group_t *group, const xep_buffer_params_t *params, const xep_plugin_t *plugin)
{
    for (uint32_t r = 0; r < group->nranks; r++)
        if (xep_group_is_out(group, r))
            return xep_fail(XEP_ERR_PEER, "rank %u is out, but buffers need all ranks of a group (make a new group)",
                            r);
    if (params->on_failure == XEP_ON_FAILURE_MASK && group->nnodes != 1 && plugin->masks->verdict == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid on_failure: XEP_ON_FAILURE_MASK of mode %s on %u nodes (1: all ranks map one another)",
                        plugin->name, group->nnodes);
    return XEP_OK;
}

static const xep_members_ways_t *ways_of(const xep_shape_t *shape)
{
    return shape->nodes == 1 ? &xep_members_mapped : &xep_members_wire;
}

uint64_t xep_members_bytes(const xep_shape_t *shape)
{
    return ways_of(shape)->bytes(shape->nranks, WORDS * shape->slots * XEP_REQUESTS_PER_SLOT);
}

/* without: a row for each request, and one for each slot, whose handle keeps it (without_of). */
static int get_memory(xep_members_t *members, uint32_t rank, uint32_t nranks, uint32_t slots, uint32_t nrequests)
{
    members->without = calloc((size_t)nrequests + slots, nranks);
    members->ranks = calloc(nrequests, 2 * nranks * sizeof *members->ranks);
    members->missing = calloc(nrequests, WORDS * sizeof *members->missing);
    return members->without != NULL && members->ranks != NULL && members->missing != NULL &&
           xep_agreement_open(&members->agreement, rank, nranks, WORDS * nrequests,
                              members->ways->words(nranks, WORDS * nrequests));
}

xep_status_t xep_members_open(xep_buffer_t *buffer)
{
    uint32_t nranks = buffer->shape.nranks;
    xep_members_t *members = buffer->members = calloc(1, sizeof *members);
    if (members != NULL) {
        members->ways = ways_of(&buffer->shape);
        members->own = (xep_members_area_t *)(void *)((char *)buffer->heap->base + buffer->areas.members);
        members->agreement.ops = &members->ways->agreement;
        members->agreement.suspect = suspect;
        members->agreement.arg = buffer;
        buffer->before_mode = xep_members_choose;
        buffer->goes_on = 1;
    }
    if (members == NULL || !get_memory(members, buffer->shape.rank, nranks, buffer->shape.slots, buffer->nrequests) ||
        members->ways->open(buffer) != XEP_OK)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the ballots of %u ranks", nranks);
    buffer->env.out = members->agreement.out;
    buffer->group->goes_on = 1;
    return XEP_OK;
}

void xep_members_close(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    if (members == NULL) return;
    members->ways->close(members);
    xep_agreement_close(&members->agreement);
    free(members->missing);
    free(members->ranks);
    free(members->without);
    free(members);
    buffer->members = NULL;
}
