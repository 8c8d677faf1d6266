/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported functions of dispatches and combines and their handles: as api.c has those before them. */

#include "api_check.h"
#include "mode.h"
#include "packed_payloads.h"
#include "recording.h"
#include "request.h"
#include "staging.h"
#include "trace.h"

/* ---- dispatch and combine ---- */

/* Returns the request, or waits for it and drops it: a call without req_p is a call with one, followed by a wait. */
static xep_status_t deliver(xep_request_t *req, xep_request_t **req_p, const char *call, uint64_t begin_ns)
{
    const uint64_t epoch = req->op.epoch;
    xep_status_t status = XEP_OK;
    if (req_p != NULL) {
        *req_p = req;
    } else {
        status = xep_request_finish(req);
        xep_request_drop(req);
    }
    if (begin_ns != 0) xep_trace_write_call(XEP_TRACE_CALL, call, epoch, begin_ns);
    return status;
}

/*
 * For devices, if the args that were given are right. Enters the other request's buffer, so it runs before this one is
 * entered: a thread holds one at a time. A freed request is refused later, with the other arguments.
 */
static xep_status_t order_behind(const xep_buffer_t *buffer, xep_status_t given, xep_request_t *after, void *stream)
{
    if (given != XEP_OK || after == NULL || !after->kept) return given;
    if (after->buffer == buffer && buffer->staging == NULL) return XEP_OK;
    const xep_heap_device_t *other = after->buffer->device;
    if (other == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "after is a request in host memory (in device memory: of a buffer on the same device)");
    if (other->number != buffer->device->number)
        return xep_fail(XEP_ERR_UNSUPPORTED, "after is a request on CUDA device %d (of a buffer on CUDA device %d)",
                        other->number, buffer->device->number);
    return xep_request_order_stream(after, stream);
}

/*
 * For devices: given, or the error of the request that the call comes after; and waits for launches on the stream. If
 * another thread is in a call, the call itself says so.
 */
static xep_status_t come(xep_buffer_t *buffer, xep_status_t given, xep_request_t *after, void *stream,
                         int32_t timeout_ms)
{
    xep_status_t status = order_behind(buffer, given, after, stream);
    if (status != XEP_OK || buffer->staging == NULL || xep_buffer_claim(buffer) != XEP_OK) return status;
    status = xep_staging_come(buffer, stream, timeout_ms);
    xep_buffer_leave(buffer);
    return status;
}

/* A cached dispatch has no new routing; a routing in device memory cannot be read here. */
static void count_for_recording(const xep_buffer_t *buffer, const xep_dispatch_args_t *args)
{
    if (args->cached == NULL && buffer->device == NULL)
        xep_recording_count(buffer->group->recording, args, buffer->params.experts);
}

/*
 * The caller holds the buffer. given: whether args could be read, and the stream put behind args->after. Errors are
 * found before a slot is taken or a word is sent; refusals are counted, so that the other ranks learn of them
 * (request.h).
 */
static xep_status_t begin_dispatch(xep_buffer_t *buffer, xep_dispatch_args_t *args, xep_status_t given, int waits,
                                   xep_handle_t **handle_p, xep_request_t **req_p)
{
    xep_status_t status = xep_buffer_usable(buffer);
    if (status != XEP_OK) return status;
    status = xep_request_keep_pace(buffer);
    if (status == XEP_OK && handle_p == NULL) status = xep_fail(XEP_ERR_INVALID, "handle_p is NULL");
    if (status == XEP_OK) status = given;
    if (status == XEP_OK) status = xep_check_dispatch(buffer, args);
    if (status == XEP_OK) status = xep_check_dispatch_memory(buffer, args);
    if (status == XEP_OK) status = xep_mode_check_dispatch(buffer->plugin.plugin, &buffer->can, args);
    if (status == XEP_OK && (args->flags & XEP_DISPATCH_PIECES) != 0) status = xep_check_pieces(buffer, args);
    if (status == XEP_OK) status = xep_request_dispatch(buffer, args, waits, req_p);
    if (status != XEP_OK) return xep_request_count_refused(buffer, status);
    if (buffer->group->recording != NULL) count_for_recording(buffer, args);
    return XEP_OK;
}

/*
 * The handle is the user's only when the dispatch has begun, or, where there is no request, has succeeded. What is
 * needed of the request is read before deliver(), which may drop it.
 */
xep_status_t xep_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p,
                          xep_request_t **req_p)
{
    xep_request_t *req;
    xep_dispatch_args_t own;
    uint64_t begin_ns = xep_trace_now();
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK) return status;
    xep_status_t given = xep_check_struct("args", args, &own, sizeof own);
    if (buffer->device != NULL) given = come(buffer, given, own.after, own.stream, own.timeout_ms);
    if ((status = xep_buffer_claim(buffer)) != XEP_OK) return status;
    status = begin_dispatch(buffer, &own, given, req_p == NULL, handle_p, &req);
    if (status == XEP_OK) {
        xep_handle_t *handle = req->handle;
        status = deliver(req, req_p, "dispatch", begin_ns);
        if (status == XEP_OK) *handle_p = handle;
        else xep_handle_give_back(handle);
    }
    xep_buffer_leave(buffer);
    return status;
}

