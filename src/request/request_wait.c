/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Time counts from the first look that found nothing: an operation that is done at the first look costs no look at the
 * clock.
 */
#include "request.h"

#include <stdio.h>

#include "announce.h"
#include "backoff.h"
#include "buffer_give_up.h"
#include "group_account.h"
#include "group_wait.h"
#include "members.h"
#include "packed_payloads.h"
#include "staging.h"

/* A look calls the mode, which asks the wire by itself; the group's progress is for what is not of this buffer. */
enum { PROGRESS_EVERY = 16, TEST_PEERS_NS = 100 * 1000 * 1000, DEVICE_SPARE_NS = 1000 * 1000 * 1000 };

/* ---- a request ---- */

static int is_done(const xep_request_t *req)
{
    return req->state == XEP_REQUEST_DONE;
}

/* Also of one that was freed, which is done and free at once. */
static int has_ended(const xep_request_t *req)
{
    return !xep_request_in_flight(req);
}

static int is_counted(const xep_request_t *req)
{
    return is_done(req) || (req->op.kind == XEP_OP_DISPATCH && req->op.recv->size != 0);
}

/* Each look takes all of the buffer further, then asks for this one. */
static xep_status_t look_at_request(void *arg)
{
    xep_request_t *req = arg;
    xep_request_advance_all(req->buffer);
    if (req->reached(req)) return XEP_OK;
    if (xep_wait_times_is_new(&req->op)) xep_wait_times_begin(&req->op, xep_clock_ns());
    /* what it comes after may be of another buffer */
    if (req->state == XEP_REQUEST_DEFERRED) xep_group_progress(req->buffer->group);
    return XEP_INPROGRESS;
}

/* With one operation in flight alone nothing else is to be done meanwhile. */
static uint32_t late_of_request(void *arg)
{
    const xep_request_t *req = arg;
    const xep_late_t *late = &req->op.late;
    if (atomic_load_explicit(&req->buffer->group->active, memory_order_relaxed) != 1) return XEP_NO_RANK;
    return late->count == 0 ? XEP_NO_RANK : late->ranks[late->count - 1];
}

static void explain_request(void *arg, char *text, size_t bytes)
{
    xep_request_explain(arg, "; ", text, bytes);
}

static void account_for_request(void *arg, xep_account_t *account)
{
    xep_request_account(arg, account);
}

static xep_status_t hope_for_request(void *arg)
{
    xep_request_t *req = arg;
    if (req->buffer->announce != NULL) xep_announce_push(req->buffer);
    xep_status_t status = xep_request_hope(req->buffer, req->op.epoch);
    req->given_up = status != XEP_INPROGRESS;
    return status;
}

/*
 * The deadline of a wait that begins now. A kernel's counts from when it begins, which its stream decides, and a kernel
 * can say who is late: so the host gives up after it.
 */
static uint64_t deadline_of(const xep_request_t *req, uint64_t now)
{
    const xep_buffer_t *buffer = req->buffer;
    uint64_t deadline = xep_deadline_from(now, req->op.timeout_ms);
    if (buffer->device == NULL || buffer->staging != NULL || deadline == UINT64_MAX) return deadline;
    return deadline + DEVICE_SPARE_NS;
}

/* A lost device ends nothing: then it is the cause, and not the rank that was waited for. */
static xep_status_t blame_device(const xep_buffer_t *buffer, xep_status_t status)
{
    if (status == XEP_OK || status == XEP_ERR_ABORTED || buffer->device == NULL) return status;
    const xep_status_t works = buffer->device->ops->works(buffer->device);
    return works == XEP_OK ? status : works;
}

/* The first look found it in flight: the deadline and the waits for late ranks count from here, by one look at the
 * clock. */
static void keep_waiting(xep_request_t *req)
{
    uint64_t now = xep_clock_ns();
    xep_wait_t wait = {.look = look_at_request,
                       .arg = req,
                       .deadline_ns = deadline_of(req, now),
                       .progress_every = PROGRESS_EVERY,
                       .late = late_of_request,
                       .explain = explain_request,
                       .account = account_for_request,
                       .hope = hope_for_request};
    xep_account_t account;
    req->given_up = 0;
    xep_wait_times_begin(&req->op, now);
    xep_status_t status = xep_members_wait(req->buffer, &wait);
    if (!xep_request_in_flight(req)) status = XEP_OK; /* an abort that was heeded has ended it in that very round */
    if (status == XEP_ERR_TIMEOUT && !req->given_up) {
        xep_request_account(req, &account);
        status = xep_group_ask(req->buffer->group, &account, req->op.timeout_ms, status);
    }
    status = blame_device(req->buffer, status);
    if (status == XEP_ERR_ABORTED) xep_request_advance_all(req->buffer); /* which ends it */
    else if (status != XEP_OK) xep_request_expire(req, status, xep_last_error());
    if (xep_trace_is_on()) xep_request_trace_waits(req);
    xep_wait_times_pause(&req->op);
}

