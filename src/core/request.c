/* SPDX-License-Identifier: BSD-3-Clause */

#include "request.h"

#include <stdio.h>
#include <string.h>

#include "cpu.h"
#include "lateness.h"
#include "layout.h"
#include "log.h"

enum { TEST_PEERS_NS = 100 * 1000 * 1000 };

static const char *op_name(const xep_request_t *req)
{
    return req->op.kind == XEP_OP_DISPATCH ? "dispatch" : "combine";
}

xep_status_t xep_request_admit(const xep_buffer_t *buffer)
{
    xep_status_t status = xep_group_usable(buffer->group);
    if (status == XEP_OK && buffer->broken)
        status = xep_fail(XEP_ERR_BROKEN, "the buffer needs xep_buffer_reset() after: %s", buffer->broken_reason);
    return status;
}

/* ---- the pool ---- */

static xep_request_t *take(xep_buffer_t *buffer)
{
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        if (req->state != XEP_REQUEST_FREE || atomic_load_explicit(&req->followers, memory_order_acquire) != 0) continue;
        char *state = buffer->states + (size_t)i * buffer->plugin.plugin->op_size;
        memset(state, 0, buffer->plugin.plugin->op_size);
        req->op = (xep_op_t){.state = state, .cached_slot = XEP_NO_SLOT, .late = xep_lateness_of(buffer, i)};
        req->kept = 1;
        req->after = NULL;
        req->cached = NULL;
        req->test_deadline_ns = 0;
        req->peer_gone = 0;
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
}

/* ---- what a request waits for ---- */

/* args->after may still be in flight; the routing of args->cached is looked at only when it is done */
static void follow(xep_request_t *req, xep_request_t *after, xep_handle_t *cached)
{
    req->after = after;
    atomic_fetch_add_explicit(&after->followers, 1, memory_order_relaxed);
    req->cached = cached;
    if (cached != NULL) cached->awaited++;
}

static void unfollow(xep_request_t *req)
{
    if (req->after != NULL) atomic_fetch_sub_explicit(&req->after->followers, 1, memory_order_release);
    req->after = NULL;
    if (req->cached == NULL) return;
    req->cached->awaited--;
    xep_handle_settle(req->cached);
    req->cached = NULL;
}

/* ---- ends ---- */

static void settle_handle(xep_request_t *req)
{
    xep_handle_t *handle = req->handle;
    handle->in_flight = NULL;
    if (req->op.kind == XEP_OP_DISPATCH)
        handle->state = req->status == XEP_OK ? XEP_HANDLE_READY : XEP_HANDLE_FAILED;
    xep_handle_settle(handle);
}

static void end(xep_request_t *req, xep_status_t status)
{
    req->status = status;
    xep_lateness_book(req);
    req->buffer->active--;
    atomic_fetch_sub_explicit(&req->buffer->group->active, 1, memory_order_relaxed);
    unfollow(req);
    settle_handle(req);
    /* releases status and reason to a request of another buffer that comes after this one */
    atomic_store_explicit(&req->state, req->kept ? XEP_REQUEST_DONE : XEP_REQUEST_FREE, memory_order_release);
}

static void set_reason(xep_request_t *req, const char *reason)
{
    snprintf(req->reason, sizeof req->reason, "%s", reason);
}

void xep_request_end_all(xep_buffer_t *buffer, xep_status_t status, const char *reason)
{
    if (status != XEP_ERR_ABORTED && !buffer->broken) {
        buffer->broken = 1;
        snprintf(buffer->broken_reason, sizeof buffer->broken_reason, "%s", reason);
    }
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        xep_request_t *req = &buffer->requests[i];
        if (req->state != XEP_REQUEST_WAITING && req->state != XEP_REQUEST_ACTIVE) continue;
        set_reason(req, reason);
        end(req, status);
    }
}

