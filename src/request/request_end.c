/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Two kinds of ends. Agreed ones, which every rank has for the same operation and after which nothing is half done: the
 * buffer goes on. All others break the buffer: what the peers have of our operations is not known any more.
 */
#include "request.h"

#include <stdio.h>

#include "announce.h"
#include "buffer_give_up.h"
#include "log.h"
#include "members.h"

static void set_reason(xep_request_t *req, const char *reason)
{
    snprintf(req->reason, sizeof req->reason, "%s", reason);
}

void xep_request_keep_reason(xep_request_t *req)
{
    if (req->reason[0] == '\0') set_reason(req, xep_last_error());
}

/* Where the caller wants its waits, or NULL: what ends an operation from outside may come after the end of its
 * arguments. */
static uint64_t *wanted_waits(const xep_request_t *req)
{
    if (req->status == XEP_ERR_BROKEN || req->status == XEP_ERR_ABORTED) return NULL;
    return req->op.kind == XEP_OP_DISPATCH ? req->dispatch.wait_ns : req->combine.wait_ns;
}

/* Errors that every rank gets and after which nothing is half done: the buffer can go on. */
static int is_agreed(xep_status_t status)
{
    return status == XEP_OK || status == XEP_ERR_OVERFLOW || status == XEP_ERR_MISMATCH || status == XEP_ERR_INVALID;
}

/* A rank with any rows has some in the first piece: so the first outputs say whether there are weights. */
static void note_outputs(xep_handle_t *handle, const xep_combine_args_t *outputs)
{
    xep_outputs_t *kind = &handle->outputs;
    if (kind->state != XEP_OUTPUTS_UNKNOWN) return;
    kind->state = outputs == NULL ? XEP_OUTPUTS_NONE : XEP_OUTPUTS_TAKEN;
    if (outputs == NULL) return;
    kind->dtype = outputs->dtype;
    kind->hidden = outputs->hidden;
    kind->weighted = outputs->topk_weights != NULL;
}

/*
 * After an agreed error the piece that was shown is shown again; after any other the buffer is broken, and what the
 * slot has is not known.
 */
static void end_piece(const xep_request_t *req)
{
    xep_handle_t *handle = req->handle;
    xep_handle_set_state(handle, is_agreed(req->status) ? XEP_HANDLE_READY : XEP_HANDLE_FAILED);
    if (req->status == XEP_OK) note_outputs(handle, req->op.combine);
}

/* The user may have released the handle while the operation was in flight: then this is where its slot becomes free. */
static void release_handle(xep_request_t *req)
{
    xep_handle_t *handle = req->handle;
    handle->in_flight = NULL;
    atomic_store_explicit(&handle->abandoned, 0, memory_order_relaxed);
    if (req->op.kind == XEP_OP_DISPATCH)
        xep_handle_set_state(handle, req->status == XEP_OK ? XEP_HANDLE_READY : XEP_HANDLE_FAILED);
    else if (req->op.kind == XEP_OP_COMBINE) handle->combined |= req->status == XEP_OK;
    else end_piece(req);
    xep_handle_give_back_if_unused(handle);
}

/* The state comes last: a request of another buffer that follows this one reads status and reason behind it. */
static void finish(xep_request_t *req, xep_status_t status)
{
    req->status = status;
    if (req->begin_ns != 0) xep_request_trace_end(req);
    xep_wait_times_add(&req->buffer->waits, &req->op, status, wanted_waits(req));
    req->buffer->active--;
    if (req->state == XEP_REQUEST_DEFERRED) xep_request_unfollow(req);
    atomic_fetch_sub_explicit(&req->buffer->group->active, 1, memory_order_relaxed);
    release_handle(req);
    /* releases status and reason to a request of another buffer that comes after this one */
    atomic_store_explicit(&req->state, req->kept ? XEP_REQUEST_DONE : XEP_REQUEST_FREE, memory_order_release);
}

/* The first error is the one that the user is told until the reset; those that follow from it would hide the cause. */
void xep_request_end_all(xep_buffer_t *buffer, xep_status_t status, const char *reason)
{
    if (status != XEP_ERR_ABORTED && !buffer->broken) {
        buffer->broken = 1;
        snprintf(buffer->broken_reason, sizeof buffer->broken_reason, "%s", reason);
    }
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        if (!xep_request_in_flight(req)) continue;
        set_reason(req, reason);
        finish(req, status);
    }
}

/* The first operation that the others will wait for in vain: all that is in flight ends with one that breaks. */
static uint64_t first_in_flight(const xep_buffer_t *buffer)
{
    uint64_t first = buffer->epoch + 1;
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        const xep_request_t *req = &buffer->requests[i];
        if (xep_request_in_flight(req) && req->op.epoch < first) first = req->op.epoch;
    }
    return first;
}

void xep_request_give_up_all(xep_buffer_t *buffer, xep_status_t why, const char *reason)
{
    xep_buffer_give_up(buffer, first_in_flight(buffer), why);
    xep_request_end_all(buffer, XEP_ERR_BROKEN, reason);
}

void xep_request_abort_all(xep_buffer_t *buffer)
{
    xep_request_give_up_all(buffer, XEP_ERR_BROKEN, "this rank called xep_buffer_abort()");
}

