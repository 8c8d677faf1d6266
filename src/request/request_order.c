/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An operation on a device is enqueued in parts: in one go, or the second one when a call looks at its buffer. The
 * buffer's mark is behind all of them. Where the host takes part it has to end first; how is for its own request to
 * tell.
 */
#include "request.h"

#include "buffer.h"

xep_status_t xep_request_order_stream(xep_request_t *req, void *stream)
{
    xep_buffer_t *buffer = req->buffer;
    xep_buffer_enter(buffer);
    if (buffer->staging != NULL) (void)xep_request_finish(req);
    else xep_request_advance_all(buffer);
    xep_status_t status = buffer->device->ops->follow(buffer->device, stream);
    xep_buffer_leave(buffer);
    return status;
}
