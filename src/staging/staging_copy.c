/* SPDX-License-Identifier: BSD-3-Clause */

#include "staging.h"

#include "request.h"
#include "staging_slots.h"

xep_status_t xep_staging_copy(const xep_buffer_t *buffer, const staged_matrix_t *matrices, size_t count, void *stream)
{
    xep_device_t *device = &buffer->staging->to->device;
    xep_status_t status = XEP_OK;
    for (const staged_matrix_t *m = matrices; m < matrices + count && status == XEP_OK; m++)
        if (m->from != NULL && m->to != NULL)
            status = device->ops->copy(device, m->to, m->to_stride, m->from, m->from_stride, m->bytes, m->rows, stream);
    return status;
}

/* Without rows the address is not used, and many callers have none to give then. */
xep_status_t xep_staging_check(const xep_buffer_t *buffer, const char *name, const void *address, uint64_t rows)
{
    xep_device_t *device = &buffer->staging->to->device;
    return rows == 0 ? XEP_OK : device->ops->check(device, name, address);
}

/* A graph would replay the copies, but not what the host does between them. */
xep_status_t xep_staging_check_stream(const xep_buffer_t *buffer, void *stream)
{
    xep_device_t *device = &buffer->staging->to->device;
    xep_status_t status = device->ops->check_stream(device, stream);
    if (status != XEP_OK || !device->ops->is_captured(device, stream)) return status;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid stream: %p is being captured (one that is not%s: where ranks are not mapped, the host "
                    "takes part in every operation)",
                    stream, buffer->group->progress_thread == NULL ? ", or XEP_PROGRESS=thread" : "");
}

/*
 * All notes of an operation are on one stream and so are reached in order: the first one not reached ends the search.
 * So each call asks the device once, and not at all after the last part.
 */
xep_status_t xep_staging_poll(xep_request_t *req)
{
    xep_heap_device_t *device = req->buffer->device;
    staged_slot_t *slot = &req->buffer->staging->slots[req->op.slot];
    while (slot->parts_here < slot->parts) {
        xep_status_t status = device->ops->reached(device, staged_note(req->op.slot, slot->parts_here));
        if (status == XEP_INPROGRESS) break;
        if (status != XEP_OK) return status;
        slot->parts_here++;
    }
    req->op.coming = slot->coming - staged_part_begin(slot, slot->parts_here);
    return XEP_OK;
}