/*
 * As begin_dispatch(): the caller holds the buffer, all checks come before anything is sent, and refusals are counted.
 * A refused call leaves the handle as it was.
 */
static xep_status_t begin_combine(xep_handle_t *handle, xep_combine_args_t *args, xep_status_t given, int waits,
                                  xep_request_t **req_p)
{
    xep_status_t status = xep_buffer_usable(handle->buffer);
    if (status != XEP_OK) return status;
    status = xep_request_keep_pace(handle->buffer);
    if (status == XEP_OK) status = given;
    if (status == XEP_OK) status = xep_check_combine(handle, args);
    if (status == XEP_OK) status = xep_check_combine_memory(handle, args);
    if (status == XEP_OK) status = xep_mode_check_combine(handle->buffer->plugin.plugin, &handle->buffer->can, args);
    if (status == XEP_OK && handle->recv.pieces > 1) status = xep_check_combined_pieces(handle, args);
    if (status == XEP_OK) status = xep_request_combine(handle, args, waits, req_p);
    return status == XEP_OK ? XEP_OK : xep_request_count_refused(handle->buffer, status);
}

/* The handle stays the user's, however this ends. */
xep_status_t xep_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p)
{
    xep_request_t *req;
    xep_combine_args_t own;
    uint64_t begin_ns = xep_trace_now();
    xep_status_t status = xep_require_handle(handle);
    if (status != XEP_OK) return status;
    xep_status_t given = xep_check_struct("args", args, &own, sizeof own);
    if (handle->buffer->device != NULL) given = come(handle->buffer, given, own.after, own.stream, own.timeout_ms);
    if ((status = xep_buffer_claim(handle->buffer)) != XEP_OK) return status;
    status = begin_combine(handle, &own, given, req_p == NULL, &req);
    if (status == XEP_OK) status = deliver(req, req_p, "combine", begin_ns);
    xep_buffer_leave(handle->buffer);
    return status;
}

/* Outputs of a piece are those of a combine: they are checked, and given to the mode, as such. */
static xep_status_t begin_next(xep_handle_t *handle, const xep_next_args_t *args, xep_request_t **req_p)
{
    xep_next_args_t own = {0};
    xep_combine_args_t outputs;
    xep_status_t status = xep_buffer_usable(handle->buffer);
    if (status != XEP_OK) return status;
    status = xep_request_keep_pace(handle->buffer);
    if (status == XEP_OK && args != NULL) status = xep_check_struct("args", args, &own, sizeof own);
    if (own.timeout_ms == 0) own.timeout_ms = handle->buffer->timeout_ms;
    if (status == XEP_OK) status = xep_check_output("wait_ns", own.wait_ns);
    if (status == XEP_OK) status = xep_check_next(handle, args != NULL ? &own : NULL, &outputs);
    if (status == XEP_OK && args != NULL)
        status = xep_mode_check_combine(handle->buffer->plugin.plugin, &handle->buffer->can, &outputs);
    if (status == XEP_OK) status = xep_request_next(handle, args != NULL ? &outputs : NULL, own.timeout_ms, req_p);
    return xep_request_count_refused(handle->buffer, status);
}

/* The args of a next piece have neither a stream nor a request to come after. */
xep_status_t xep_handle_next(xep_handle_t *handle, const xep_next_args_t *args, xep_request_t **req_p)
{
    xep_request_t *req;
    uint64_t begin_ns = xep_trace_now();
    xep_status_t status = xep_require_handle(handle);
    if (status == XEP_OK) status = xep_buffer_claim(handle->buffer);
    if (status != XEP_OK) return status;
    status = begin_next(handle, args, &req);
    if (status == XEP_OK) status = deliver(req, req_p, "next", begin_ns);
    xep_buffer_leave(handle->buffer);
    return status;
}

/* The user cannot test or wait for a freed request, so this call advances it. */
static void go_on_abandoned(const xep_handle_t *handle)
{
    if (xep_buffer_claim(handle->buffer) != XEP_OK) return;
    if (handle->in_flight != NULL) (void)xep_request_poll(handle->in_flight);
    xep_buffer_leave(handle->buffer);
}

/* The state says that all before it is there. Loaded once a look: the thread of the group changes it. */
static int look(const xep_handle_t *handle)
{
    return handle->released ? XEP_HANDLE_FREE : atomic_load_explicit(&handle->state, memory_order_acquire);
}

