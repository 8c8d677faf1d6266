/* SPDX-License-Identifier: BSD-3-Clause */

/* Arrays are one row. Addresses were checked when the operation was captured. */
#include <string.h>

#include "staging_graph.h"

static xep_copy_list_t *list_of(xep_device_t *device)
{
    return (xep_copy_list_t *)(void *)device;
}

static xep_status_t append(xep_copy_list_t *list, const xep_captured_copy_t *copy)
{
    if (copy->bytes == 0 || copy->rows == 0) return XEP_OK;
    if (list->count == list->most)
        return xep_fail(XEP_ERR_NO_MEMORY, "a captured operation has more than %u copies", list->most);
    list->copies[list->count++] = *copy;
    return XEP_OK;
}

/* Counts and places are the mode's, in memory that is not pinned. */
static xep_status_t keep(xep_copy_list_t *list, const void **from_p, uint64_t bytes)
{
    const uint64_t room = (bytes + 15) / 16 * 16, at = (uintptr_t)*from_p - (uintptr_t)list->pinned;
    if (!list->is_shown || at < list->pinned_bytes) return XEP_OK;
    if (room > list->kept_most - list->kept_bytes)
        return xep_fail(XEP_ERR_NO_MEMORY, "a captured operation shows more than %llu bytes beside the heap",
                        (unsigned long long)list->kept_most);
    *from_p = memcpy(list->kept + list->kept_bytes, *from_p, bytes);
    list->kept_bytes += room;
    return XEP_OK;
}

static xep_status_t list_copy(xep_device_t *device, void *to, size_t to_stride, const void *from, size_t from_stride,
                              size_t bytes, size_t rows, void *stream)
{
    xep_copy_list_t *list = list_of(device);
    (void)stream;
    if (list->is_capture) return XEP_OK;
    if (rows != 1 && (to_stride != bytes || from_stride != bytes))
        return append(list, &(xep_captured_copy_t){to, from, to_stride, from_stride, bytes, rows});
    xep_status_t status = keep(list, &from, bytes * rows);
    if (status != XEP_OK) return status;
    return append(list, &(xep_captured_copy_t){.to = to, .from = from, .bytes = bytes * rows, .rows = 1});
}

static xep_status_t list_check(xep_device_t *device, const char *name, const void *address)
{
    xep_copy_list_t *list = list_of(device);
    return list->is_capture ? list->device->ops->check(list->device, name, address) : XEP_OK;
}

static xep_status_t list_check_host(xep_device_t *device, const char *name, const void *address)
{
    xep_copy_list_t *list = list_of(device);
    if (list->is_capture) return list->device->ops->check_host(list->device, name, address);
    return list->rows_on_device ? XEP_ERR_INVALID : XEP_OK;
}

/* A graph orders itself. */
static xep_status_t on_stream(xep_device_t *device, void *stream)
{
    (void)device, (void)stream;
    return XEP_OK;
}

static int is_captured(xep_device_t *device, void *stream)
{
    (void)device, (void)stream;
    return 0;
}

static xep_status_t list_note(xep_heap_device_t *device, uint32_t number, void *stream)
{
    (void)device, (void)number, (void)stream;
    return XEP_OK;
}

void xep_copy_list_begin(xep_copy_list_t *list, xep_heap_device_t *device)
{
    list->device = &device->device;
    list->as = *device;
    list->heap_ops = *device->ops;
    list->ops = *device->device.ops;
    list->as.ops = &list->heap_ops;
    list->as.device.ops = &list->ops;
    list->heap_ops.note = list_note;
    list->ops.copy = list_copy;
    list->ops.check = list_check;
    list->ops.check_host = list_check_host;
    list->ops.check_stream = list->ops.after_mark = list->ops.mark = on_stream;
    list->ops.is_captured = is_captured;
}
