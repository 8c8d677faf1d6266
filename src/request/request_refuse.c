/* SPDX-License-Identifier: BSD-3-Clause */

#include "request.h"

#include <stdio.h>

#include "buffer.h"

/* The count wraps, so it is the sign of the difference that says who is ahead. */
static int is_behind(const xep_buffer_t *buffer, uint32_t most)
{
    return (int32_t)(most - buffer->refused) > 0;
}

xep_status_t xep_request_keep_pace(const xep_buffer_t *buffer)
{
    if (!is_behind(buffer, buffer->refused_most)) return XEP_OK;
    return xep_fail(XEP_ERR_MISMATCH, "this call is refused on this rank, too: %s", buffer->refused_reason);
}

/* Who is told to try again, or to reset the buffer, is still in the same call. */
xep_status_t xep_request_count_refused(xep_buffer_t *buffer, xep_status_t status)
{
    if (status != XEP_OK && status != XEP_ERR_BUSY && status != XEP_ERR_BROKEN && status != XEP_ERR_ABORTED)
        buffer->refused++;
    return status;
}

void xep_request_note_pace(const xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    if (!is_behind(buffer, req->op.refused) || (int32_t)(req->op.refused - buffer->refused_most) < 0) return;
    buffer->refused_most = req->op.refused;
    snprintf(buffer->refused_reason, sizeof buffer->refused_reason, "%s", req->reason);
}

void xep_request_forget_refused(xep_buffer_t *buffer)
{
    buffer->refused = buffer->refused_most = 0;
}
