/* SPDX-License-Identifier: BSD-3-Clause */

#include "server.h"

#include "error.h"
#include "group_out.h"

/* ---- the end of a step ---- */

int xep_server_is_idle(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        for (uint32_t s = 0; s < server->args.buffers[b]->shape.slots; s++)
            if (server->args.buffers[b]->announce->served[s].req != NULL ||
                server->args.buffers[b]->announce->served[s].is_due)
                return 0;
    return 1;
}

uint32_t xep_server_boundary(const xep_server_t *server)
{
    uint32_t last = server->args.buffers[0]->announce->boundary;
    for (uint32_t b = 1; b < server->args.count; b++) {
        const uint32_t other = server->args.buffers[b]->announce->boundary;
        if (xep_step_is_before(last, other)) last = other;
    }
    return last;
}

/* The next operation that a rank has announced of a buffer, if it has. */
static const xep_announced_t *next_of(const xep_buffer_t *buffer, uint32_t rank)
{
    uint32_t by;
    const xep_announced_t *next = xep_announce_find(buffer, buffer->epoch + 1, rank, &by);
    return next != NULL && by == rank ? next : NULL;
}

/*
 * Where a rank stands behind what this one has begun: in the step of its next operation, the first one where those of
 * two buffers differ; or, where it has announced none, behind its last step. Its word alone would not do: it may have
 * been written over at the end of the next step, whose operations wait for this rank. Returns whether there is one.
 */
static int find_step(const xep_server_t *server, uint32_t rank, uint32_t *step_p)
{
    int found = 0;
    *step_p = xep_announce_end_of(server->args.buffers[0], rank).step;
    for (uint32_t b = 0; b < server->args.count; b++) {
        const xep_announced_t *next = next_of(server->args.buffers[b], rank);
        if (next == NULL || (found && !xep_step_is_before(next->step, *step_p))) continue;
        *step_p = next->step;
        found = 1;
    }
    return found;
}

/* Whether rank stands between two steps where this rank is, in all buffers; *step_p: how many it has ended there. */
static int is_where(const xep_server_t *server, uint32_t rank, uint32_t *step_p)
{
    const int found = find_step(server, rank, step_p);
    if (xep_step_is_before(*step_p, xep_server_boundary(server))) return 0;
    for (uint32_t b = 0; b < server->args.count; b++) {
        const xep_buffer_t *buffer = server->args.buffers[b];
        const xep_announced_end_t end = xep_announce_end_of(buffer, rank);
        if (next_of(buffer, rank) != NULL) continue;
        if (end.epoch != buffer->epoch || xep_step_is_before(end.step, *step_p)) return 0;
        if (!found && end.step != *step_p) return 0;
    }
    return 1;
}

/* Every rank but those that are out, and this one too: it may be where its own last step has ended. */
static int find_end(const xep_server_t *server, uint32_t *step_p)
{
    for (uint32_t r = 0; r < server->group->nranks; r++) {
        if (!xep_group_is_out(server->group, r) && is_where(server, r, step_p)) return 1;
    }
    return 0;
}

/* All ranks end the same step behind the same operation. A rank at another step is compared when it comes there. */
static xep_status_t check_words(const xep_buffer_t *buffer)
{
    uint32_t first = 0;
    while (xep_group_is_out(buffer->group, first)) first++;
    const xep_announced_end_t end = xep_announce_end_of(buffer, first);
    for (uint32_t r = first + 1; r < buffer->shape.nranks; r++) {
        const xep_announced_end_t other = xep_announce_end_of(buffer, r);
        if (other.step != end.step || other.epoch == end.epoch || xep_group_is_out(buffer->group, r)) continue;
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank %u disagree on the end of step %u: operation %llu, %llu", r,
                        first, end.step - 1, (unsigned long long)other.epoch, (unsigned long long)end.epoch);
    }
    return XEP_OK;
}