static int has_rows(int state)
{
    return state == XEP_HANDLE_READY || state == XEP_HANDLE_COUNTED;
}

/* Of a handle without rows; a program may ask again and again, so "not yet" makes no sentence. */
static xep_status_t tell_why_not(int state)
{
    if (state == XEP_HANDLE_SENT) return XEP_INPROGRESS;
    return xep_fail(XEP_ERR_INVALID, "invalid handle: %s",
                    state == XEP_HANDLE_FREE ? "it was released" : "its dispatch failed");
}

/*
 * Visible from the counts on, before the rows are here, until the release. Does not enter the buffer: a program that
 * polls this would hold up the thread that makes progress.
 */
xep_status_t xep_handle_recv(const xep_handle_t *handle, const xep_recv_t **recv_p)
{
    xep_status_t status = xep_require_handle(handle);
    if (status != XEP_OK) return status;
    if (recv_p == NULL) return xep_fail(XEP_ERR_INVALID, "recv_p is NULL");
    int state = look(handle);
    if (!has_rows(state) && atomic_load_explicit(&handle->abandoned, memory_order_relaxed)) {
        go_on_abandoned(handle);
        state = look(handle);
    }
    if (!has_rows(state)) return tell_why_not(state);
    *recv_p = handle->buffer->device != NULL ? xep_packed_recv(handle) : &handle->recv;
    return XEP_OK;
}

/* Waits until peers have read what an earlier combine has left there. */
static xep_status_t combine_input(xep_handle_t *handle, void **base_p, size_t *stride_p)
{
    xep_status_t status = xep_require_idle(handle);
    if (status != XEP_OK) return status;
    if (handle->buffer->staging == NULL) return xep_request_wait_memory(handle->buffer, handle, base_p, stride_p);
    *base_p = xep_staging_input(handle, stride_p);
    return XEP_OK;
}

/* May block: peers may still have handles with rows there. */
static xep_status_t send_memory(xep_buffer_t *buffer, void **base_p, size_t *stride_p)
{
    if (!buffer->shape.sends_in_place)
        return xep_fail(XEP_ERR_UNSUPPORTED, "the buffer was made without XEP_BUFFER_SEND_MEMORY");
    return xep_request_wait_memory(buffer, NULL, base_p, stride_p);
}

/*
 * The input of a handle or, with NULL, the buffer's send memory. The wait is given locals, so that the outputs stay as
 * they are after an error.
 */
static xep_status_t show_memory(xep_buffer_t *buffer, xep_handle_t *handle, void **base_p, size_t *stride_p)
{
    void *base = NULL;
    size_t stride = 0;
    uint64_t begin_ns = xep_trace_now();
    xep_status_t status = xep_buffer_claim(buffer);
    if (status != XEP_OK) return status;
    status = xep_buffer_usable(buffer);
    if (status == XEP_OK)
        status = handle != NULL ? combine_input(handle, &base, &stride) : send_memory(buffer, &base, &stride);
    xep_buffer_leave(buffer);
    if (begin_ns != 0)
        xep_trace_write_call(XEP_TRACE_CALL, handle != NULL ? "combine_input" : "send_memory", 0, begin_ns);
    if (status != XEP_OK) return status;
    *base_p = base;
    if (stride_p != NULL) *stride_p = stride;
    return XEP_OK;
}

/* Notes that the input was given out: a combine with it as x has nothing to copy. */
xep_status_t xep_handle_combine_input(xep_handle_t *handle, void **base_p, size_t *stride_p)
{
    xep_status_t status = xep_require_handle(handle);
    if (status != XEP_OK) return status;
    if (base_p == NULL) return xep_fail(XEP_ERR_INVALID, "base_p is NULL");
    if ((status = show_memory(handle->buffer, handle, base_p, stride_p)) != XEP_OK) return status;
    handle->combine_input = *base_p;
    handle->has_input = 1;
    return XEP_OK;
}

xep_status_t xep_buffer_send_memory(xep_buffer_t *buffer, void **base_p, size_t *stride_p)
{
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK) return status;
    if (base_p == NULL || stride_p == NULL)
        return xep_fail(XEP_ERR_INVALID, "%s is NULL", base_p == NULL ? "base_p" : "stride_p");
    return show_memory(buffer, NULL, base_p, stride_p);
}

/* While an operation needs the slot, or another thread holds the buffer, this is only noted. */
void xep_handle_release(xep_handle_t *handle)
{
    if (handle == NULL || xep_group_is_inherited(handle->buffer->group)) return;
    xep_buffer_t *buffer = handle->buffer;
    if (!xep_buffer_enter_now(buffer, &handle->released)) return;
    atomic_store_explicit(&handle->released, 1, memory_order_relaxed);
    xep_handle_give_back_if_unused(handle);
    xep_buffer_leave(buffer);
}
