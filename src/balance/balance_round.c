/* SPDX-License-Identifier: BSD-3-Clause */

#include <stdio.h>

#include "balance.h"
#include "error.h"
#include "group_wait.h"
#include "members.h"
#include "request.h"

enum { WORD_STRIDE = 64 };

static uint64_t word_offset(const xep_buffer_t *buffer, uint32_t rank)
{
    return buffer->areas.balance + (uint64_t)rank * WORD_STRIDE;
}

static uint64_t share_offset(const xep_buffer_t *buffer, uint32_t round, uint32_t rank)
{
    const uint32_t nranks = buffer->shape.nranks;
    return word_offset(buffer, nranks) + ((uint64_t)(round % 2) * nranks + rank) * buffer->balancer->share_bytes;
}

static xep_share_t *share_at(const xep_buffer_t *buffer, uint32_t round, uint32_t rank)
{
    return (xep_share_t *)(void *)((char *)buffer->heap->base + share_offset(buffer, round, rank));
}

xep_share_t *xep_balance_share(xep_buffer_t *buffer)
{
    return share_at(buffer, buffer->balancer->round + 1, buffer->shape.rank);
}

const xep_share_t *xep_balance_share_of(const xep_buffer_t *buffer, uint32_t rank)
{
    return share_at(buffer, buffer->balancer->round, rank);
}

/* ---- a round ---- */

typedef struct round {
    xep_buffer_t *buffer;
    xep_late_t *late; /* whose shares are missing */
    uint64_t value;   /* of its words */
    uint32_t sent;    /* to so many ranks */
    uint64_t mark;
} round_t;

static xep_status_t send_shares(round_t *round)
{
    xep_buffer_t *buffer = round->buffer;
    const uint32_t self = buffer->shape.rank;
    const uint64_t offset = share_offset(buffer, buffer->balancer->round, self);
    for (; round->sent < buffer->shape.nranks; round->sent++) {
        if (xep_owners_is_out(buffer, round->sent)) continue;
        const uint64_t bytes = round->sent == self ? 0 : buffer->balancer->share_bytes; /* the own one is there */
        xep_status_t status =
            xep_heap_tell(buffer->heap, round->sent, offset, bytes, word_offset(buffer, self), round->value);
        if (status != XEP_OK) return status;
    }
    round->mark = buffer->heap->wire.ops->mark(&buffer->heap->wire);
    return XEP_OK;
}

static int is_here(const round_t *round, uint32_t rank)
{
    const char *word = (const char *)round->buffer->heap->base + word_offset(round->buffer, rank);
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)word, memory_order_acquire) >= round->value;
}

static void find_late(round_t *round)
{
    round->late->count = 0;
    for (uint32_t r = 0; r < round->buffer->shape.nranks; r++)
        if (!is_here(round, r) && !xep_owners_is_out(round->buffer, r)) round->late->ranks[round->late->count++] = r;
}

/* Others may be in an operation that needs this rank: all of the buffer goes on. */
static xep_status_t look(void *arg)
{
    round_t *round = arg;
    xep_buffer_t *buffer = round->buffer;
    xep_request_advance_all(buffer);
    xep_status_t status = xep_buffer_usable(buffer);
    if (status == XEP_OK && round->sent < buffer->shape.nranks) status = send_shares(round);
    if (status != XEP_OK) return status;
    find_late(round);
    if (round->late->count != 0) return XEP_INPROGRESS;
    return buffer->heap->wire.ops->flush_to(&buffer->heap->wire, round->mark); /* the share is written again */
}

static xep_status_t hope(void *arg)
{
    xep_buffer_t *buffer = ((const round_t *)arg)->buffer;
    return xep_request_hope(buffer, buffer->epoch + 1);
}

static void explain(void *arg, char *text, size_t bytes)
{
    const round_t *round = arg;
    const unsigned long long epoch = round->buffer->epoch + 1;
    if (round->late->count == 0) snprintf(text, bytes, "balance of dispatch %llu: counts are still to be sent", epoch);
    else snprintf(text, bytes, "balance of dispatch %llu: rank %u has not called it", epoch, round->late->ranks[0]);
}

/* As an operation that has failed: the others hear of it, and the buffer is broken until a reset. */
static xep_status_t give_up(xep_buffer_t *buffer, xep_status_t status)
{
    char why[XEP_REASON_BYTES];
    snprintf(why, sizeof why, "%s", xep_last_error());
    xep_request_give_up_all(buffer, XEP_ERR_BROKEN, why);
    return xep_fail(status, "%s", why);
}

/* ---- what all have said ---- */

/* Ranks that have refused different numbers of calls are in different ones: this one counts as refused on all. */
static xep_status_t check_pace(xep_buffer_t *buffer)
{
    uint32_t most = buffer->refused, who = buffer->shape.rank;
    int differ = 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        if (xep_owners_is_out(buffer, r)) continue;
        const uint32_t theirs = xep_balance_share_of(buffer, r)->refused;
        differ |= theirs != buffer->refused;
        if ((int32_t)(theirs - most) > 0) most = theirs, who = r;
    }
    if (!differ) return XEP_OK;
    xep_status_t status = xep_fail(XEP_ERR_MISMATCH, "rank %u has refused a call that others have made", who);
    buffer->refused_most = most + 1;
    snprintf(buffer->refused_reason, sizeof buffer->refused_reason, "%s", xep_last_error());
    return status;
}

static xep_status_t refuse_plan(const xep_buffer_t *buffer, uint32_t rank)
{
    const uint32_t expert = xep_balance_share_of(buffer, rank)->words[0];
    if (expert >= buffer->params.experts)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u has no plan: its function failed", rank);
    return xep_fail(XEP_ERR_MISMATCH, "rank %u has no valid plan: the rows of expert %u do not add up", rank, expert);
}

static xep_status_t check_shares(xep_buffer_t *buffer)
{
    const xep_status_t own = (xep_status_t)xep_balance_share_of(buffer, buffer->shape.rank)->status;
    for (uint32_t r = 0; r < buffer->shape.nranks && own == XEP_OK; r++) {
        const xep_status_t theirs = (xep_status_t)xep_balance_share_of(buffer, r)->status;
        if (theirs != XEP_OK && !xep_owners_is_out(buffer, r)) return refuse_plan(buffer, r);
    }
    return own; /* its reason is this thread's last */
}

/* Ranks that stay away are left out as in a wait for the operation, which they have not called. */
static xep_status_t wait_for_all(xep_request_t *req, xep_wait_t *wait)
{
    xep_members_t *members = req->buffer->members;
    if (members == NULL) return xep_group_wait(req->buffer->group, wait);
    req->op.epoch = req->buffer->epoch + 1;
    members->before = req;
    xep_status_t status = xep_members_wait(req->buffer, wait);
    members->before = NULL;
    return status;
}

xep_status_t xep_balance_exchange(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_balancer_t *balancer = buffer->balancer;
    xep_balance_share(buffer)->refused = buffer->refused;
    round_t round = {.buffer = buffer, .late = &req->op.late, .value = buffer->quiesces << 32 | ++balancer->round};
    xep_wait_t wait = {.look = look,
                       .arg = &round,
                       .deadline_ns = xep_deadline(req->dispatch.timeout_ms),
                       .hope = hope,
                       .explain = explain};
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    xep_status_t status = wait_for_all(req, &wait);
    if (status != XEP_OK) return give_up(buffer, xep_group_explain(&wait, status));
    status = check_pace(buffer);
    if (status == XEP_OK) status = check_shares(buffer);
    return status == XEP_OK || status == XEP_ERR_MISMATCH ? status : xep_fail(status, "%s", reason);
}
