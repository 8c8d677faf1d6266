/* SPDX-License-Identifier: BSD-3-Clause */

#include "serve.h"

#include "error.h"
#include "group_out.h"

/* ---- the end of a step ---- */

int xep_server_is_idle(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        for (uint32_t s = 0; s < xep_server_slots(&server->places[b]); s++)
            if (server->places[b].served[s].req != NULL || server->places[b].served[s].is_due) return 0;
    return 1;
}

uint32_t xep_server_boundary(const xep_server_t *server)
{
    uint32_t last = server->places[0].buffer->announce->boundary;
    for (uint32_t b = 1; b < server->args.count; b++) {
        const uint32_t other = server->places[b].buffer->announce->boundary;
        if (xep_step_is_before(last, other)) last = other;
    }
    return last;
}

/* Whether rank has ended a step, the same in all buffers, where this rank is in each of them. */
static int is_where(const xep_server_t *server, uint32_t rank)
{
    const uint32_t step = xep_announce_end_of(server->places[0].buffer, rank).step;
    if (xep_step_is_before(step, xep_server_boundary(server))) return 0;
    for (uint32_t b = 0; b < server->args.count; b++) {
        const xep_buffer_t *buffer = server->places[b].buffer;
        const xep_announced_end_t end = xep_announce_end_of(buffer, rank);
        if (end.step != step || end.epoch != buffer->epoch) return 0;
    }
    return 1;
}

/* Every rank but those that are out, and this one too: it may be where its own last step has ended. */
static int find_end(const xep_server_t *server, uint32_t *rank_p)
{
    for (uint32_t r = 0; r < server->group->nranks; r++) {
        if (xep_group_is_out(server->group, r) || !is_where(server, r)) continue;
        *rank_p = r;
        return 1;
    }
    return 0;
}

/* All ranks end the same step behind the same operation. A rank at another step is compared when it comes there. */
static xep_status_t check_buffer(const xep_buffer_t *buffer)
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

xep_status_t xep_server_check_ends(const xep_server_t *server)
{
    xep_status_t status = XEP_OK;
    for (uint32_t b = 0; status == XEP_OK && b < server->args.count; b++)
        status = check_buffer(server->places[b].buffer);
    return status;
}

xep_status_t xep_server_try_to_end(xep_server_t *server)
{
    uint32_t rank;
    if (!xep_server_is_idle(server) || !find_end(server, &rank)) return XEP_INPROGRESS;
    xep_status_t status = xep_server_check_ends(server);
    if (status != XEP_OK) return server->failure = status;
    for (uint32_t b = 0; b < server->args.count; b++) {
        xep_buffer_t *buffer = server->places[b].buffer;
        xep_announce_stand(buffer, xep_announce_end_of(buffer, rank).step);
    }
    server->is_over = 1;
    return XEP_OK;
}

int xep_server_is_told(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        if (atomic_load_explicit(&server->places[b].buffer->announce->stop, memory_order_relaxed)) return 1;
    return 0;
}

/* Whether a rank that works needs nobody any more. */
int xep_server_is_dismissed(const xep_server_t *server)
{
    for (uint32_t r = 0; r < server->group->nranks; r++)
        if (r != server->group->rank && xep_announce_end_of(server->places[0].buffer, r).last && is_where(server, r))
            return 1;
    return 0;
}

/* The step has no rank any more that could end it. */
xep_status_t xep_server_check_workers(const xep_server_t *server)
{
    const xep_buffer_t *buffer = server->places[0].buffer;
    uint32_t rank;
    for (uint32_t r = 0; r < server->group->nranks; r++)
        if (!xep_group_is_out(server->group, r) && !xep_announce_end_of(buffer, r).serving) return XEP_INPROGRESS;
    if (!xep_server_is_idle(server) || find_end(server, &rank)) return XEP_INPROGRESS;
    return xep_fail(XEP_ERR_PEER, "all ranks that worked in step %u are out (a new group)", buffer->announce->step);
}

/* Ranks that work and whose word is not here. */
xep_status_t xep_server_fail_late(const xep_server_t *server)
{
    const xep_buffer_t *buffer = server->places[0].buffer;
    uint32_t late = server->group->nranks;
    for (uint32_t r = server->group->nranks; r-- > 0;)
        if (!xep_group_is_out(server->group, r) && !xep_announce_end_of(buffer, r).serving && !is_where(server, r))
            late = r;
    if (late == server->group->nranks)
        return xep_fail(XEP_ERR_TIMEOUT, "step %u has not ended: an operation is in flight", buffer->announce->step);
    return xep_fail(XEP_ERR_TIMEOUT,
                    "step %u has not ended: rank %u has not called xep_step_end() (call xep_serve() "
                    "again to go on)",
                    buffer->announce->step, late);
}