/* The outcome where it is done, else XEP_OK. */
static xep_status_t wait_until(xep_request_t *req, int (*reached)(const xep_request_t *req))
{
    req->reached = reached;
    xep_request_advance_all(req->buffer);
    if (!reached(req)) keep_waiting(req);
    return is_done(req) ? xep_request_outcome(req) : XEP_OK;
}

xep_status_t xep_request_finish(xep_request_t *req)
{
    return wait_until(req, is_done);
}

/* How it ends is for its handle to tell, or, where the buffer is broken by that, for the buffer. */
xep_status_t xep_request_settle(xep_handle_t *handle)
{
    if (handle->in_flight == NULL) return XEP_OK;
    if (handle->in_flight->kept)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: it has an operation in flight (wait for its request first)");
    (void)wait_until(handle->in_flight, has_ended);
    return xep_buffer_usable(handle->buffer);
}

xep_status_t xep_request_finish_counts(xep_request_t *req)
{
    xep_status_t status = wait_until(req, is_counted);
    if (is_done(req)) return status;
    xep_staging_show_counts(req);
    xep_packed_show(req->handle);
    xep_handle_set_state(req->handle, XEP_HANDLE_COUNTED);
    return status;
}

/* A test does not wait, and so gathers no answers. */
static void give_up_test(xep_request_t *req)
{
    xep_account_t account;
    xep_request_account(req, &account);
    xep_group_tell(req->buffer->group, &account);
    xep_request_expire(req, XEP_ERR_TIMEOUT, "deadline passed since the first test");
}

/* What a wait does in time: deadline, and a look at the peers now and then. */
static void check_test(xep_request_t *req)
{
    uint64_t now = xep_clock_ns();
    if (req->test_deadline_ns != 0) xep_watch_poll(&req->test_watch, now);
    if (req->test_deadline_ns == 0) {
        req->test_deadline_ns = deadline_of(req, now);
        req->test_peers_ns = now + TEST_PEERS_NS;
        xep_watch_begin(&req->test_watch, explain_request, req, req->test_deadline_ns);
        xep_watch_end(&req->test_watch); /* a test is no wait: the program is elsewhere in between */
    } else if (now >= req->test_deadline_ns) {
        if (req->buffer->members == NULL || xep_members_doubt(req->buffer, &req->test_deadline_ns) != XEP_OK)
            give_up_test(req);
    } else if (now >= req->test_peers_ns) {
        int masks = req->buffer->goes_on, gone = xep_group_check_peers(req->buffer->group, masks) != XEP_OK;
        /* what it wrote last may still be on its way: one more round */
        if (gone && req->peer_gone && !(masks && xep_members_bury(req->buffer) == XEP_OK))
            xep_request_expire(req, XEP_ERR_PEER, xep_last_error());
        req->peer_gone = gone;
        xep_group_answer(req->buffer->group, account_for_request, req);
        if (req->buffer->announce != NULL) xep_announce_push(req->buffer);
        xep_status_t status = xep_buffer_check_given_up(req->buffer, req->op.epoch);
        if (!is_done(req) && status != XEP_INPROGRESS) xep_request_expire(req, status, xep_last_error());
        req->test_peers_ns = now + TEST_PEERS_NS;
    }
}

/* A test that finds nothing makes the progress that a wait would have made in a round. */
xep_status_t xep_request_poll(xep_request_t *req)
{
    xep_request_advance_all(req->buffer);
    if (!has_ended(req)) {
        xep_group_progress(req->buffer->group);
        check_test(req);
    }
    return is_done(req) ? xep_request_outcome(req) : XEP_INPROGRESS;
}

/* ---- memory that peers still read ---- */

typedef struct memory_look {
    xep_buffer_t *buffer;
    const xep_handle_t *handle; /* whose input it is; NULL: send memory */
    void **base_p;
    size_t *stride_p;
} memory_look_t;