/* An error that every rank gets and after which nothing is half done. */
static int is_agreed(xep_status_t status)
{
    return status == XEP_OK || status == XEP_ERR_OVERFLOW || status == XEP_ERR_MISMATCH;
}

/* One operation cannot be ended, so what the peers have of ours is not known any more: all end. */
static void break_buffer(xep_request_t *req, xep_status_t status, const char *reason)
{
    xep_buffer_t *buffer = req->buffer;
    char text[XEP_REASON_BYTES];
    snprintf(text, sizeof text, "%.*s", XEP_REASON_BYTES - 1, reason);
    xep_log(XEP_LOG_ERROR, "%s %llu failed: %s", op_name(req), (unsigned long long)req->op.epoch, text);
    set_reason(req, text);
    end(req, status);
    xep_request_end_all(buffer, XEP_ERR_BROKEN, text);
}

/* A mode puts its sentence into req->reason, by env->fail; where it passes on an error of the wire, the
 * wire has just told this thread the reason. */
static void take_reason(xep_request_t *req)
{
    if (req->reason[0] == '\0') set_reason(req, xep_last_error());
}

static void conclude(xep_request_t *req, xep_status_t status)
{
    if (status == XEP_OK) {
        end(req, status);
        return;
    }
    take_reason(req);
    if (is_agreed(status)) {
        end(req, status);
    } else {
        char text[XEP_REASON_BYTES];
        memcpy(text, req->reason, sizeof text);
        break_buffer(req, status, text);
    }
}

static void expire(xep_request_t *req, xep_status_t status, const char *why)
{
    char waits_for[512] = "", text[XEP_REASON_BYTES];
    xep_buffer_t *buffer = req->buffer;
    if (req->state == XEP_REQUEST_ACTIVE)
        buffer->plugin.plugin->explain(buffer->mode, &req->op, waits_for, sizeof waits_for);
    else
        snprintf(waits_for, sizeof waits_for, "waits for the end of the %s %llu of mode %s that it comes after", op_name(req->after),
                 (unsigned long long)req->after->op.epoch, req->after->buffer->plugin.plugin->name);
    snprintf(text, sizeof text, "%s %llu of mode %s: %.400s; %s", op_name(req), (unsigned long long)req->op.epoch,
             buffer->plugin.plugin->name, why, waits_for);
    break_buffer(req, status, text);
}

/* ---- begin and advance ---- */

static xep_status_t call_mode(xep_request_t *req)
{
    const xep_plugin_t *plugin = req->buffer->plugin.plugin;
    return req->op.kind == XEP_OP_DISPATCH ? plugin->dispatch(req->buffer->mode, &req->op)
                                           : plugin->combine(req->buffer->mode, &req->op);
}

/* XEP_INPROGRESS, or how the request it comes after ended, which may have been freed meanwhile. */
static xep_status_t after_status(const xep_request_t *req)
{
    int state = atomic_load_explicit(&req->after->state, memory_order_acquire);
    return state == XEP_REQUEST_DONE || state == XEP_REQUEST_FREE ? req->after->status : XEP_INPROGRESS;
}

/* The request it came after is done: with an error, this one never begins. */
static void begin_late(xep_request_t *req)
{
    xep_status_t status = after_status(req);
    char text[XEP_REASON_BYTES];
    if (status != XEP_OK) {
        snprintf(text, sizeof text, "the operation it came after failed: %.900s", req->after->reason);
        set_reason(req, text);
        conclude(req, status);
        return;
    }
    req->state = XEP_REQUEST_ACTIVE;
    status = call_mode(req);
    unfollow(req);
    if (status != XEP_OK) {
        /* the epoch is used up: the peers wait for what will not come */
        take_reason(req);
        snprintf(text, sizeof text, "%.*s", XEP_REASON_BYTES - 1, req->reason);
        break_buffer(req, status, text);
    }
}

