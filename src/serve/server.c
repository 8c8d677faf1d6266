/* SPDX-License-Identifier: BSD-3-Clause */

#include "server.h"

#include <stdio.h>

#include "api_check.h"
#include "backoff.h"
#include "buffer_give_up.h"
#include "error.h"
#include "group_doorbell.h"
#include "group_wait.h"
#include "members.h"
#include "request.h"

/* ---- waiting ---- */

enum { POLL_NS = 5 * 1000 * 1000, LOOKS_TO_PROGRESS = 16 };

static xep_status_t look(void *arg)
{
    xep_server_t *server = arg;
    for (uint32_t b = 0; b < server->args.count; b++) {
        xep_status_t status = xep_server_attend(server, server->args.buffers[b]);
        if (status != XEP_INPROGRESS) return status;
    }
    if (server->due != NULL) return XEP_OK;
    if (server->stop_ns != 0) return xep_server_try_to_end(server);
    if (!xep_server_is_told(server)) return XEP_INPROGRESS;
    xep_server_stop(server);
    return XEP_OK;
}

/* Asleep for the one rank that it waits for in an operation, or for whoever begins the next one. */
static uint32_t late_of(void *arg)
{
    const xep_server_t *server = arg;
    const xep_served_t *one = NULL;
    const uint32_t active = atomic_load_explicit(&server->group->active, memory_order_relaxed);
    if (active > 1) return XEP_NO_RANK;
    for (uint32_t b = 0; b < server->args.count && active == 1; b++)
        for (uint32_t s = 0; s < server->args.buffers[b]->shape.slots; s++)
            if (server->args.buffers[b]->announce->served[s].req != NULL)
                one = &server->args.buffers[b]->announce->served[s];
    if (active == 0) return XEP_ANY_RANK;
    if (one == NULL || one->req->op.late.count == 0) return XEP_NO_RANK;
    return one->req->op.late.ranks[one->req->op.late.count - 1];
}

/* Every few ms. Others may have given a buffer up that this rank waits in for nothing. */
static xep_status_t hope(void *arg)
{
    xep_server_t *server = arg;
    xep_server_poll(server);
    for (uint32_t b = 0; b < server->args.count; b++) {
        const xep_buffer_t *buffer = server->args.buffers[b];
        xep_status_t status = xep_buffer_check_given_up(buffer, buffer->epoch + 1);
        if (status != XEP_INPROGRESS) return status;
    }
    xep_status_t status = xep_server_check_ends(server);
    if (status != XEP_OK) return server->failure = status;
    if (server->stop_ns == 0 && xep_server_is_dismissed(server)) return XEP_OK;
    return xep_server_check_workers(server);
}

static void explain(void *arg, char *text, size_t bytes)
{
    const xep_server_t *server = arg;
    char workers[40] = "all ranks serve";
    int others;
    const uint32_t worker = xep_server_find_worker(server, &others);
    if (worker < server->group->nranks) snprintf(workers, sizeof workers, "rank %u works", worker);
    snprintf(text, bytes, "serves %u buffer%s; %s (%s)", server->args.count, server->args.count == 1 ? "" : "s",
             !xep_server_is_idle(server) ? "an operation is in flight"
             : server->stop_ns == 0      ? "no rank has begun an operation"
                                         : "no rank has ended the step",
             workers);
}

/* The time to stop in is over, and it is no operation that has failed by its own deadline. */
static int is_late(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        if (server->args.buffers[b]->broken) return 0;
    return server->stop_ns != 0;
}

/* A group goes on without ranks if all its buffers here do. */
static int goes_on(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        if (server->args.buffers[b]->members == NULL) return 0;
    return 1;
}

static xep_status_t wait_for_work(xep_server_t *server)
{
    xep_wait_t wait = {.look = look,
                       .arg = server,
                       .deadline_ns = server->stop_ns == 0 ? UINT64_MAX : server->stop_ns,
                       .progress_every = LOOKS_TO_PROGRESS,
                       .late = late_of,
                       .spares = goes_on(server),
                       .hope = hope,
                       .explain = explain};
    xep_status_t status;
    do status = xep_group_wait(server->group, &wait);
    while (status == XEP_ERR_PEER && wait.spares && server->failure == XEP_OK &&
           xep_members_bury(server->args.buffers[0]) == XEP_OK);
    return status == XEP_ERR_TIMEOUT && is_late(server) ? xep_server_fail_late(server) : status;
}

/* ---- the function ---- */

/* The only local expert that a dispatch has selected; -1: there are several, or none. */
static int32_t only_expert(const xep_recv_t *recv)
{
    int32_t only = -1;
    for (uint32_t e = 0; e < recv->local_experts; e++) {
        if (recv->expert_rows[e] == 0) continue;
        if (only >= 0) return -1;
        only = (int32_t)e;
    }
    return only;
}

