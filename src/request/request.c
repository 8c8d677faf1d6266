/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Requests live in a pool of the buffer: nothing is allocated while operations run. A request that the user has freed
 * stays until its operation is done; one with followers stays until they have seen how it ended.
 */
#include "request.h"

#include <stdio.h>
#include <string.h>

#include "buffer.h"

void xep_handle_set_state(xep_handle_t *handle, xep_handle_state_t state)
{
    atomic_store_explicit(&handle->state, state, memory_order_release);
}

/* The turn stays: it tells which slot was used last. */
void xep_handle_give_back(xep_handle_t *handle)
{
    xep_buffer_t *buffer = handle->buffer;
    if (buffer->shape.sends_in_place && buffer->mode != NULL)
        buffer->plugin.plugin->place->release(buffer->mode, handle->slot);
    xep_handle_set_state(handle, XEP_HANDLE_FREE);
    atomic_store_explicit(&handle->released, 0, memory_order_relaxed);
    handle->times_free++;
    handle->awaited = 0;
    handle->in_flight = NULL;
    handle->combine_input = NULL;
    handle->has_input = 0;
}

void xep_handle_give_back_if_unused(xep_handle_t *handle)
{
    const int released = atomic_load_explicit(&handle->released, memory_order_acquire);
    if (released && handle->in_flight == NULL && handle->awaited == 0) xep_handle_give_back(handle);
}

/* Scans the pool: a buffer has four requests for each slot. A dispatch has no turn before it begins. */
xep_request_t *xep_request_take(xep_op_kind_t kind, xep_handle_t *handle)
{
    xep_buffer_t *buffer = handle->buffer;
    const int is_combine = kind == XEP_OP_COMBINE;
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        /* a follower reads status and reason of the one it came after: not used again before it has */
        if (req->state != XEP_REQUEST_FREE || atomic_load_explicit(&req->followers, memory_order_acquire) != 0)
            continue;
        char *state = buffer->states + (size_t)i * buffer->plugin.plugin->state_bytes;
        memset(state, 0, buffer->plugin.plugin->state_bytes);
        req->op = (xep_op_t){.kind = kind,
                             .state = state,
                             .slot = handle->slot,
                             .cached_slot = XEP_NO_SLOT,
                             .turn = is_combine ? handle->turn : 0,
                             .dispatch = is_combine ? NULL : &req->dispatch,
                             .combine = is_combine ? &req->combine : NULL,
                             .recv = &handle->recv,
                             .late = xep_wait_times_late(&buffer->waits, i),
                             .with = buffer->everybody,
                             .heard = buffer->everybody};
        req->handle = handle;
        req->kept = 1;
        req->after = NULL;
        req->cached = NULL;
        req->test_deadline_ns = 0;
        req->peer_gone = 0;
        req->unsettled = 0;
        req->reason[0] = '\0';
        return req;
    }
    xep_fail(XEP_ERR_BUSY, "all %u requests are in use: free those that are done", buffer->nrequests);
    return NULL;
}

void xep_request_drop(xep_request_t *req)
{
    req->kept = 0;
    if (req->state == XEP_REQUEST_DONE) req->state = XEP_REQUEST_FREE;
    else atomic_store_explicit(&req->handle->abandoned, 1, memory_order_relaxed);
}

/*
 * The count keeps the followed request from being taken again, and awaited keeps the slot whose routing will be used.
 */
void xep_request_follow(xep_request_t *req, xep_request_t *after, xep_handle_t *cached)
{
    req->buffer->deferred += req->op.kind != XEP_OP_COMBINE;
    req->after = after;
    /* relaxed: only the follower's own buffer sees it; the release in unfollow orders */
    if (after != NULL) atomic_fetch_add_explicit(&after->followers, 1, memory_order_relaxed);
    req->cached = cached;
    if (cached != NULL) cached->awaited++;
}

