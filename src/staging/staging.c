/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The memory of copies. Host memory is part of the heap: the transport knows it, so rows leave from it without another
 * copy; and if a buffer ends without all ranks, it stays as long as the heap, since the transport may still read it.
 */
#include "staging.h"

#include <stdlib.h>

#include "log.h"
#include "staging_graph.h"
#include "staging_slots.h"

enum { LINE = 64, PAGE = 4096, ROWS_OF_A_WORD = 4 * 16 * 2 };

/* ---- how much ---- */

static uint64_t lines(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Every array begins at a cache line. An end from UINT64_MAX / 2 on means that it does not fit. */
static uint64_t carve(uint64_t *end_p, uint64_t count, uint64_t bytes)
{
    uint64_t begin = *end_p;
    if (__builtin_mul_overflow(count, bytes, &bytes) || __builtin_add_overflow(bytes, begin, end_p) ||
        *end_p > UINT64_MAX / 2)
        *end_p = UINT64_MAX / 2;
    *end_p = lines(*end_p);
    return begin;
}

static uint64_t x_stride(const xep_shape_t *shape)
{
    return lines((uint64_t)shape->hidden * shape->elem_bytes);
}

static uint64_t y_stride(const xep_shape_t *shape)
{
    return lines((uint64_t)shape->hidden * shape->combine_elem_bytes);
}

/* Sized for the experts of rank 0, which has the most, so that all ranks have the same layout. */
static staged_inputs_t lay_inputs(const xep_shape_t *shape, uint64_t recv_rows)
{
    const uint64_t selections = shape->tokens * shape->topk; /* of less than 2^31 each */
    uint64_t dispatch = 0, combine = 0;
    staged_inputs_t at = {.x = carve(&dispatch, shape->tokens, x_stride(shape)),
                          .idx = carve(&dispatch, selections, sizeof(int64_t)),
                          .weights = carve(&dispatch, selections, sizeof(float)),
                          .scales = carve(&dispatch, shape->tokens, (uint64_t)shape->scales * 4),
                          .stats = carve(&dispatch, shape->most_experts, sizeof(int32_t)),
                          .rows = carve(&dispatch, 1, sizeof(uint64_t)),
                          .y = carve(&combine, recv_rows, y_stride(shape)),
                          .y_weights = carve(&combine, recv_rows, shape->topk * sizeof(float)),
                          .bias[0] = carve(&combine, shape->tokens, y_stride(shape)),
                          .bias[1] = carve(&combine, shape->tokens, y_stride(shape)),
                          .source_weights = carve(&combine, selections, sizeof(float)),
                          .out = carve(&combine, shape->tokens, y_stride(shape)),
                          .out_weights = carve(&combine, selections, sizeof(float))};
    at.bytes = dispatch > combine ? dispatch : combine;
    return at;
}

/*
 * Rows that are cast on the way have at most a byte of scales for every 16 elements, which are of 2 bytes at least, and
 * a word (NVFP4).
 */
static staged_views_t lay_views(const xep_shape_t *shape, uint64_t recv_rows)
{
    const uint64_t cast = x_stride(shape) / ROWS_OF_A_WORD + 2, experts = shape->most_experts;
    const uint64_t scales = shape->scales > cast ? shape->scales : cast;
    uint64_t end = 0;
    staged_views_t at = {.x = carve(&end, recv_rows, x_stride(shape)),
                         .idx = carve(&end, recv_rows, shape->topk * sizeof(int64_t)),
                         .weights = carve(&end, recv_rows, shape->topk * sizeof(float)),
                         .scales = carve(&end, recv_rows, scales * 4),
                         .src_token = carve(&end, recv_rows, sizeof(int32_t)),
                         .input = carve(&end, recv_rows, y_stride(shape)),
                         .expert_rows = carve(&end, experts, sizeof(uint64_t)),
                         .expert_begin = carve(&end, experts, sizeof(uint64_t)),
                         .expert_count = carve(&end, experts, sizeof(uint64_t)),
                         .pair_begin = carve(&end, experts * shape->nranks, sizeof(uint32_t)),
                         .pair_count = carve(&end, experts * shape->nranks, sizeof(uint32_t))};
    at.bytes = end;
    return at;
}

xep_status_t xep_staging_measure(const xep_shape_t *shape, uint64_t recv_rows, uint64_t *begin_p, uint64_t *bytes_p,
                                 uint64_t *device_bytes_p)
{
    uint64_t end = (*bytes_p + PAGE - 1) / PAGE * PAGE, device = 0;
    *begin_p = end;
    carve(&end, shape->slots, lay_inputs(shape, recv_rows).bytes);
    carve(&device, shape->slots, lay_views(shape, recv_rows).bytes);
    if (end >= UINT64_MAX / 2 || device >= UINT64_MAX / 2)
        return xep_fail(XEP_ERR_NO_MEMORY, "the size of copies in host memory does not fit into 64 bits");
    *bytes_p = end;
    *device_bytes_p = device;
    return XEP_OK;
}

/* ---- open and close ---- */

/* Without pinned pages copies work as well, but the calls that enqueue them wait for the device. */
static void pin_heap(xep_buffer_t *buffer)
{
    xep_heap_device_t *device = buffer->device;
    buffer->staging->pinned = device->ops->pin(device, buffer->heap->base, buffer->heap->bytes) == XEP_OK;
    if (!buffer->staging->pinned)
        xep_log(XEP_LOG_WARN, "copies to and from CUDA device %d will be slow: %s", device->number, xep_last_error());
}

xep_status_t xep_staging_open(xep_buffer_t *buffer)
{
    const xep_shape_t *shape = &buffer->shape;
    xep_device_t *device = &buffer->device->device;
    xep_staging_t *staging = calloc(1, sizeof *staging + shape->slots * sizeof *staging->slots);
    void *there = NULL;
    if (staging == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u slots", shape->slots);
    buffer->staging = staging;
    staging->to = buffer->device;
    staging->take_on_host = buffer->take_dispatch;
    buffer->take_dispatch = xep_staging_take;
    staging->came = calloc(shape->slots, shape->nranks);
    if (staging->came == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u slots", shape->slots);
    for (uint32_t s = 0; s < shape->slots; s++) staging->slots[s].came = staging->came + (size_t)s * shape->nranks;
    staging->inputs = lay_inputs(shape, shape->recv_rows);
    staging->views = lay_views(shape, shape->recv_rows);
    staging->x_stride = x_stride(shape);
    staging->y_stride = y_stride(shape);
    staging->here = (char *)buffer->heap->base + buffer->areas.staging;
    xep_status_t status = device->ops->allocate(device, XEP_MEMORY_CUDA, shape->slots * staging->views.bytes, &there);
    staging->there = there;
    if (status == XEP_OK) status = buffer->device->ops->make_notes(buffer->device, staged_note(shape->slots, 0));
    if (status == XEP_OK) pin_heap(buffer);
    if (status == XEP_OK) status = xep_staging_open_direct(buffer);
    if (status == XEP_OK) status = xep_graphs_open(buffer);
    /* the zeros are there before anything is copied over them */
    return status == XEP_OK ? device->ops->sync(device) : status;
}

void xep_staging_close(xep_buffer_t *buffer)
{
    xep_staging_t *staging = buffer->staging;
    if (staging == NULL) return;
    xep_heap_device_t *device = buffer->device;
    xep_graphs_close(buffer);
    xep_staging_close_direct(buffer);
    device->device.ops->release(&device->device, XEP_MEMORY_HOST, staging->layout);
    device->device.ops->release(&device->device, XEP_MEMORY_CUDA, staging->there);
    free(staging->came);
    free(staging);
    buffer->staging = NULL;
}
