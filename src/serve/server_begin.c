/* SPDX-License-Identifier: BSD-3-Clause */

#include "server.h"

#include "backoff.h"
#include "error.h"
#include "request.h"

/* ---- operations that were announced ---- */

/* One that waits until the ranks agree on who is out has no turn yet. */
static int has_turn(const xep_served_t *served)
{
    return served->handle != NULL && (served->req == NULL || served->req->state != XEP_REQUEST_DEFERRED);
}

static int has_request(const xep_buffer_t *buffer)
{
    for (uint32_t s = 0; s < buffer->shape.slots; s++)
        if (buffer->announce->served[s].req != NULL) return 1;
    return 0;
}

static xep_served_t *find_served(const xep_buffer_t *buffer, uint64_t turn)
{
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        xep_served_t *served = &buffer->announce->served[s];
        if (has_turn(served) && served->handle->turn == turn) return served;
    }
    (void)xep_fail(XEP_ERR_PROTOCOL, "operation %llu of mode %s uses dispatch %llu, which this rank has not served",
                   (unsigned long long)buffer->epoch + 1, buffer->plugin.plugin->name, (unsigned long long)turn);
    return NULL;
}

void xep_served_drop(xep_served_t *served)
{
    xep_request_free(served->req);
    xep_handle_release(served->handle);
    *served = (xep_served_t){0};
}

static void release_others(const xep_buffer_t *buffer, const xep_announced_t *entry)
{
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        xep_served_t *served = &buffer->announce->served[s];
        int held = !has_turn(served);
        for (uint32_t i = 0; !held && i < buffer->shape.slots; i++) held = entry->held[i] == served->handle->turn + 1;
        if (!held) xep_served_drop(served);
    }
}

/* This rank has no tokens, so arrays only have to be there or not. payloads: memory for them. */
static xep_dispatch_args_t dispatch_args(const xep_announced_t *entry, xep_payload_t *payloads)
{
    static const float some;
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
#define ENTRY_TAKE(_name) args._name = (__typeof__(args._name))entry->_name;
    XEP_ANNOUNCED_ARGS(ENTRY_TAKE)
#undef ENTRY_TAKE
    args.topk_weights = entry->has & XEP_ANNOUNCED_WEIGHTS ? &some : NULL;
    args.scales = entry->has & XEP_ANNOUNCED_SCALES ? &some : NULL;
    args.payloads = payloads;
    if (args.npayloads > XEP_PAYLOADS_MOST) args.npayloads = XEP_PAYLOADS_MOST;
    for (uint32_t i = 0; i < args.npayloads; i++)
        payloads[i] = (xep_payload_t){.bytes = entry->payload_bytes[i], .alignment = entry->payload_alignment[i]};
    return args;
}

/* XEP_INPROGRESS: not yet. */
static xep_status_t begin_dispatch(xep_buffer_t *buffer, const xep_announced_t *entry)
{
    xep_payload_t payloads[XEP_PAYLOADS_MOST];
    xep_handle_t *handle;
    xep_request_t *req;
    xep_dispatch_args_t args = dispatch_args(entry, payloads);
    release_others(buffer, entry);
    if (entry->has & XEP_ANNOUNCED_CACHED) {
        const xep_served_t *cached = find_served(buffer, entry->turn);
        if (cached == NULL) return XEP_ERR_PROTOCOL;
        if (cached->req != NULL) return XEP_INPROGRESS;
        args.cached = cached->handle;
    }
    const xep_serve_call_t call = {.size = sizeof call,
                                   .buffer = buffer,
                                   .step = entry->step,
                                   .dispatch = buffer->announce->dispatches};
    xep_status_t status = xep_dispatch(buffer, &args, &handle, &req);
    if (status != XEP_OK) return status;
    buffer->announce->served[handle->slot] = (xep_served_t){.handle = handle, .req = req, .call = call};
    return XEP_OK;
}

/* As many weights as there are rows; without rows it is enough that there are some. */
static const float *weights_of(const xep_served_t *served, const xep_announced_t *entry)
{
    static const float some;
    if ((entry->has & XEP_ANNOUNCED_WEIGHTS) == 0) return NULL;
    return served->handle->recv.rows == 0 ? &some : served->call.topk_weights;
}

static xep_status_t begin_combine(xep_served_t *served, const xep_announced_t *entry)
{
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;
    args.dtype = served->call.dtype;
    args.hidden = entry->hidden;
    args.flags = entry->flags;
    args.quant = (xep_quant_t)entry->quant;
    args.quant_scale = entry->quant_scale;
    args.topk_weights = weights_of(served, entry);
    args.topk_weights_stride = served->call.topk_weights_stride;
    args.out_weights = args.topk_weights != NULL ? &served->no_weights : NULL;
    return xep_combine(served->handle, &args, &served->req);
}

static xep_status_t begin_next(xep_served_t *served, const xep_announced_t *entry)
{
    xep_next_args_t args = XEP_NEXT_ARGS_INIT;
    if ((entry->has & XEP_ANNOUNCED_OUTPUTS) == 0) return xep_handle_next(served->handle, NULL, &served->req);
    args.dtype = served->call.dtype;
    args.hidden = entry->hidden;
    args.topk_weights = weights_of(served, entry);
    args.topk_weights_stride = served->call.topk_weights_stride;
    return xep_handle_next(served->handle, &args, &served->req);
}