/* The error of this rank; that of the others comes from the buffer. */
static xep_status_t fail(xep_server_t *server, const xep_serve_call_t *call, xep_status_t returned)
{
    char of[60] = "";
    if (call->expert >= 0 && (uint32_t)call->expert < call->recv->local_experts) {
        const uint32_t expert = call->recv->experts[call->expert];
        snprintf(of, sizeof of, " for expert %u (local %d)", expert, call->expert);
        xep_buffer_blame_expert(call->buffer, expert);
    }
    server->failure = XEP_ERR_FUNCTION;
    return xep_fail(XEP_ERR_FUNCTION, "the expert function failed%s in dispatch %llu of step %llu, with %d (%s)", of,
                    (unsigned long long)call->dispatch, (unsigned long long)call->step, (int)returned,
                    xep_status_text(returned));
}

static xep_status_t run_function(xep_server_t *server)
{
    xep_served_t *served = server->due;
    xep_serve_call_t *call = &served->call;
    server->due = NULL;
    served->is_due = 0;
    call->handle = served->handle;
    call->recv = &served->handle->recv;
    call->dtype = call->buffer->params.combine_dtype;
    call->expert = only_expert(call->recv);
    call->out = NULL;
    call->topk_weights = NULL;
    call->topk_weights_stride = 0;
    if (call->recv->rows != 0) {
        xep_status_t status = xep_handle_combine_input(served->handle, &call->out, &call->out_stride);
        if (status != XEP_OK) return server->failure = status;
    }
    served->has_outputs = 1;
    xep_status_t status = server->args.fn(server->args.arg, call);
    return status == XEP_OK ? XEP_OK : fail(server, call, status);
}

/* ---- the call ---- */

static xep_status_t serve(xep_server_t *server)
{
    xep_status_t status = XEP_OK;
    while (status == XEP_OK && !server->is_over) {
        if (server->due != NULL) status = run_function(server);
        else status = wait_for_work(server);
        if (status == XEP_OK && xep_clock_ns() - server->polled_ns > POLL_NS) xep_server_poll(server);
    }
    return status;
}

/* Buffers that are served, or whose step ends, together. */
static xep_status_t check_buffers(xep_buffer_t *const *buffers, uint32_t count)
{
    if (buffers == NULL || count == 0) return xep_fail(XEP_ERR_INVALID, "no buffers (at least 1)");
    for (uint32_t b = 0; b < count; b++) {
        xep_status_t status = xep_require_buffer(buffers[b]);
        if (status != XEP_OK) return status;
        if (buffers[b]->announce == NULL)
            return xep_fail(XEP_ERR_UNSUPPORTED, "invalid buffers[%u]: made without XEP_BUFFER_SERVED", b);
        if (buffers[b]->group != buffers[0]->group)
            return xep_fail(XEP_ERR_INVALID, "invalid buffers[%u]: of another group than buffers[0]", b);
        if ((status = xep_buffer_usable(buffers[b])) != XEP_OK) return status;
    }
    return XEP_OK;
}

static xep_status_t check_handles(xep_buffer_t *buffer)
{
    xep_status_t status = xep_buffer_claim(buffer);
    if (status != XEP_OK) return status;
    for (uint32_t s = 0; s < buffer->shape.slots && status == XEP_OK; s++)
        if (buffer->handles[s].state != XEP_HANDLE_FREE && buffer->announce->served[s].handle == NULL)
            status = xep_fail(XEP_ERR_BUSY, "slot %u holds a handle that was not released", s);
    xep_buffer_leave(buffer);
    return status;
}

static xep_status_t check_args(const xep_serve_args_t *args, xep_serve_args_t *own)
{
    xep_status_t status = xep_check_struct("args", args, own, sizeof *own);
    if (status == XEP_OK) status = check_buffers(own->buffers, own->count);
    if (status == XEP_OK && own->fn == NULL) status = xep_fail(XEP_ERR_INVALID, "fn is NULL");
    for (uint32_t b = 0; status == XEP_OK && b < own->count; b++) status = xep_announce_check(own->buffers[b]);
    for (uint32_t b = 0; status == XEP_OK && b < own->count; b++) status = check_handles(own->buffers[b]);
    return status;
}

/* Enters each buffer to say that this rank serves; or no more, which a broken buffer need not hear. */
static void tell_serving(const xep_server_t *server, int serving)
{
    for (uint32_t b = 0; b < server->args.count; b++) {
        xep_buffer_t *buffer = server->args.buffers[b];
        xep_buffer_enter(buffer);
        xep_announce_serving(buffer, serving);
        if (!serving) atomic_store_explicit(&buffer->announce->stop, 0, memory_order_relaxed);
        xep_buffer_leave(buffer);
    }
}