static void advance(xep_request_t *req)
{
    xep_status_t status;
    if (req->state == XEP_REQUEST_WAITING && after_status(req) != XEP_INPROGRESS) begin_late(req);
    if (req->state != XEP_REQUEST_ACTIVE) return;
    status = req->buffer->plugin.plugin->progress(req->buffer->mode, &req->op);
    if (status != XEP_INPROGRESS) conclude(req, status);
}

void xep_request_advance_all(xep_buffer_t *buffer)
{
    if (buffer->active == 0) return;
    if (atomic_load_explicit(&buffer->group->aborted, memory_order_relaxed)) {
        xep_request_end_all(buffer, XEP_ERR_ABORTED, "the group was aborted");
        return;
    }
    for (uint32_t i = 0; i < buffer->nrequests; i++) advance(&buffer->requests[i]);
}

void xep_buffer_try_progress(xep_buffer_t *buffer)
{
    if (atomic_flag_test_and_set_explicit(&buffer->entered, memory_order_acquire)) return;
    xep_request_advance_all(buffer);
    xep_buffer_leave(buffer);
}

/* takes the request into the buffer's books */
static xep_status_t launch(xep_request_t *req, xep_request_t *after, xep_handle_t *cached, int32_t timeout_ms)
{
    xep_buffer_t *buffer = req->buffer;
    xep_status_t status = XEP_OK;
    req->timeout_ms = timeout_ms == 0 ? buffer->timeout_ms : timeout_ms;
    req->op.epoch = buffer->epoch + 1;
    req->status = XEP_INPROGRESS;
    if (after != NULL) {
        req->state = XEP_REQUEST_WAITING;
        follow(req, after, cached);
    } else {
        req->state = XEP_REQUEST_ACTIVE;
        status = call_mode(req);
        if (status != XEP_OK) {
            req->state = XEP_REQUEST_FREE;
            take_reason(req);
            return xep_fail(status, "%s", req->reason);
        }
    }
    buffer->epoch++;
    buffer->active++;
    atomic_fetch_add_explicit(&buffer->group->active, 1, memory_order_relaxed);
    return XEP_OK;
}

/* A mode counts on it that turn n begins only after turn n - slots is complete here. */
static xep_status_t check_turn(const xep_buffer_t *buffer)
{
    for (uint32_t i = 0; i < buffer->nrequests; i++) {
        const xep_request_t *req = &buffer->requests[i];
        int in_flight = req->state == XEP_REQUEST_WAITING || req->state == XEP_REQUEST_ACTIVE;
        if (in_flight && req->op.kind == XEP_OP_DISPATCH && req->op.turn + buffer->shape.slots <= buffer->turn)
            return xep_fail(XEP_ERR_BUSY, "dispatch %llu is still in flight, %u dispatches later",
                            (unsigned long long)req->op.epoch, buffer->shape.slots);
    }
    return XEP_OK;
}

/* A dispatch that begins later cannot be refused then, so its indices are looked at now. */
static xep_status_t check_indices(const xep_buffer_t *buffer, const xep_dispatch_args_t *args)
{
    xep_layout_args_t layout = {.size = sizeof layout,
                                .tokens = args->tokens,
                                .topk = args->topk,
                                .experts = buffer->shape.experts,
                                .nranks = buffer->shape.nranks,
                                .ranks_per_node = buffer->shape.nranks,
                                .topk_idx = args->topk_idx,
                                .topk_idx_stride = args->topk_idx_stride,
                                .topk_idx_dtype = args->topk_idx_dtype};
    xep_layout_t nothing = {.size = sizeof nothing};
    if (args->after == NULL || args->cached != NULL) return XEP_OK;
    return xep_layout_compute(&layout, &nothing);
}

static void note_dispatch(xep_handle_t *handle, xep_request_t *req)
{
    handle->state = XEP_HANDLE_SENT;
    handle->in_flight = req;
    handle->turn = req->op.turn;
    handle->tokens = req->dispatch.tokens;
    handle->topk = req->dispatch.topk;
    handle->topk_idx_dtype = req->dispatch.topk_idx_dtype;
    req->buffer->turn++;
}

