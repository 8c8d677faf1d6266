/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every call that waits or tests takes all requests of the buffer further, not only its own: a peer may wait for
 * another one of them.
 */
#include "request.h"

#include <stddef.h>
#include <stdio.h>

#include "buffer.h"
#include "buffer_give_up.h"
#include "group_abort.h"
#include "members.h"
#include "packed_payloads.h"
#include "staging.h"

/*
 * A turn is used up by what has begun, so that a dispatch that the mode refuses leaves no gap. A next piece has one of
 * its own; its handle keeps that of the dispatch.
 */
xep_status_t xep_request_call_mode(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    const xep_plugin_t *plugin = buffer->plugin.plugin;
    xep_status_t status;
    if (buffer->before_mode != NULL && (status = buffer->before_mode(req)) != XEP_OK) return status;
    if (req->op.kind == XEP_OP_COMBINE) return plugin->combine(buffer->mode, &req->op);
    const int next = req->op.kind == XEP_OP_NEXT;
    req->op.turn = buffer->turn;
    status = next ? plugin->next(buffer->mode, &req->op) : plugin->dispatch(buffer->mode, &req->op);
    if (status != XEP_OK) return status;
    if (!next) req->handle->turn = buffer->turn;
    buffer->turn++;
    return XEP_OK;
}

/* The request it came after is done: with an error, this one never begins. */
static void begin_deferred(xep_request_t *req)
{
    xep_status_t status = xep_request_after_status(req);
    if (status == XEP_INPROGRESS) return;
    if (status != XEP_OK) {
        snprintf(req->reason, sizeof req->reason, "the operation it came after failed: %.900s", req->after->reason);
        xep_request_end(req, status);
        return;
    }
    if (xep_request_held_by(req) != NULL) return;
    req->state = XEP_REQUEST_ACTIVE;
    status = xep_request_call_mode(req);
    xep_request_unfollow(req);
    if (status != XEP_OK) {
        /* the epoch is used up: the peers wait for what will not come */
        xep_request_keep_reason(req);
        xep_request_break(req, status, req->reason);
    }
}

static xep_status_t progress(xep_request_t *req)
{
    return req->buffer->plugin.plugin->progress(req->buffer->mode, &req->op);
}

/* For a buffer that can go on without ranks, or that is in device memory. */
static xep_status_t progress_with_more(xep_request_t *req)
{
    xep_status_t status = req->unsettled ? xep_members_settle(req) : XEP_OK;
    if (status == XEP_OK && req->op.coming != 0) status = xep_staging_poll(req);
    if (status == XEP_OK) status = progress(req);
    if (status == XEP_INPROGRESS) return status;
    /* what was read of peers, and so an error in it, is right only if they have not left this rank out meanwhile */
    if (xep_buffer_check_in(req->buffer) != XEP_OK) return XEP_INPROGRESS;
    if (status == XEP_OK && req->op.out != NULL) {
        xep_members_show(req);
        if (req->op.kind == XEP_OP_DISPATCH) req->op.recv->out = req->op.out;
    }
    if (req->buffer->staging != NULL) status = xep_staging_show(req, status);
    if (status == XEP_OK && req->op.kind == XEP_OP_DISPATCH) xep_packed_show(req->handle);
    return status;
}

void xep_request_choose_progress(xep_buffer_t *buffer)
{
    buffer->progress = buffer->goes_on || buffer->device != NULL ? progress_with_more : progress;
}

/* A request that begins here is taken further in the same call. */
static void advance(xep_request_t *req)
{
    if (req->state == XEP_REQUEST_DEFERRED) begin_deferred(req);
    if (req->state != XEP_REQUEST_ACTIVE) return;
    xep_status_t status = req->buffer->progress(req);
    if (status != XEP_INPROGRESS) xep_request_end(req, status);
}

/* An abort is seen by the next call of any thread, as there is no other that could end what is in flight. */
void xep_request_advance_all(xep_buffer_t *buffer)
{
    int stands = !buffer->goes_on || xep_members_advance(buffer);
    if (buffer->active == 0) return;
    if (xep_group_usable(buffer->group) != XEP_OK) {
        xep_request_end_all(buffer, XEP_ERR_ABORTED, xep_last_error());
        return;
    }
    uint32_t left = stands ? buffer->active : 0; /* the pool is filled from its begin: mostly one look is enough */
    for (uint32_t i = 0; left != 0 && i < buffer->nrequests; i++) {
        if (!xep_request_in_flight(&buffer->requests[i])) continue;
        left--;
        advance(&buffer->requests[i]);
    }
}

xep_status_t xep_request_hope(xep_buffer_t *buffer, uint64_t epoch)
{
    xep_request_heed_marks(buffer);
    return buffer->broken ? xep_buffer_usable(buffer) : xep_buffer_check_given_up(buffer, epoch);
}

/* Not a wait: whoever is in the buffer makes its progress anyway, and may be this thread. */
void xep_request_run_task(xep_group_task_t *task)
{
    xep_buffer_t *buffer = (xep_buffer_t *)(void *)((char *)task - offsetof(xep_buffer_t, task));
    if (!xep_buffer_try_enter(buffer)) return;
    uint32_t before = buffer->active;
    xep_request_advance_all(buffer);
    xep_request_heed_marks(buffer);
    uint32_t ended = before - buffer->active;
    xep_buffer_leave(buffer);
    if (ended != 0) xep_progress_raise_event(buffer->group->progress_thread);
}
