/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported functions of requests: as api.c has those before them. */

#include "api_check.h"
#include "buffer.h"
#include "error.h"
#include "request.h"
#include "trace.h"

/* Requests are memory of the buffer, so a freed one can be recognised. */
static xep_status_t check_kept(const xep_request_t *req)
{
    xep_status_t status = xep_require_request(req);
    if (status != XEP_OK) return status;
    return req->kept ? XEP_OK : xep_fail(XEP_ERR_INVALID, "req was freed");
}

/* Runs ask() with the buffer held, under which requests are looked at and advanced. */
static xep_status_t ask_request(xep_request_t *req, xep_status_t (*ask)(xep_request_t *req))
{
    xep_status_t status = check_kept(req);
    if (status != XEP_OK) return status;
    if ((status = xep_buffer_claim(req->buffer)) != XEP_OK) return status;
    status = ask(req);
    xep_buffer_leave(req->buffer);
    return status;
}

/* Calls that may take long are in the trace; tests are not, as a loop of tests would fill it. */
static xep_status_t wait_request(xep_request_t *req, xep_status_t (*ask)(xep_request_t *req))
{
    uint64_t begin_ns = xep_trace_now();
    xep_status_t status = ask_request(req, ask);
    if (begin_ns != 0 && req != NULL) xep_trace_write_call(XEP_TRACE_CALL, "wait", req->op.epoch, begin_ns);
    return status;
}

xep_status_t xep_request_test(xep_request_t *req)
{
    return ask_request(req, xep_request_poll);
}

xep_status_t xep_request_wait(xep_request_t *req)
{
    return wait_request(req, xep_request_finish);
}

xep_status_t xep_request_wait_counts(xep_request_t *req)
{
    return wait_request(req, xep_request_finish_counts);
}

/* The operation has set the mark when all of it was enqueued, and the wait has made sure of that. */
xep_status_t xep_request_stream_wait(xep_request_t *req, void *stream)
{
    xep_status_t status = check_kept(req);
    if (status == XEP_OK && req->buffer->device == NULL)
        status =
            xep_fail(XEP_ERR_UNSUPPORTED, "a stream cannot wait for a request in host memory (xep_request_wait())");
    if (status == XEP_OK) status = wait_request(req, xep_request_finish);
    if (status != XEP_OK) return status;
    xep_heap_device_t *device = req->buffer->device;
    if ((status = xep_buffer_claim(req->buffer)) != XEP_OK) return status;
    status = device->ops->follow(device, stream);
    xep_buffer_leave(req->buffer);
    return status;
}

/* The operation goes on: its memory is the buffer's. */
void xep_request_free(xep_request_t *req)
{
    if (req == NULL || xep_group_is_inherited(req->buffer->group)) return;
    xep_buffer_t *buffer = req->buffer;
    xep_buffer_enter(buffer);
    xep_request_drop(req);
    xep_buffer_leave(buffer);
}
