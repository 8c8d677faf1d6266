/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A request is taken again only when its operation has ended, so what one request did never overlaps: it is a lane of
 * the picture. Within it the operation encloses its phases, and a phase its waits.
 */
#include "request.h"

#include "buffer.h"

static xep_trace_event_t event_of(const xep_request_t *req, xep_trace_kind_t kind, uint64_t begin_ns, uint64_t end_ns)
{
    return (xep_trace_event_t){.begin_ns = begin_ns,
                               .end_ns = end_ns,
                               .epoch = req->op.epoch,
                               .where = req->buffer->trace_number,
                               .lane = (uint16_t)(req - req->buffer->requests),
                               .kind = (uint8_t)kind,
                               .op = (uint8_t)req->op.kind};
}

void xep_request_trace_span(const xep_request_t *req, const char *name, uint32_t rank, uint64_t begin_ns,
                            uint64_t end_ns)
{
    xep_trace_kind_t kind = rank == XEP_NO_RANK ? XEP_TRACE_PHASE : XEP_TRACE_WAIT;
    xep_trace_event_t event = event_of(req, kind, begin_ns, end_ns);
    if (kind == XEP_TRACE_WAIT) event.rank = rank;
    else xep_trace_copy_name(event.name, name);
    xep_trace_write(&event);
}

void xep_request_trace_waits(const xep_request_t *req)
{
    const xep_late_t *late = &req->op.late;
    if (late->since_ns == 0) return;
    uint64_t now = xep_clock_ns();
    for (uint32_t i = 0; i < late->count; i++) xep_request_trace_span(req, NULL, late->ranks[i], late->since_ns, now);
}

void xep_request_trace_end(const xep_request_t *req)
{
    xep_request_trace_waits(req);
    xep_trace_event_t event = event_of(req, XEP_TRACE_OPERATION, req->begin_ns, xep_clock_ns());
    event.operation.tokens = req->handle->tokens;
    event.operation.rows = req->op.recv->rows;
    event.operation.status = req->status;
    event.operation.slot = req->op.slot;
    xep_trace_write(&event);
}
