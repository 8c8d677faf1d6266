/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * When a wait gives ranks up. A rank that died is known at once. A rank that is late may only wait itself, for one that
 * is gone: whoever is in the library and has called the operation is not to blame. So when the time is over, a rank
 * looks once more, a little later, which of the late ones have made a round meanwhile. An operation that waits for no
 * word waits for its own bytes to leave: then those are late that do not take them.
 */
#include "members.h"

#include "backoff.h"
#include "error.h"
#include "group_out.h"
#include "request.h"

enum { MOST_GRACE_MS = 1000, GRACE_SHARE = 20 /* a twentieth of the deadline */ };

/*
 * Between the two looks at who makes rounds: a twentieth of the deadline, so that the whole takes hardly longer than
 * the caller has said, but long enough for a busy rank to make one round, and a second at most.
 */
static uint64_t grace_ns(const xep_buffer_t *buffer)
{
    int64_t ms = buffer->timeout_ms / GRACE_SHARE, least = buffer->members->ways->least_grace_ms;
    if (ms < least) ms = least;
    return (uint64_t)(ms > MOST_GRACE_MS || buffer->timeout_ms < 0 ? MOST_GRACE_MS : ms) * 1000000u;
}

typedef int (*is_to_blame_fn)(const xep_buffer_t *buffer, const xep_request_t *req, uint32_t rank);

static int makes_no_round(const xep_buffer_t *buffer, const xep_request_t *req, uint32_t rank)
{
    (void)req;
    return !buffer->members->ways->makes_rounds(buffer, rank);
}

/* Of who reads an input it is not known which operation it should have called. */
static int has_not_called(const xep_buffer_t *buffer, const xep_request_t *req, uint32_t rank)
{
    return req != NULL && !buffer->members->ways->has_begun(buffer, rank, req->op.epoch);
}

/* blame NULL: only whether it is late */
static uint32_t put_out_one(xep_buffer_t *buffer, const xep_request_t *req, uint32_t rank, is_to_blame_fn blame)
{
    if (rank == buffer->shape.rank || xep_group_is_out(buffer->group, rank)) return 0;
    if (blame == NULL) return 1;
    return blame(buffer, req, rank) ? (uint32_t)xep_group_put_out(buffer->group, rank, XEP_OUT_LATE) : 0;
}

/* Of those that still read the input that is waited for. */
static uint32_t put_out_readers(xep_buffer_t *buffer, is_to_blame_fn blame)
{
    const xep_plugin_t *plugin = buffer->plugin.plugin;
    uint32_t found = 0, slot = buffer->members->input - 1;
    for (uint32_t r = 0; buffer->members->input != 0 && r < buffer->shape.nranks; r++)
        if (plugin->masks->reads(buffer->mode, slot, r)) found += put_out_one(buffer, NULL, r, blame);
    return found;
}

static uint32_t put_out_behind(xep_buffer_t *buffer, const xep_request_t *req, is_to_blame_fn blame)
{
    const xep_transport_ops_t *ops = buffer->group->transport->ops;
    uint32_t found = 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (ops->heap_is_behind(buffer->heap, r)) found += put_out_one(buffer, req, r, blame);
    return found;
}

/* Of the ranks whose words are late in any operation in flight, or that do not take what it sends, and readers. */
static uint32_t put_out_late(xep_buffer_t *buffer, is_to_blame_fn blame)
{
    uint32_t found = put_out_readers(buffer, blame);
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        const xep_request_t *req = &buffer->requests[i];
        if (req->state != XEP_REQUEST_ACTIVE && req != buffer->members->before) continue;
        if (req->op.late.count == 0) found += put_out_behind(buffer, req, blame);
        for (uint32_t j = 0; j < req->op.late.count; j++)
            found += put_out_one(buffer, req, req->op.late.ranks[j], blame);
    }
    return found;
}

/* While the ranks agree, each has as long to answer as any operation may take. */
static uint64_t answer_ns(const xep_buffer_t *buffer)
{
    return (uint64_t)buffer->timeout_ms * 1000000u;
}

/* Whether this rank waits for a ballot of rank, and since when. One that is out may not be in its own ballot yet. */
static int owes_ballot(const xep_buffer_t *buffer, uint32_t rank, uint64_t *since_p)
{
    return xep_agreement_waits_for(&buffer->members->agreement, rank, since_p) &&
           !xep_group_is_out(buffer->group, rank);
}

static uint32_t put_out_silent(xep_buffer_t *buffer, uint64_t now)
{
    uint32_t found = 0;
    uint64_t since;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (owes_ballot(buffer, r, &since) && now >= since + answer_ns(buffer))
            found += (uint32_t)xep_group_put_out(buffer->group, r, XEP_OUT_LATE);
    return found;
}

