/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An error here means that the operation never was: no epoch and no slot is used, so that all ranks go on counting
 * alike.
 */
#include "request.h"

#include "buffer.h"
#include "layout.h"
#include "members.h"
#include "staging.h"
#include "trace.h"

/*
 * Dispatches and next pieces begin in the order of their calls, on every rank: all ranks must take part in a turn, so
 * one that never begins, because what it comes after has failed, has no turn. So what is called behind one that has not
 * begun waits. While the ranks agree on who is out nothing begins. A dispatch whose turn has not come is refused; a
 * next piece has its slot already, and waits.
 */
static int begins_now(const xep_buffer_t *buffer, const xep_request_t *after)
{
    return after == NULL && (buffer->members == NULL || !buffer->members->agreement.open);
}

static int has_turn(const xep_buffer_t *buffer, const xep_request_t *after)
{
    return buffer->deferred == 0 && begins_now(buffer, after);
}

/*
 * Takes the request into the buffer's books. The epoch is used up only when the mode has begun, or when it is certain
 * that it will be asked to: all ranks count operations alike, so what one rank counts and does not begin, all others
 * wait for.
 */
static xep_status_t launch(xep_request_t *req, int now, xep_request_t *after, xep_handle_t *cached, int32_t timeout_ms)
{
    xep_buffer_t *buffer = req->buffer;
    xep_status_t status = XEP_OK;
    req->op.timeout_ms = timeout_ms;
    req->op.epoch = buffer->epoch + 1;
    req->op.refused = buffer->refused;
    req->status = XEP_INPROGRESS;
    req->begin_ns = xep_trace_now();
    /* before the mode tells the others anything: the processor makes all stores before it adds */
    atomic_fetch_add_explicit(&buffer->group->active, 1, memory_order_relaxed);
    if (!now) {
        req->state = XEP_REQUEST_DEFERRED;
        xep_request_follow(req, after, cached);
    } else {
        req->state = XEP_REQUEST_ACTIVE;
        status = xep_request_call_mode(req);
        if (status != XEP_OK) {
            req->state = XEP_REQUEST_FREE;
            atomic_fetch_sub_explicit(&buffer->group->active, 1, memory_order_relaxed);
            xep_request_keep_reason(req);
            if (buffer->staging != NULL) xep_staging_refused(req);
            return xep_fail(status, "%s", req->reason);
        }
    }
    buffer->epoch++;
    if (buffer->members != NULL) xep_members_tell_begun(buffer);
    buffer->active++;
    return XEP_OK;
}

/* What its combines, and dispatches that use its routing, are checked against. */
static void note_dispatch(xep_handle_t *handle, xep_request_t *req)
{
    xep_handle_set_state(handle, XEP_HANDLE_SENT);
    handle->in_flight = req;
    handle->tokens = req->dispatch.tokens;
    handle->topk = req->dispatch.topk;
    handle->topk_idx_dtype = req->dispatch.topk_idx_dtype;
    handle->combined = 0;
    handle->outputs = (xep_outputs_t){0};
    if (req->dispatch.flags & XEP_DISPATCH_PIECES) handle->sent = req->dispatch;
}

/* The caller's list need not stay. */
static void keep_payloads(xep_handle_t *handle, xep_dispatch_args_t *args)
{
    for (uint32_t i = 0; i < args->npayloads; i++) {
        xep_payload_t *payload = &handle->payloads[i];
        *payload = args->payloads[i];
        if (payload->stride == 0) payload->stride = payload->bytes;
        if (payload->alignment == 0) payload->alignment = 1;
    }
    args->payloads = handle->payloads;
}

/* The free slot that was used last, whose memory is in the caches; NULL: none is free. A buffer has only a few. */
static xep_handle_t *find_slot(xep_buffer_t *buffer)
{
    xep_handle_t *best = NULL;
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        xep_handle_t *h = &buffer->handles[s];
        if (h->state == XEP_HANDLE_FREE && (best == NULL || h->turn > best->turn)) best = h;
    }
    return best;
}

/*
 * Finds a request and, for a dispatch, a slot; else the handle is given. Both are taken for good when launch() has
 * succeeded.
 */
static xep_status_t find_room(xep_buffer_t *buffer, xep_op_kind_t kind, const xep_dispatch_args_t *dispatch,
                              xep_handle_t **handle_p, xep_request_t **req_p)
{
    if (kind == XEP_OP_DISPATCH) {
        const xep_request_t *before = has_turn(buffer, dispatch->after) ? xep_request_in_turn(buffer) : NULL;
        if (before != NULL)
            return xep_fail(XEP_ERR_BUSY, "dispatch %llu is still in flight, %u dispatches later",
                            (unsigned long long)before->op.epoch, buffer->shape.slots);
        *handle_p = find_slot(buffer);
        if (*handle_p == NULL)
            return xep_fail(XEP_ERR_BUSY, "all %u slots hold a handle that was not released", buffer->shape.slots);
    }
    *req_p = xep_request_take(kind, *handle_p);
    return *req_p != NULL ? XEP_OK : XEP_ERR_BUSY;
}