static xep_status_t begin_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_request_t **req_p)
{
    xep_request_t *req;
    xep_handle_t *handle;
    xep_status_t status = check_turn(buffer);
    if (status == XEP_OK) status = check_indices(buffer, args);
    if (status != XEP_OK) return status;
    handle = xep_handle_take(buffer);
    if (handle == NULL)
        return xep_fail(XEP_ERR_BUSY, "all %u slots hold a handle that was not released", buffer->shape.slots);
    req = take(buffer);
    if (req == NULL) return XEP_ERR_BUSY;
    req->dispatch = *args;
    req->handle = handle;
    req->op.kind = XEP_OP_DISPATCH;
    req->op.slot = handle->slot;
    req->op.cached_slot = args->cached == NULL ? XEP_NO_SLOT : args->cached->slot;
    req->op.turn = buffer->turn;
    req->op.dispatch = &req->dispatch;
    req->op.recv = &handle->recv;
    handle->recv = (xep_recv_t){0}; /* that of the slot's last dispatch until now */
    status = launch(req, args->after, args->cached, args->timeout_ms);
    if (status != XEP_OK) return status;
    note_dispatch(handle, req);
    *req_p = req;
    return XEP_OK;
}

static xep_status_t begin_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p)
{
    xep_request_t *req = take(handle->buffer);
    xep_status_t status;
    if (req == NULL) return XEP_ERR_BUSY;
    req->combine = *args;
    req->handle = handle;
    req->op.kind = XEP_OP_COMBINE;
    req->op.slot = handle->slot;
    req->op.turn = handle->turn;
    req->op.combine = &req->combine;
    req->op.recv = &handle->recv;
    status = launch(req, args->after, NULL, args->timeout_ms);
    if (status != XEP_OK) return status;
    handle->in_flight = req;
    *req_p = req;
    return XEP_OK;
}

/* A caller that is refused tries again; in a loop of refusals what it waits for must go on, so it does here. */
static xep_status_t give_way(xep_buffer_t *buffer)
{
    xep_group_progress(buffer->group);
    xep_request_advance_all(buffer);
    return xep_request_admit(buffer);
}

xep_status_t xep_request_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_request_t **req_p)
{
    xep_status_t status = begin_dispatch(buffer, args, req_p);
    if (status != XEP_ERR_BUSY) return status;
    status = give_way(buffer);
    return status == XEP_OK ? begin_dispatch(buffer, args, req_p) : status;
}

xep_status_t xep_request_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p)
{
    xep_status_t status = begin_combine(handle, args, req_p);
    if (status != XEP_ERR_BUSY) return status;
    status = give_way(handle->buffer);
    return status == XEP_OK ? begin_combine(handle, args, req_p) : status;
}

/* ---- waiting ---- */

static xep_status_t outcome(const xep_request_t *req)
{
    if (req->status == XEP_OK) return XEP_OK;
    return xep_fail(req->status, "%s", req->reason);
}

static int is_done(const xep_request_t *req)
{
    return req->state == XEP_REQUEST_DONE;
}

static int is_counted(const xep_request_t *req)
{
    return is_done(req) || (req->op.kind == XEP_OP_DISPATCH && req->op.recv->size != 0);
}

