/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported functions of requests: as api.c has those before them. */

#include <stdio.h>

#include "api_check.h"
#include "buffer.h"
#include "error.h"
#include "group_wait.h"
#include "request.h"
#include "trace.h"

/* Requests are memory of the buffer, so a freed one can be recognised, by who has claimed the buffer. */
static xep_status_t check_kept(const xep_request_t *req)
{
    return req->kept ? XEP_OK : xep_fail(XEP_ERR_INVALID, "req was freed");
}

/* Calls that may take long are in the trace; tests are not, as a loop of tests would fill it. */
static xep_status_t wait_request(xep_request_t *req, xep_status_t (*wait)(xep_request_t *req))
{
    uint64_t begin_ns = xep_trace_now();
    xep_status_t status = xep_require_request(req);
    if (status == XEP_OK) status = xep_buffer_claim(req->buffer);
    if (status != XEP_OK) return status;
    status = check_kept(req);
    if (status == XEP_OK) status = wait(req);
    xep_buffer_leave(req->buffer);
    if (begin_ns != 0) xep_trace_write_call(XEP_TRACE_CALL, "wait", req->op.epoch, begin_ns);
    return status;
}

/* A thread that is in a call on the buffer makes progress meanwhile: to any other one the operation is in flight. */
xep_status_t xep_request_test(xep_request_t *req)
{
    xep_status_t status = xep_require_request(req);
    if (status != XEP_OK) return status;
    if (xep_buffer_claim(req->buffer) != XEP_OK) return XEP_INPROGRESS;
    status = check_kept(req);
    if (status == XEP_OK) status = xep_request_poll(req);
    xep_buffer_leave(req->buffer);
    return status;
}

xep_status_t xep_request_wait(xep_request_t *req)
{
    return wait_request(req, xep_request_finish);
}

/* ---- any of several ---- */

typedef struct any {
    xep_request_t *const *reqs;
    uint32_t count, found;
    xep_status_t status; /* of that one */
} any_t;

static xep_status_t look_at_any(void *arg)
{
    any_t *any = arg;
    for (any->found = 0; any->found < any->count; any->found++) {
        if (any->reqs[any->found] == NULL) continue;
        any->status = xep_request_test(any->reqs[any->found]);
        if (any->status != XEP_INPROGRESS) return XEP_OK;
    }
    return XEP_INPROGRESS;
}

static void explain_any(void *arg, char *text, size_t bytes)
{
    snprintf(text, bytes, "any of %u requests", ((const any_t *)arg)->count);
}

/* The group that all are of, NULL: there is none. */
static xep_status_t find_group(const any_t *any, xep_group_t **group_p)
{
    *group_p = NULL;
    for (uint32_t i = 0; i < any->count; i++) {
        if (any->reqs[i] == NULL) continue;
        xep_status_t status = xep_require_request(any->reqs[i]);
        if (status == XEP_OK) status = check_kept(any->reqs[i]);
        if (status != XEP_OK) return status;
        xep_group_t *group = any->reqs[i]->buffer->group;
        if (*group_p != NULL && *group_p != group)
            return xep_fail(XEP_ERR_INVALID, "invalid reqs: number %u is of another group", i);
        *group_p = group;
    }
    return *group_p != NULL ? XEP_OK : xep_fail(XEP_ERR_INVALID, "invalid reqs: no request among %u", any->count);
}

/* Each request has a deadline of its own, and deaths that concern it end it: the wait itself has neither. */
xep_status_t xep_request_wait_any(xep_request_t *const *reqs, uint32_t count, uint32_t *index_p)
{
    any_t any = {.reqs = reqs, .count = count};
    const xep_wait_t wait = {.look = look_at_any,
                             .arg = &any,
                             .deadline_ns = UINT64_MAX,
                             .spares = 1,
                             .explain = explain_any};
    xep_group_t *group;
    if (reqs == NULL || index_p == NULL)
        return xep_fail(XEP_ERR_INVALID, "%s is NULL", reqs == NULL ? "reqs" : "index_p");
    xep_status_t status = find_group(&any, &group);
    if (status != XEP_OK) return status;
    if (look_at_any(&any) != XEP_OK && (status = xep_group_wait(group, &wait)) != XEP_OK) return status;
    *index_p = any.found;
    return any.status;
}

xep_status_t xep_request_wait_counts(xep_request_t *req)
{
    return wait_request(req, xep_request_finish_counts);
}

/* The operation has set the mark when all of it was enqueued, and the wait has made sure of that. */
xep_status_t xep_request_stream_wait(xep_request_t *req, void *stream)
{
    xep_status_t status = xep_require_request(req);
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
    if (!xep_buffer_enter_now(buffer, &req->freed)) return;
    xep_request_drop(req);
    xep_buffer_leave(buffer);
}