/* Whether rows of that memory are of a dispatch that has not begun: the mode has not heard of it yet. */
static int has_rows_to_take(const xep_buffer_t *buffer)
{
    for (uint32_t i = 0; i < buffer->nrequests && buffer->deferred != 0; i++) {
        const xep_request_t *req = &buffer->requests[i];
        if (req->state == XEP_REQUEST_DEFERRED && req->op.kind == XEP_OP_DISPATCH &&
            (req->dispatch.flags & XEP_DISPATCH_IN_PLACE) != 0 &&
            (uintptr_t)req->dispatch.x - (uintptr_t)buffer->heap->base < buffer->heap->bytes)
            return 1;
    }
    return 0;
}

static xep_status_t ask_mode(const memory_look_t *look)
{
    const xep_buffer_t *buffer = look->buffer;
    const xep_plugin_t *plugin = buffer->plugin.plugin;
    if (look->handle != NULL) return plugin->input(buffer->mode, look->handle->slot, look->base_p, look->stride_p);
    if (has_rows_to_take(buffer)) return XEP_INPROGRESS;
    return plugin->place->memory(buffer->mode, look->base_p, look->stride_p);
}

/* Their reads end by operations of this buffer, or they wait for one of its: so these must go on. */
static xep_status_t look_at_memory(void *arg)
{
    const memory_look_t *look = arg;
    xep_buffer_t *buffer = look->buffer;
    xep_status_t status = ask_mode(look);
    if (status != XEP_INPROGRESS) return status;
    xep_request_advance_all(buffer);
    status = xep_buffer_usable(buffer);
    return status == XEP_OK ? XEP_INPROGRESS : status;
}

/* What peers still read they read in operations that were called before the next one. */
static xep_status_t hope_for_memory(void *arg)
{
    xep_buffer_t *buffer = ((const memory_look_t *)arg)->buffer;
    return xep_request_hope(buffer, buffer->epoch + 1);
}

static void explain_memory(void *arg, char *text, size_t bytes)
{
    const memory_look_t *look = arg;
    const xep_plugin_t *plugin = look->buffer->plugin.plugin;
    if (look->handle == NULL) {
        snprintf(text, bytes, "the send memory of mode %s: %s", plugin->name,
                 has_rows_to_take(look->buffer) ? "a dispatch of its rows has not begun"
                                                : "peers have not released handles with its rows");
        return;
    }
    xep_op_t op = {.kind = XEP_OP_COMBINE, .slot = look->handle->slot};
    char who[200] = "";
    plugin->explain(look->buffer->mode, &op, who, sizeof who);
    snprintf(text, bytes, "the combine input of slot %u of mode %s, whose last rows are still read: %s",
             look->handle->slot, plugin->name, who);
}

/* A buffer that goes on without ranks has no send memory. */
xep_status_t xep_request_wait_memory(xep_buffer_t *buffer, const xep_handle_t *handle, void **base_p, size_t *stride_p)
{
    memory_look_t look = {.buffer = buffer, .handle = handle, .base_p = base_p, .stride_p = stride_p};
    xep_wait_t wait = {.look = look_at_memory,
                       .arg = &look,
                       .deadline_ns = xep_deadline(buffer->timeout_ms),
                       .hope = hope_for_memory,
                       .explain = explain_memory};
    xep_status_t status =
        buffer->goes_on ? xep_members_wait_input(buffer, handle->slot, &wait) : xep_group_wait(buffer->group, &wait);
    return status == XEP_ERR_TIMEOUT ? xep_group_explain(&wait, status) : status;
}

/* ---- the order of operations of several buffers on a device ---- */

/*
 * An operation on a device is enqueued in parts: in one go, or the second one when a call looks at its buffer. The
 * buffer's mark is behind all of them. Where the host takes part it has to end first; how is for its own request to
 * tell.
 */
xep_status_t xep_request_order_stream(xep_request_t *req, void *stream)
{
    xep_buffer_t *buffer = req->buffer;
    xep_buffer_enter(buffer);
    if (buffer->staging == NULL) xep_request_advance_all(buffer);
    else if (req->kept) (void)xep_request_finish(req);
    xep_status_t status = buffer->device->ops->follow(buffer->device, stream);
    xep_buffer_leave(buffer);
    return status;
}
