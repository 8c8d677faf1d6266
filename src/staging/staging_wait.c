/* SPDX-License-Identifier: BSD-3-Clause */

/* Waits for a stream. The buffer's operations go on meanwhile: peers may need this rank for earlier ones. */
#include "staging.h"

#include <stdio.h>

#include "backoff.h"
#include "group_wait.h"
#include "request.h"
#include "staging_slots.h"

typedef struct stream_look {
    xep_buffer_t *buffer;
    xep_waits_kind_t kind;
    const xep_request_t *req; /* whose rows are coming; NULL: the call has not begun */
    int launches; /* of graphs go on: the call has taken no request yet, which one that begins would take, too */
} stream_look_t;

static xep_status_t look_at_stream(void *arg)
{
    const stream_look_t *look = arg;
    xep_request_advance_all(look->buffer);
    if (look->launches) look->buffer->staging->doors->look(look->buffer);
    if (look->req != NULL)
        return look->req->state == XEP_REQUEST_ACTIVE && look->req->op.coming != 0 ? XEP_INPROGRESS : XEP_OK;
    return look->buffer->device->ops->reached(look->buffer->device, 0);
}

static xep_status_t hope_for_stream(void *arg)
{
    const stream_look_t *look = arg;
    return xep_request_hope(look->buffer, look->req == NULL ? look->buffer->epoch + 1 : look->req->op.epoch);
}

static void explain_stream(void *arg, char *text, size_t bytes)
{
    const stream_look_t *look = arg;
    const char *what = look->kind == XEP_WAITS_DISPATCH  ? "dispatch"
                       : look->kind == XEP_WAITS_COMBINE ? "combine"
                                                         : "layout";
    snprintf(text, bytes, "%s of mode %s, which %s when its stream has come to it", what,
             look->buffer->plugin.plugin->name, look->req == NULL ? "begins" : "sends its rows");
}

/* The account for ranks that ask: the operation has not begun, and waits for no rank. */
static void account_for_stream(void *arg, xep_account_t *account)
{
    const stream_look_t *look = arg;
    /* it gets its epoch when it begins: the next one */
    *account = (xep_account_t){.kind = look->kind, .number = look->buffer->epoch + 1, .buffer = look->buffer->number};
    snprintf(account->mode, sizeof account->mode, "%s", look->buffer->plugin.plugin->name);
    snprintf(account->what, sizeof account->what, "stream");
}

xep_status_t xep_staging_note(xep_buffer_t *buffer, void *stream)
{
    xep_heap_device_t *device = buffer->staging->to;
    return device->ops->note(device, 0, stream);
}

/*
 * After an error the stream may still run the copies, which write into the slot: so the buffer needs a reset, and the
 * others, which may be in the operation, hear of it.
 */
static xep_status_t wait_for(stream_look_t *look, int32_t timeout_ms)
{
    xep_buffer_t *buffer = look->buffer;
    xep_wait_t wait = {.look = look_at_stream,
                       .arg = look,
                       .deadline_ns = xep_deadline(timeout_ms),
                       .account = look->kind == XEP_WAITS_NOWHERE ? NULL : account_for_stream,
                       .hope = hope_for_stream,
                       .explain = explain_stream};
    char text[XEP_REASON_BYTES];
    xep_status_t status = xep_group_explain(&wait, xep_group_wait(buffer->group, &wait));
    if (status == XEP_OK) return xep_buffer_usable(buffer);
    if (status == XEP_ERR_ABORTED) return status;
    snprintf(text, sizeof text, "%s", xep_last_error());
    xep_request_give_up_all(buffer, status, text);
    return xep_fail(status, "%s", text);
}

xep_status_t xep_staging_wait(xep_buffer_t *buffer, xep_waits_kind_t kind, int32_t timeout_ms)
{
    stream_look_t look = {.buffer = buffer, .kind = kind};
    return wait_for(&look, timeout_ms);
}

/* A stream that is captured has nothing before the call; one that the call refuses is refused there. */
xep_status_t xep_staging_come(xep_buffer_t *buffer, void *stream, int32_t timeout_ms)
{
    xep_device_t *device = &buffer->device->device;
    stream_look_t look = {.buffer = buffer, .kind = XEP_WAITS_NOWHERE, .launches = 1};
    if (buffer->staging->doors == NULL || !buffer->staging->doors->are_open(buffer)) return XEP_OK;
    if (xep_buffer_usable(buffer) != XEP_OK || device->ops->check_stream(device, stream) != XEP_OK) return XEP_OK;
    if (device->ops->is_captured(device, stream)) return XEP_OK;
    xep_status_t status = xep_staging_note(buffer, stream);
    return status == XEP_OK ? wait_for(&look, timeout_ms == 0 ? buffer->timeout_ms : timeout_ms) : status;
}

/* The call has begun, so its request reports what it waited for in vain. */
void xep_staging_stay(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    stream_look_t look = {.buffer = buffer,
                          .kind = req->op.kind == XEP_OP_DISPATCH ? XEP_WAITS_DISPATCH : XEP_WAITS_COMBINE,
                          .req = req};
    xep_wait_t wait = {.look = look_at_stream,
                       .arg = &look,
                       .deadline_ns = xep_deadline(req->op.timeout_ms),
                       .hope = hope_for_stream,
                       .explain = explain_stream};
    if (buffer->plugin.plugin->begins_early != XEP_BEGINS_IN_CALL || req->state != XEP_REQUEST_ACTIVE) return;
    xep_status_t status = xep_group_wait(buffer->group, &wait);
    if (status == XEP_OK || status == XEP_ERR_ABORTED || req->state != XEP_REQUEST_ACTIVE) return;
    xep_request_break(req, xep_group_explain(&wait, status), xep_last_error());
}
