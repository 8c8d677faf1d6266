/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Device memory: what an operation is without is decided by kernels, on each rank (plugins/cuda/cuda_outs.cuh). Here
 * the host and they tell one another who is out. Without the host a kernel finds it out by itself, at its deadline.
 */
#include "group_out.h"
#include "members.h"

enum { LEFT_OUT = 1, HAS_ENDED = 2 };

xep_status_t xep_members_open_device(xep_buffer_t *buffer)
{
    xep_status_t status = buffer->device->ops->make_outs(buffer->device, buffer->shape.nranks);
    if (status != XEP_OK) return status;
    buffer->group->goes_on = 1;
    buffer->goes_on = 1;
    return XEP_OK;
}

/* One that was only late may end later. */
static void tell_gone(xep_buffer_t *buffer, uint32_t rank)
{
    uint32_t *gone = &buffer->device->device.gone[rank];
    if (*gone == HAS_ENDED || !xep_group_is_out(buffer->group, rank)) return;
    __atomic_store_n(gone, xep_group_has_ended(buffer->group, rank) ? HAS_ENDED : LEFT_OUT, __ATOMIC_RELEASE);
}

void xep_members_look_at_device(xep_buffer_t *buffer)
{
    if (buffer->device == NULL || buffer->device->device.left == NULL) return;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        const uint32_t left = __atomic_load_n(&buffer->device->device.left[r], __ATOMIC_ACQUIRE);
        if (left != 0 && r == buffer->shape.rank) buffer->group->left_out = 1;
        else if (left != 0 && !xep_group_is_out(buffer->group, r))
            xep_group_put_out(buffer->group, r, xep_group_has_died(buffer->group, r) ? XEP_OUT_DIED : XEP_OUT_LATE);
        tell_gone(buffer, r);
    }
}
