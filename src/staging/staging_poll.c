/* SPDX-License-Identifier: BSD-3-Clause */

#include "staging.h"

#include "request.h"
#include "staging_slots.h"

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