/* What has failed here alone is told to the others, whose operations would wait for this rank. */
static void give_up(const xep_server_t *server)
{
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    for (uint32_t b = 0; b < server->args.count; b++) {
        xep_buffer_t *buffer = server->args.buffers[b];
        xep_buffer_enter(buffer);
        xep_request_give_up_all(buffer, server->failure, reason);
        xep_buffer_leave(buffer);
    }
    (void)xep_fail(server->failure, "%s", reason);
}

static void drop_all(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++)
        for (uint32_t s = 0; s < server->args.buffers[b]->shape.slots; s++)
            if (server->args.buffers[b]->announce->served[s].handle != NULL)
                xep_served_drop(&server->args.buffers[b]->announce->served[s]);
}

static void leave_buffers(const xep_server_t *server, uint32_t count)
{
    for (uint32_t b = 0; b < count; b++) atomic_store(&server->args.buffers[b]->announce->is_served, 0);
}

/* Of another thread, or of the function that this one calls: both would take the same operations further. */
static xep_status_t take_buffers(const xep_server_t *server)
{
    for (uint32_t b = 0; b < server->args.count; b++) {
        if (atomic_exchange(&server->args.buffers[b]->announce->is_served, 1) == 0) continue;
        leave_buffers(server, b);
        return xep_fail(XEP_ERR_INVALID, "invalid buffers[%u]: served already (by one call, and once in it)", b);
    }
    return XEP_OK;
}

xep_status_t xep_serve(const xep_serve_args_t *args)
{
    char reason[XEP_REASON_BYTES];
    xep_server_t server = {0};
    xep_status_t status = check_args(args, &server.args);
    if (status == XEP_OK) status = take_buffers(&server);
    if (status != XEP_OK) return status;
    server.group = server.args.buffers[0]->group;
    tell_serving(&server, 1);
    status = serve(&server);
    if (server.failure != XEP_OK) give_up(&server);
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    /* after that error the next call goes on in the same step */
    if (status != XEP_ERR_TIMEOUT || !is_late(&server)) drop_all(&server);
    tell_serving(&server, 0);
    leave_buffers(&server, server.args.count);
    return status == XEP_OK ? XEP_OK : xep_fail(status, "%s", reason);
}

/* A store and a wake, as a signal handler may call it. */
void xep_serve_stop(xep_buffer_t *buffer)
{
    if (buffer == NULL || xep_group_is_inherited(buffer->group) || buffer->announce == NULL) return;
    atomic_store(&buffer->announce->stop, 1);
    xep_group_wake_all(buffer->group);
}

static xep_status_t announce(xep_buffer_t *buffer, uint32_t layers)
{
    xep_status_t status = check_buffers(&buffer, 1);
    if (status == XEP_OK) status = xep_buffer_claim(buffer);
    if (status != XEP_OK) return status;
    status = xep_announce_early(buffer, layers);
    xep_buffer_leave(buffer);
    return status;
}

xep_status_t xep_announce_dispatch(xep_buffer_t *buffer)
{
    return announce(buffer, 0);
}

xep_status_t xep_announce_layers(xep_buffer_t *buffer, uint32_t layers)
{
    return layers != 0 ? announce(buffer, layers) : xep_fail(XEP_ERR_INVALID, "invalid layers: 0 (at least 1)");
}

/* One that is in the list twice is this call's already. */
static xep_status_t claim(xep_buffer_t *const *buffers, uint32_t b)
{
    const xep_status_t status = xep_buffer_claim(buffers[b]);
    for (uint32_t before = 0; status != XEP_OK && before < b; before++)
        if (buffers[before] == buffers[b])
            return xep_fail(status, "invalid buffers[%u]: the same as buffers[%u]", b, before);
    return status;
}

/* Of all buffers or of none, or a second call would end the step of some once more. */
xep_status_t xep_step_end(xep_buffer_t *const *buffers, uint32_t count, uint32_t flags)
{
    uint32_t held = 0;
    xep_status_t status = check_buffers(buffers, count);
    if (status == XEP_OK && (flags & ~(uint32_t)XEP_STEP_LAST) != 0)
        status = xep_fail(XEP_ERR_INVALID, "invalid flags: %#x (bits of XEP_STEP_*)", flags);
    for (; status == XEP_OK && held < count; held += status == XEP_OK) status = claim(buffers, held);
    for (uint32_t b = 0; status == XEP_OK && b < count; b++) status = xep_announce_check(buffers[b]);
    for (uint32_t b = 0; b < held; b++) {
        if (status == XEP_OK)
            xep_announce_stand(buffers[b], buffers[b]->announce->step + 1, (flags & XEP_STEP_LAST) != 0);
        xep_buffer_leave(buffers[b]);
    }
    return status;
}