/*
 * The others end too, with XEP_ERR_BROKEN: the peers count on the bytes of an operation that will not come, so none of
 * the later ones can be told from it any more. All begins anew with a reset, which all ranks take part in.
 */
static void break_all(xep_request_t *req, xep_status_t status, const char *text)
{
    set_reason(req, text);
    xep_buffer_give_up(req->buffer, first_in_flight(req->buffer), status);
    finish(req, status);
    xep_request_end_all(req->buffer, XEP_ERR_BROKEN, text);
}

void xep_request_break(xep_request_t *req, xep_status_t status, const char *reason)
{
    char text[XEP_REASON_BYTES]; /* reason may be the own one */
    snprintf(text, sizeof text, "%s", reason);
    xep_log(XEP_LOG_ERROR, "%s %llu failed: %s", xep_request_name(req), (unsigned long long)req->op.epoch, text);
    break_all(req, status, text);
}

void xep_request_end(xep_request_t *req, xep_status_t status)
{
    if (status != XEP_OK) {
        xep_request_keep_reason(req);
        if (req->buffer->announce != NULL) xep_announce_failed(req->buffer, req->op.epoch);
    }
    if (status == XEP_ERR_MISMATCH) xep_request_note_pace(req);
    if (req->buffer->members != NULL) xep_members_note_decision(req->buffer, &req->op, status);
    if (is_agreed(status)) finish(req, status);
    else xep_request_break(req, status, req->reason);
}

/* Of an operation that has begun, the mode knows; of one that has not, which other one keeps it from that. */
static void explain_wait(const xep_request_t *req, char *text, size_t bytes)
{
    const xep_buffer_t *buffer = req->buffer;
    const int follows = xep_request_after_status(req) == XEP_INPROGRESS;
    const xep_request_t *other = follows ? req->after : xep_request_held_by(req);
    if (buffer->members != NULL && buffer->members->agreement.open)
        snprintf(text, bytes, "waits until the ranks agree on who is out");
    else if (req->state == XEP_REQUEST_ACTIVE) buffer->plugin.plugin->explain(buffer->mode, &req->op, text, bytes);
    else if (other != NULL)
        snprintf(text, bytes, "waits for %s %llu of mode %s, %s", xep_request_name(other),
                 (unsigned long long)other->op.epoch, other->buffer->plugin.plugin->name,
                 follows                                ? "which it comes after"
                 : other->state == XEP_REQUEST_DEFERRED ? "which was called before it and has not begun"
                                                        : "which is still in flight");
}

void xep_request_explain(const xep_request_t *req, const char *before, char *text, size_t bytes)
{
    char waits_for[512] = "";
    xep_buffer_t *buffer = req->buffer;
    explain_wait(req, waits_for, sizeof waits_for);
    snprintf(text, bytes, "%s %llu of mode %s%s%s", xep_request_name(req), (unsigned long long)req->op.epoch,
             buffer->plugin.plugin->name, before, waits_for);
}

/* One that has not begun waits for nobody in particular. */
void xep_request_account(const xep_request_t *req, xep_account_t *account)
{
    const xep_buffer_t *buffer = req->buffer;
    const xep_late_t *late = &req->op.late;
    static const xep_waits_kind_t kinds[] = {XEP_WAITS_DISPATCH, XEP_WAITS_COMBINE, XEP_WAITS_NEXT};
    *account = (xep_account_t){.kind = kinds[req->op.kind], .number = req->op.epoch, .buffer = buffer->number};
    snprintf(account->mode, sizeof account->mode, "%s", buffer->plugin.plugin->name);
    if (req->state != XEP_REQUEST_ACTIVE) return;
    account->opens = (uint32_t)late->opens;
    snprintf(account->what, sizeof account->what, "%s", late->what == NULL ? "words" : late->what);
    for (uint32_t i = 0; i < late->count; i++) xep_account_add_late(account, late->ranks[i]);
}

/* The sentence is all that is left of an operation that did not end: which one, why, and whom it waited for. */
void xep_request_expire(xep_request_t *req, xep_status_t status, const char *why)
{
    char before[512], text[XEP_REASON_BYTES];
    snprintf(before, sizeof before, ": %.400s; ", why);
    xep_request_explain(req, before, text, sizeof text);
    xep_log(XEP_LOG_ERROR, "%s", text);
    break_all(req, status, text);
}

/* ---- what calls have left that did not wait for the thread in the buffer ---- */

static void heed(xep_buffer_t *buffer)
{
    for (uint32_t s = 0; s < buffer->shape.slots; s++) xep_handle_give_back_if_unused(&buffer->handles[s]);
    if (atomic_exchange_explicit(&buffer->abort_called, 0, memory_order_acquire)) xep_request_abort_all(buffer);
}

void xep_request_heed_marks(xep_buffer_t *buffer)
{
    if (atomic_load_explicit(&buffer->entered, memory_order_relaxed) & XEP_ENTERED_MARKED) heed(buffer);
}

void xep_request_take_over(xep_buffer_t *buffer)
{
    heed(buffer);
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        if (atomic_exchange_explicit(&req->freed, 0, memory_order_acquire)) xep_request_drop(req);
    }
}