/* Where there is no room, progress may make some; else the caller will retry, and this has helped that to succeed. */
static xep_status_t take_room(xep_buffer_t *buffer, xep_op_kind_t kind, const xep_dispatch_args_t *dispatch,
                              xep_handle_t **handle_p, xep_request_t **req_p)
{
    xep_status_t status = find_room(buffer, kind, dispatch, handle_p, req_p);
    if (status != XEP_ERR_BUSY) return status;
    xep_group_progress(buffer->group);
    xep_request_advance_all(buffer);
    status = xep_buffer_usable(buffer);
    return status == XEP_OK ? find_room(buffer, kind, dispatch, handle_p, req_p) : status;
}

/* Everything that can refuse it comes before the mode is asked: a slot, a request, indices. */
xep_status_t xep_request_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, int waits,
                                  xep_request_t **req_p)
{
    xep_request_t *req;
    xep_handle_t *handle;
    xep_status_t status = take_room(buffer, XEP_OP_DISPATCH, args, &handle, &req);
    const int now = has_turn(buffer, args->after);
    /* one that begins later cannot be refused then, so its indices are looked at now */
    if (status == XEP_OK && !now && args->cached == NULL)
        status = xep_layout_count_selections(args, buffer->params.experts, NULL);
    if (status != XEP_OK) return status;
    req->dispatch = *args;
    if (args->npayloads != 0) keep_payloads(handle, &req->dispatch);
    req->op.cached_slot = args->cached == NULL ? XEP_NO_SLOT : args->cached->slot;
    req->op.waits = (uint32_t)waits;
    handle->recv = (xep_recv_t){0}; /* that of the slot's last dispatch until now */
    if (buffer->take_dispatch != NULL && (status = buffer->take_dispatch(req)) != XEP_OK) return status;
    status = launch(req, now, args->after, args->cached, args->timeout_ms);
    if (status != XEP_OK) return status;
    note_dispatch(handle, req);
    if (req->op.coming != 0) xep_staging_stay(req);
    *req_p = req;
    return XEP_OK;
}

/* In the slot of the dispatch, by its turn; the handle has one operation at a time. */
xep_status_t xep_request_combine(xep_handle_t *handle, const xep_combine_args_t *args, int waits, xep_request_t **req_p)
{
    xep_request_t *req;
    xep_status_t status = take_room(handle->buffer, XEP_OP_COMBINE, NULL, &handle, &req);
    if (status != XEP_OK) return status;
    req->combine = *args;
    req->op.waits = (uint32_t)waits;
    if (handle->buffer->staging != NULL && (status = xep_staging_take(req)) != XEP_OK) return status;
    status = launch(req, begins_now(handle->buffer, args->after), args->after, NULL, args->timeout_ms);
    if (status != XEP_OK) return status;
    handle->has_input = args->x == NULL;
    handle->in_flight = req;
    if (req->op.coming != 0) xep_staging_stay(req);
    *req_p = req;
    return XEP_OK;
}

/* The handle goes on showing what it does, which another thread may be reading. */
xep_status_t xep_request_replay(xep_request_t *req)
{
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH;
    if (!has_turn(req->buffer, NULL) || (is_dispatch && xep_request_in_turn(req->buffer) != NULL))
        return xep_fail(XEP_ERR_BUSY, "an operation has to begin or to end before");
    xep_status_t status = launch(req, 1, NULL, NULL, is_dispatch ? req->dispatch.timeout_ms : req->combine.timeout_ms);
    if (status != XEP_OK) return status;
    req->handle->in_flight = req;
    return XEP_OK;
}

/* What is sent is the dispatch's. The rows that are shown are written over: there are none until it is done. */
xep_status_t xep_request_next(xep_handle_t *handle, const xep_combine_args_t *outputs, int32_t timeout_ms,
                              xep_request_t **req_p)
{
    xep_request_t *req;
    xep_status_t status = take_room(handle->buffer, XEP_OP_NEXT, NULL, &handle, &req);
    if (status != XEP_OK) return status;
    req->dispatch = handle->sent;
    req->combine = outputs != NULL ? *outputs : (xep_combine_args_t){0};
    req->op.combine = outputs != NULL ? &req->combine : NULL;
    const int now = has_turn(handle->buffer, NULL) && xep_request_in_turn(handle->buffer) == NULL;
    status = launch(req, now, NULL, NULL, timeout_ms);
    if (status != XEP_OK) return status;
    xep_handle_set_state(handle, XEP_HANDLE_SENT);
    handle->in_flight = req;
    *req_p = req;
    return XEP_OK;
}