/* The first look found it in flight: the deadline and the waits for late ranks count from here, by one look at the clock. */
static void keep_waiting(xep_request_t *req, int (*reached)(const xep_request_t *req))
{
    xep_group_t *group = req->buffer->group;
    xep_waiting_t waiting;
    uint64_t now = xep_clock_ns(), slow = 0;
    int dead = 0;
    xep_waiting_begin(&waiting, group->spins, xep_deadline_from(now, req->timeout_ms));
    xep_lateness_begin(&req->op, now);
    while (!reached(req)) {
        if (waiting.turns % 16 == 15 || req->state == XEP_REQUEST_WAITING) xep_group_progress(group);
        int in_time = xep_group_rest(group, &waiting);
        xep_request_advance_all(req->buffer);
        if (reached(req)) break;
        if (xep_lateness_is_new(&req->op)) xep_lateness_begin(&req->op, xep_clock_ns());
        if (!in_time) {
            expire(req, XEP_ERR_TIMEOUT, "deadline passed");
        } else if (xep_waiting_slow(&waiting, &slow) && xep_group_check_peers(group) != XEP_OK) {
            /* what it wrote last may still be on its way: one more round */
            if (dead) expire(req, XEP_ERR_PEER, xep_last_error());
            dead = 1;
        }
    }
    xep_lateness_pause(&req->op);
}

/* The outcome where it is done, else XEP_OK. */
static xep_status_t wait_until(xep_request_t *req, int (*reached)(const xep_request_t *req))
{
    xep_request_advance_all(req->buffer);
    if (!reached(req)) keep_waiting(req, reached);
    return is_done(req) ? outcome(req) : XEP_OK;
}

xep_status_t xep_request_finish(xep_request_t *req)
{
    return wait_until(req, is_done);
}

/* What a wait does in time: deadline, and a look at the peers now and then. */
static void test_late(xep_request_t *req)
{
    uint64_t now = xep_clock_ns();
    if (req->test_deadline_ns == 0) {
        req->test_deadline_ns = xep_deadline(req->timeout_ms);
        req->test_peers_ns = now + TEST_PEERS_NS;
    } else if (now >= req->test_deadline_ns) {
        expire(req, XEP_ERR_TIMEOUT, "deadline passed since the first test");
    } else if (now >= req->test_peers_ns) {
        int gone = xep_group_check_peers(req->buffer->group) != XEP_OK;
        /* what it wrote last may still be on its way: one more round */
        if (gone && req->peer_gone) expire(req, XEP_ERR_PEER, xep_last_error());
        req->peer_gone = gone;
        req->test_peers_ns = now + TEST_PEERS_NS;
    }
}

/* Its memory is the buffer's, so a request that was freed can still be told. */
static xep_status_t check_kept(const xep_request_t *req)
{
    if (req == NULL) return xep_fail(XEP_ERR_INVALID, "req is NULL");
    return req->kept ? XEP_OK : xep_fail(XEP_ERR_INVALID, "req was freed");
}

xep_status_t xep_request_test(xep_request_t *req)
{
    xep_status_t status = check_kept(req);
    if (status != XEP_OK) return status;
    xep_buffer_enter(req->buffer);
    xep_request_advance_all(req->buffer);
    if (req->state != XEP_REQUEST_DONE) {
        xep_group_progress(req->buffer->group);
        test_late(req);
    }
    status = req->state == XEP_REQUEST_DONE ? outcome(req) : XEP_INPROGRESS;
    xep_buffer_leave(req->buffer);
    return status;
}

xep_status_t xep_request_wait(xep_request_t *req)
{
    xep_status_t status = check_kept(req);
    if (status != XEP_OK) return status;
    xep_buffer_enter(req->buffer);
    status = xep_request_finish(req);
    xep_buffer_leave(req->buffer);
    return status;
}

xep_status_t xep_request_wait_counts(xep_request_t *req)
{
    xep_status_t status = check_kept(req);
    if (status != XEP_OK) return status;
    xep_buffer_enter(req->buffer);
    status = wait_until(req, is_counted);
    if (!is_done(req)) req->handle->state = XEP_HANDLE_COUNTED;
    xep_buffer_leave(req->buffer);
    return status;
}

void xep_request_free(xep_request_t *req)
{
    if (req == NULL) return;
    xep_buffer_t *buffer = req->buffer;
    xep_buffer_enter(buffer);
    xep_request_drop(req);
    xep_buffer_leave(buffer);
}