void xep_request_unfollow(xep_request_t *req)
{
    req->buffer->deferred -= req->op.kind != XEP_OP_COMBINE;
    if (req->after != NULL) atomic_fetch_sub_explicit(&req->after->followers, 1, memory_order_release);
    req->after = NULL;
    if (req->cached == NULL) return;
    req->cached->awaited--;
    xep_handle_give_back_if_unused(req->cached);
    req->cached = NULL;
}

/*
 * Acquire pairs with the release in finish(): once the state says done, status and reason are there. A request that its
 * user freed keeps them, too, until it is taken again.
 */
xep_status_t xep_request_after_status(const xep_request_t *req)
{
    if (req->after == NULL) return XEP_OK;
    int state = atomic_load_explicit(&req->after->state, memory_order_acquire);
    return state == XEP_REQUEST_DONE || state == XEP_REQUEST_FREE ? req->after->status : XEP_INPROGRESS;
}

const xep_request_t *xep_request_in_turn(const xep_buffer_t *buffer)
{
    uint32_t left = buffer->active; /* mostly 0: then the pool is not looked at */
    for (uint32_t i = 0; left != 0 && i < buffer->nrequests; i++) {
        const xep_request_t *req = &buffer->requests[i];
        if (!xep_request_in_flight(req)) continue;
        left--;
        if (req->state != XEP_REQUEST_ACTIVE || req->op.kind == XEP_OP_COMBINE) continue;
        if (req->op.turn + buffer->shape.slots <= buffer->turn) return req;
    }
    return NULL;
}

const xep_request_t *xep_request_held_by(const xep_request_t *req)
{
    const xep_buffer_t *buffer = req->buffer;
    if (req->op.kind == XEP_OP_COMBINE) return NULL;
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        const xep_request_t *other = &buffer->requests[i];
        if (other->state == XEP_REQUEST_DEFERRED && other->op.kind != XEP_OP_COMBINE && other->op.epoch < req->op.epoch)
            return other;
    }
    return xep_request_in_turn(buffer);
}

int xep_request_in_flight(const xep_request_t *req)
{
    return req->state == XEP_REQUEST_DEFERRED || req->state == XEP_REQUEST_ACTIVE;
}

const char *xep_request_name(const xep_request_t *req)
{
    static const char *const names[] = {"dispatch", "combine", "next piece"};
    return names[req->op.kind];
}

xep_status_t xep_request_outcome(const xep_request_t *req)
{
    return req->status == XEP_OK ? XEP_OK : xep_fail(req->status, "%s", req->reason);
}

/* ---- calls that are refused ---- */

/* The count wraps, so it is the sign of the difference that says who is ahead. */
static int is_behind(const xep_buffer_t *buffer, uint32_t most)
{
    return (int32_t)(most - buffer->refused) > 0;
}

xep_status_t xep_request_keep_pace(const xep_buffer_t *buffer)
{
    if (!is_behind(buffer, buffer->refused_most)) return XEP_OK;
    return xep_fail(XEP_ERR_MISMATCH, "this call is refused on this rank, too: %s", buffer->refused_reason);
}

/* Who is told to try again, or to reset the buffer, is still in the same call. */
xep_status_t xep_request_count_refused(xep_buffer_t *buffer, xep_status_t status)
{
    if (status != XEP_OK && status != XEP_ERR_BUSY && status != XEP_ERR_BROKEN && status != XEP_ERR_ABORTED)
        buffer->refused++;
    return status;
}

void xep_request_note_pace(const xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    if (!is_behind(buffer, req->op.refused) || (int32_t)(req->op.refused - buffer->refused_most) < 0) return;
    /* so far ahead is no count: another rank is in a launch of a graph */
    if ((req->op.refused - buffer->refused) >> XEP_REFUSED_BITS != 0) return;
    buffer->refused_most = req->op.refused;
    snprintf(buffer->refused_reason, sizeof buffer->refused_reason, "%s", req->reason);
}