/* When the time of some rank is over; of none: that of a ballot that was sent at said. */
static uint64_t patience_until(const xep_buffer_t *buffer, uint64_t said)
{
    uint64_t first = said, since;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (owes_ballot(buffer, r, &since) && since < first) first = since;
    return first + answer_ns(buffer);
}

/* All have said the same, and it may not be decided: most ranks are elsewhere, and may go on without this one. */
static xep_status_t give_up(xep_buffer_t *buffer, uint64_t now, uint64_t *deadline_p)
{
    if (!xep_members_has_lost_quorum(buffer)) return XEP_ERR_TIMEOUT;
    atomic_store(&buffer->members->own->left_out, buffer->shape.nranks + UINT64_C(1));
    *deadline_p = now + grace_ns(buffer);
    return XEP_OK;
}

static xep_status_t doubt_silent(xep_buffer_t *buffer, uint64_t now, uint64_t *deadline_p)
{
    uint64_t until = patience_until(buffer, buffer->members->agreement.said_ns);
    if (now >= until) {
        if (put_out_silent(buffer, now) == 0) return give_up(buffer, now, deadline_p);
        until = patience_until(buffer, now);
    }
    *deadline_p = until;
    return XEP_OK;
}

/* Since ranks were left out operations have had less time than their own: a mode may wait for these to be quiet. */
static xep_status_t hope_anew(const xep_buffer_t *buffer, uint64_t now, uint64_t *deadline_p)
{
    uint64_t decided = buffer->members->decided_ns, until = xep_deadline_from(decided, buffer->timeout_ms);
    if (decided == 0 || now >= until) return XEP_ERR_TIMEOUT;
    *deadline_p = until;
    return XEP_OK;
}

xep_status_t xep_members_doubt(xep_buffer_t *buffer, uint64_t *deadline_p)
{
    xep_members_t *members = buffer->members;
    uint64_t now = xep_clock_ns();
    if (members->agreement.open)
        return buffer->timeout_ms < 0 ? XEP_ERR_TIMEOUT : doubt_silent(buffer, now, deadline_p);
    *deadline_p = now + grace_ns(buffer);
    if (members->doubted_ns == 0) {
        /* with nobody to blame it may be this rank that was stopped, and has not looked since */
        if (put_out_late(buffer, NULL) == 0 && hope_anew(buffer, now, deadline_p) == XEP_OK) return XEP_OK;
        members->ways->ask(buffer);
        members->doubted_ns = now;
        return XEP_OK;
    }
    /*
     * The second look. A rank that makes rounds waits for somebody itself: only where all make rounds are those to
     * blame that have not called the operation.
     */
    members->doubted_ns = 0;
    if (put_out_late(buffer, makes_no_round) == 0 && put_out_late(buffer, has_not_called) == 0) return XEP_ERR_TIMEOUT;
    *deadline_p = xep_deadline_from(now, buffer->timeout_ms); /* for what the others do about it */
    return XEP_OK;
}

xep_status_t xep_members_bury(xep_buffer_t *buffer)
{
    return xep_group_put_out_dead(buffer->group) != 0 ? XEP_OK : XEP_ERR_PEER;
}

/* Kernels have the deadlines. Each time round somebody else is out. */
static xep_status_t wait_for_kernels(xep_buffer_t *buffer, xep_wait_t *wait)
{
    for (;;) {
        xep_status_t status = xep_group_wait(buffer->group, wait);
        if (status != XEP_ERR_PEER || xep_members_bury(buffer) != XEP_OK) return status;
        xep_members_look_at_device(buffer);
    }
}

/* Each time round somebody else is out, or time is given once: it ends. */
xep_status_t xep_members_wait(xep_buffer_t *buffer, xep_wait_t *wait)
{
    if (!buffer->goes_on) return xep_group_wait(buffer->group, wait);
    wait->spares = 1;
    if (buffer->members == NULL) return wait_for_kernels(buffer, wait);
    buffer->members->doubted_ns = 0;
    for (;;) {
        xep_status_t status = xep_group_wait(buffer->group, wait), hope = status;
        if (status == XEP_ERR_PEER) hope = xep_members_bury(buffer);
        else if (status == XEP_ERR_TIMEOUT) hope = xep_members_doubt(buffer, &wait->deadline_ns);
        else return status;
        if (hope != XEP_OK) return status;
    }
}

xep_status_t xep_members_wait_input(xep_buffer_t *buffer, uint32_t slot, xep_wait_t *wait)
{
    xep_members_t *members = buffer->members;
    if (members != NULL) members->input = slot + 1;
    xep_status_t status = xep_members_wait(buffer, wait);
    if (members != NULL) members->input = 0;
    return status;
}