/* Its dispatch may still be in flight here, or the function still to run: also where outputs were taken before. */
static xep_status_t begin_with_outputs(const xep_buffer_t *buffer, const xep_announced_t *entry)
{
    xep_served_t *served = find_served(buffer, entry->turn);
    if (served == NULL) return XEP_ERR_PROTOCOL;
    if (served->req != NULL) return XEP_INPROGRESS;
    if (!served->has_outputs) {
        served->is_due = 1;
        return XEP_INPROGRESS;
    }
    xep_status_t status = entry->kind == XEP_OP_NEXT ? begin_next(served, entry) : begin_combine(served, entry);
    if (status == XEP_OK) served->has_outputs = 0;
    return status;
}

/* Of a dispatch that has failed on all ranks, each by its own part in the plan. */
static int has_no_plan(const xep_announced_t *entry, xep_status_t status)
{
    return entry->kind == XEP_OP_DISPATCH && (entry->flags & XEP_DISPATCH_BALANCE) && status == XEP_ERR_INVALID;
}

/* BUSY: a slot or a request is still in use. MISMATCH: others have refused calls, and this one is refused, too. */
static xep_status_t begin_announced(xep_server_t *server, xep_buffer_t *buffer)
{
    xep_announce_t *announce = buffer->announce;
    int follows;
    const xep_announced_t *entry = xep_announce_next(buffer, &follows);
    xep_status_t status;
    if (entry == NULL || (follows && has_request(buffer))) return XEP_INPROGRESS;
    /* asked for each: ranks that work may be in the next step as soon as this one has begun their last operation */
    const int begins_step = !xep_step_is_before(entry->step, xep_server_boundary(server));
    if (begins_step && (server->stop_ns != 0 || xep_server_is_told(server) || xep_server_is_dismissed(server)))
        return XEP_INPROGRESS;
    if (entry->step != announce->step) announce->dispatches = 0;
    announce->step = entry->step;
    switch (entry->kind) {
    case XEP_OP_DISPATCH: status = begin_dispatch(buffer, entry); break;
    case XEP_OP_COMBINE:
    case XEP_OP_NEXT: status = begin_with_outputs(buffer, entry); break;
    default: status = xep_fail(XEP_ERR_PROTOCOL, "invalid kind of an announced operation: %u", entry->kind);
    }
    if (has_no_plan(entry, status) || status == XEP_ERR_BUSY || status == XEP_ERR_MISMATCH) return XEP_INPROGRESS;
    return status;
}

/* ---- operations in flight ---- */

/*
 * The caller has claimed the buffer. Errors that all ranks get for one operation end that alone: what its rank does
 * next is announced like all else.
 */
static xep_status_t end_operation(xep_served_t *served)
{
    const xep_op_kind_t kind = served->req->op.kind;
    const int usable = xep_buffer_usable(served->handle->buffer) == XEP_OK;
    xep_status_t status = xep_request_outcome(served->req);
    xep_request_drop(served->req);
    served->req = NULL;
    if (status == XEP_OK) {
        served->is_due = kind != XEP_OP_COMBINE;
        return XEP_OK;
    }
    if (!usable) return status;
    served->is_failed = kind == XEP_OP_DISPATCH;
    return XEP_OK;
}

/* A rank that goes on takes along with its next operation what it has read: this one may not have a next one. */
static void send_held_back(xep_buffer_t *buffer)
{
    if (!buffer->announce->holds_back || xep_buffer_claim(buffer) != XEP_OK) return;
    xep_announce_push(buffer);
    buffer->announce->holds_back = 0;
    xep_buffer_leave(buffer);
}

/* Takes the operations of a buffer further and ends those that are done, in one hold of it, as each takes time. */
static xep_status_t advance(const xep_server_t *server, xep_buffer_t *buffer)
{
    xep_status_t status = xep_buffer_claim(buffer), ended = XEP_OK;
    if (status != XEP_OK) return status;
    xep_request_advance_all(buffer);
    for (uint32_t s = 0; s < buffer->shape.slots && ended == XEP_OK; s++) {
        xep_served_t *served = &buffer->announce->served[s];
        if (served->req == NULL || served->req->state != XEP_REQUEST_DONE) continue;
        ended = end_operation(served);
        buffer->announce->holds_back = server->group->nnodes != 1;
    }
    status = ended != XEP_OK ? ended : xep_buffer_usable(buffer);
    xep_buffer_leave(buffer);
    for (uint32_t s = 0; s < buffer->shape.slots; s++)
        if (buffer->announce->served[s].is_failed) xep_served_drop(&buffer->announce->served[s]);
    return status;
}

/* Ends what is done, then begins what was announced, which may need what has just become free, and takes it along. */
xep_status_t xep_server_attend(xep_server_t *server, xep_buffer_t *buffer)
{
    xep_status_t status;
    do {
        if ((status = advance(server, buffer)) != XEP_OK) return status;
        status = begin_announced(server, buffer);
    } while (status == XEP_OK);
    if (status != XEP_INPROGRESS) server->failure = xep_buffer_usable(buffer) == XEP_OK ? status : XEP_OK;
    for (uint32_t s = 0; s < buffer->shape.slots && server->due == NULL; s++)
        if (buffer->announce->served[s].is_due) server->due = &buffer->announce->served[s];
    if (status == XEP_INPROGRESS && server->due == NULL) send_held_back(buffer);
    return status;
}

/* Deadlines, and deaths that an operation has to be ended for. */
void xep_server_poll(xep_server_t *server)
{
    server->polled_ns = xep_clock_ns();
    for (uint32_t b = 0; b < server->args.count; b++)
        for (uint32_t s = 0; s < server->args.buffers[b]->shape.slots; s++)
            if (server->args.buffers[b]->announce->served[s].req != NULL)
                (void)xep_request_test(server->args.buffers[b]->announce->served[s].req);
}