/* The same of the operation that is next: it would be held back for the rank that says it is of a later step. */
static xep_status_t check_entries(const xep_buffer_t *buffer)
{
    uint32_t first, other;
    const xep_announced_t *entry = xep_announce_find(buffer, buffer->epoch + 1, 0, &first);
    if (entry == NULL) return XEP_OK;
    for (uint32_t r = first + 1; r < buffer->shape.nranks; r = other + 1) {
        const xep_announced_t *of_other = xep_announce_find(buffer, buffer->epoch + 1, r, &other);
        if (of_other == NULL) return XEP_OK;
        if (of_other->step != entry->step)
            return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank %u disagree on the step of operation %llu: %u, %u",
                            other, first, (unsigned long long)buffer->epoch + 1, of_other->step, entry->step);
    }
    return XEP_OK;
}

xep_status_t xep_server_check_ends(const xep_server_t *server)
{
    xep_status_t status = XEP_OK;
    for (uint32_t b = 0; status == XEP_OK && b < server->args.count; b++) {
        status = check_words(server->args.buffers[b]);
        if (status == XEP_OK) status = check_entries(server->args.buffers[b]);
    }
    return status;
}

xep_status_t xep_server_try_to_end(xep_server_t *server)
{
    uint32_t step;
    if (!xep_server_is_idle(server) || !find_end(server, &step)) return XEP_INPROGRESS;
    xep_status_t status = xep_server_check_ends(server);
    if (status != XEP_OK) return server->failure = status;
    for (uint32_t b = 0; b < server->args.count; b++) xep_announce_stand(server->args.buffers[b], step, 0);
    server->is_over = 1;
    return XEP_OK;
}

int xep_server_is_told(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        if (atomic_load_explicit(&server->args.buffers[b]->announce->stop, memory_order_relaxed)) return 1;
    return 0;
}

void xep_server_stop(xep_server_t *server)
{
    const xep_buffer_t *first = server->args.buffers[0];
    const int32_t timeout_ms = server->args.timeout_ms == 0 ? first->timeout_ms : server->args.timeout_ms;
    server->stop_ns = xep_deadline(timeout_ms);
}

int xep_server_is_dismissed(xep_server_t *server)
{
    xep_buffer_t *buffer = server->args.buffers[0];
    uint32_t step;
    for (uint32_t r = 0; r < server->group->nranks; r++) {
        const xep_announced_end_t end = xep_announce_end_of(buffer, r);
        if (r == server->group->rank || !end.last || end.step == buffer->announce->dismissed) continue;
        if (!is_where(server, r, &step)) continue;
        buffer->announce->dismissed = end.step;
        xep_server_stop(server);
        return 1;
    }
    return 0;
}

uint32_t xep_server_find_worker(const xep_server_t *server, int *others_p)
{
    uint32_t worker = server->group->nranks;
    *others_p = 0;
    for (uint32_t r = server->group->nranks; r-- > 0;) {
        if (xep_group_is_out(server->group, r)) continue;
        if (r != server->group->rank) *others_p = 1;
        if (!xep_announce_end_of(server->args.buffers[0], r).serving) worker = r;
    }
    return worker;
}

/* The step has no rank any more that could end it, or this rank is alone. Others that serve may be told to work. */
xep_status_t xep_server_check_workers(const xep_server_t *server)
{
    int others;
    uint32_t step;
    if (xep_server_find_worker(server, &others) < server->group->nranks || !xep_server_is_idle(server))
        return XEP_INPROGRESS;
    if (!find_end(server, &step))
        return xep_fail(XEP_ERR_PEER, "all ranks that worked in step %u are out (make a new group)",
                        server->args.buffers[0]->announce->step);
    return others ? XEP_INPROGRESS : xep_fail(XEP_ERR_PEER, "there is no other rank that could work");
}

/* Ranks that work and whose word is not here. */
xep_status_t xep_server_fail_late(const xep_server_t *server)
{
    const xep_buffer_t *buffer = server->args.buffers[0];
    uint32_t step, late = server->group->nranks;
    for (uint32_t r = server->group->nranks; r-- > 0;)
        if (!xep_group_is_out(server->group, r) && !xep_announce_end_of(buffer, r).serving &&
            !is_where(server, r, &step))
            late = r;
    if (late == server->group->nranks)
        return xep_fail(XEP_ERR_TIMEOUT, "step %u has not ended: an operation is in flight", buffer->announce->step);
    return xep_fail(XEP_ERR_TIMEOUT,
                    "step %u has not ended: rank %u has not called xep_step_end() (call xep_serve() "
                    "again to go on)",
                    buffer->announce->step, late);
}
