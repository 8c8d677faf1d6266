/* SPDX-License-Identifier: BSD-3-Clause */

#include "packed_payloads.h"

#include "request.h"
#include "staging.h"

static uint32_t align(uint32_t bytes, uint32_t alignment)
{
    return (bytes + alignment - 1) & ~(alignment - 1);
}

/* Behind so many bytes; alignment 0 is 1. */
static uint32_t place(uint32_t bytes, const xep_payload_t *payload)
{
    return align(bytes, payload->alignment != 0 ? payload->alignment : 1);
}

/* Rounded up to the largest alignment, so that the payloads of the next row are aligned, too. */
uint32_t xep_packed_words(const xep_dispatch_args_t *args)
{
    uint32_t bytes = args->nscales * 4, most = 4;
    for (uint32_t i = 0; i < args->npayloads; i++) {
        bytes = place(bytes, &args->payloads[i]) + args->payloads[i].bytes;
        if (most < args->payloads[i].alignment) most = args->payloads[i].alignment;
    }
    return align(bytes, most) / 4;
}

static uint64_t bytes_of_slot(const xep_buffer_t *buffer)
{
    return buffer->shape.tokens * buffer->shape.scales * 4;
}

/* ---- as they are sent ---- */

/* One copy, if the scales of a token lie one behind the other. */
static xep_status_t pack_scales(xep_device_t *device, const xep_dispatch_args_t *a, char *to, size_t row)
{
    const uint32_t copies = a->scales_stride == 4 ? 1 : a->nscales, words = a->nscales / (copies != 0 ? copies : 1);
    xep_status_t status = XEP_OK;
    for (uint32_t s = 0; s < copies && words != 0 && status == XEP_OK; s++)
        status = device->ops->copy(device, to + 4 * (size_t)s, row, (const char *)a->scales + s * a->scales_stride,
                                   (size_t)a->scales_token_stride, 4 * (size_t)words, a->tokens, a->stream);
    return status;
}

static xep_status_t copy_all(xep_device_t *device, const xep_dispatch_args_t *a, char *to, size_t row)
{
    uint32_t at = a->nscales * 4;
    xep_status_t status = device->ops->check_stream(device, a->stream);
    if (status == XEP_OK && a->nscales != 0) status = device->ops->check(device, "scales", a->scales);
    for (uint32_t i = 0; i < a->npayloads && status == XEP_OK; i++)
        status = device->ops->check(device, "data of a payload", a->payloads[i].data);
    if (status == XEP_OK) status = device->ops->after_mark(device, a->stream);
    if (status == XEP_OK) status = pack_scales(device, a, to, row);
    for (uint32_t i = 0; i < a->npayloads && status == XEP_OK; i++) {
        const xep_payload_t *payload = &a->payloads[i];
        at = place(at, payload);
        status = device->ops->copy(device, to + at, row, payload->data, payload->stride, payload->bytes, a->tokens,
                                   a->stream);
        at += payload->bytes;
    }
    return status;
}

/* The slot is the request's by now. */
static xep_status_t pack(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_handle_t *handle = req->handle;
    xep_dispatch_args_t *a = &req->dispatch;
    const uint32_t words = xep_packed_words(a);
    char *to = buffer->packed + handle->slot * bytes_of_slot(buffer);
    xep_status_t status = a->tokens == 0 ? XEP_OK : copy_all(&buffer->device->device, a, to, words * (size_t)4);
    if (status != XEP_OK) return status;
    handle->packed = (xep_packed_t){.nscales = a->nscales, .npayloads = a->npayloads};
    a->scales = to;
    a->nscales = words;
    a->scales_stride = 4;
    a->scales_token_stride = words * (ptrdiff_t)4;
    a->payloads = NULL;
    a->npayloads = 0;
    return XEP_OK;
}

xep_status_t xep_packed_take(xep_request_t *req)
{
    req->handle->packed.npayloads = 0;
    return req->dispatch.npayloads != 0 ? pack(req) : XEP_OK;
}

xep_status_t xep_packed_open(xep_buffer_t *buffer)
{
    xep_device_t *device = &buffer->device->device;
    const uint64_t bytes = buffer->shape.slots * bytes_of_slot(buffer);
    void *memory = NULL;
    xep_status_t status = bytes == 0 ? XEP_OK : device->ops->allocate(device, XEP_MEMORY_CUDA, bytes, &memory);
    buffer->packed = memory;
    if (buffer->staging == NULL) buffer->take_dispatch = xep_packed_take; /* else xep_staging_take() begins with it */
    return status;
}

/* ---- as they arrive ---- */

static const xep_recv_t *find_recv(const xep_handle_t *handle)
{
    return handle->buffer->staging != NULL ? xep_staging_recv(handle) : &handle->recv;
}

const xep_recv_t *xep_packed_recv(const xep_handle_t *handle)
{
    return handle->packed.npayloads != 0 ? &handle->packed.shown : find_recv(handle);
}

void xep_packed_show(xep_handle_t *handle)
{
    const uint32_t nscales = handle->packed.nscales, npayloads = handle->packed.npayloads;
    const xep_recv_t *recv = find_recv(handle);
    xep_recv_t shown = *recv; /* the program may be reading what a launch of a graph shows again */
    uint32_t at = nscales * 4;
    if (npayloads == 0) return;
    for (uint32_t i = 0; i < npayloads; i++) {
        xep_payload_t *payload = &handle->payloads[i];
        at = place(at, payload);
        payload->data = (char *)recv->scales + at;
        payload->stride = (size_t)recv->scales_token_stride;
        at += payload->bytes;
    }
    shown.nscales = nscales;
    if (nscales == 0) shown.scales = NULL;
    shown.payloads = handle->payloads;
    shown.npayloads = npayloads;
    handle->packed.shown = shown;
}
