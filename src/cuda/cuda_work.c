/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a mode makes its device do. Every call is made in the context of the buffer, and leaves the thread with the
 * context it came with. Functions with a stream enqueue and return; the caller must keep the memory until the stream is
 * past it.
 */
#include "cuda_work.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

/* Leaves the context that the call was made in. */
static xep_status_t end(xep_cuda_device_t *cuda, cuda_result_t result, const char *what)
{
    xep_cuda_leave(cuda);
    return xep_cuda_check(&cuda->driver, result, what);
}

/* From memory that is not pinned the driver would copy with the host waiting in the call. */
xep_status_t xep_cuda_work_pin(xep_heap_device_t *device, void *base, uint64_t bytes)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    const cuda_result_t result = cuda->driver.host_pin(base, bytes, 0);
    if (result == CUDA_DONE) cuda->pinned = base;
    /* a UCX that knows CUDA has pinned the heap, and will unpin it */
    return end(cuda, result == CUDA_ALREADY_PINNED ? CUDA_DONE : result, "pin memory of the host");
}

void xep_cuda_work_unpin(xep_heap_device_t *device, void *base)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    if (cuda->pinned != base) return;
    xep_cuda_enter(cuda);
    cuda->driver.host_unpin(base);
    xep_cuda_leave(cuda);
    cuda->pinned = NULL;
}

/*
 * A kernel gets at most 48 KiB of dynamic shared memory, unless more is allowed before its first launch: that is done
 * here, so launches need no check.
 */
xep_status_t xep_cuda_work_find(xep_device_t *device, void *module, const char *name, uint32_t shared_bytes,
                                void **kernel_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.module_function(kernel_p, module, name);
    if (result == CUDA_DONE)
        result = cuda->driver.function_attribute(*kernel_p, CUDA_KERNEL_SHARED_BYTES, (int)shared_bytes);
    return end(cuda, result, "find a kernel of the mode");
}

/* Kernels take one struct by value. The driver copies it during the call, so it may lie on the caller's stack. */
xep_status_t xep_cuda_work_launch(xep_device_t *device, const xep_launch_t *launch)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    void *args[] = {launch->args};
    cuda_launch_attribute_t follows = {.id = CUDA_LAUNCH_FOLLOWS, .value.on = 1};
    const cuda_launch_t how = {.grid_x = launch->blocks,
                               .grid_y = 1,
                               .grid_z = 1,
                               .block_x = launch->threads,
                               .block_y = 1,
                               .block_z = 1,
                               .shared_bytes = launch->shared_bytes,
                               .stream = launch->stream,
                               .attributes = &follows,
                               .nattributes = launch->follows != 0};
    xep_cuda_enter(cuda);
    return end(cuda, cuda->driver.launch(&how, launch->kernel, args, NULL), "launch a kernel");
}

static cuda_result_t copy_strided(const xep_cuda_device_t *cuda, void *to, size_t to_stride, const void *from,
                                  size_t from_stride, size_t bytes, size_t rows, void *stream)
{
    const cuda_copy_t copy = {.from_kind = CUDA_KIND_UNIFIED,
                              .from_device = (cuda_address_t)from,
                              .from_pitch = from_stride,
                              .to_kind = CUDA_KIND_UNIFIED,
                              .to_device = (cuda_address_t)to,
                              .to_pitch = to_stride,
                              .bytes = bytes,
                              .rows = rows};
    return cuda->driver.memory_copy_strided(&copy, stream);
}

/*
 * Dense rows are one flat copy: on an H200 the driver moves that at 4.09 TB/s, a strided one at 1.66. Rows of a user
 * and of a slot may lie differently far apart. The driver finds out itself on which side the device is.
 */
xep_status_t xep_cuda_work_copy(xep_device_t *device, void *to, size_t to_stride, const void *from, size_t from_stride,
                                size_t bytes, size_t rows, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    const int dense = rows == 1 || (to_stride == bytes && from_stride == bytes);
    if (bytes == 0 || rows == 0) return XEP_OK;
    xep_cuda_enter(cuda);
    return end(cuda,
               dense ? cuda->driver.memory_copy((cuda_address_t)to, (cuda_address_t)from, bytes * rows, stream)
                     : copy_strided(cuda, to, to_stride, from, from_stride, bytes, rows, stream),
               "copy rows");
}

xep_status_t xep_cuda_work_fill(xep_device_t *device, void *to, uint8_t value, size_t bytes, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    if (bytes == 0) return XEP_OK;
    xep_cuda_enter(cuda);
    return end(cuda, cuda->driver.memory_fill((cuda_address_t)to, value, bytes, stream), "fill memory");
}

/* Captured work runs when the graph does: the program must order the graph after earlier operations. */
static int is_captured(const xep_cuda_device_t *cuda, void *stream)
{
    int status = 0;
    return stream != NULL && cuda->driver.stream_capturing(stream, &status) == CUDA_DONE && status != 0;
}

/* NULL is the default stream of the buffer's context, and always valid. */
xep_status_t xep_cuda_work_check_stream(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    cuda_handle_t context = cuda->context;
    cuda_result_t result = CUDA_DONE;
    xep_cuda_enter(cuda);
    if (stream != NULL) result = cuda->driver.stream_context(stream, &context);
    xep_cuda_leave(cuda);
    if (result == CUDA_DONE && context == cuda->context) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid stream: %p is of another context (CUDA device %d, in the context that the buffer is in)",
                    stream, cuda->heap.number);
}

/*
 * Orders operations of a buffer on different streams. Waiting for an event that was never recorded is a no-op, so the
 * first operation needs no special case. The driver would let a stream of another device wait, too, and refuse it only
 * at the launch, when other ranks already count on this one: so the stream's device is checked here.
 */
xep_status_t xep_cuda_work_after_mark(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    cuda_result_t result = CUDA_DONE;
    xep_status_t status = xep_cuda_work_check_stream(device, stream);
    if (status != XEP_OK) return status;
    xep_cuda_enter(cuda);
    if (!is_captured(cuda, stream)) result = cuda->driver.stream_wait(stream, cuda->marked, 0);
    return end(cuda, result, "let the stream wait");
}

int xep_cuda_work_is_captured(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    const int captured = is_captured(cuda, stream);
    xep_cuda_leave(cuda);
    return captured;
}

/*
 * For a stream of the program. One that is being captured is refused: it cannot wait for an event outside its graph,
 * and must not go on unordered.
 */
xep_status_t xep_cuda_work_follow(xep_heap_device_t *device, void *stream)
{
    if (xep_cuda_work_is_captured(&device->device, stream))
        return xep_fail(XEP_ERR_INVALID,
                        "invalid stream: %p is being captured (use another: only events order a graph)", stream);
    return xep_cuda_work_after_mark(&device->device, stream);
}

/* Each operation records the same event again: a wait that was enqueued before is for the earlier record. */
xep_status_t xep_cuda_work_mark(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    return end(cuda, is_captured(cuda, stream) ? CUDA_DONE : cuda->driver.event_record(cuda->marked, stream),
               "mark the stream");
}

xep_status_t xep_cuda_work_own_stream(xep_heap_device_t *device, void **stream_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    cuda_result_t result = CUDA_DONE;
    if (cuda->own == NULL) result = cuda->driver.stream_create(&cuda->own, CUDA_STREAM_NON_BLOCKING);
    *stream_p = cuda->own;
    return end(cuda, result, "use a second stream");
}

/* In a graph, too: streams that wait for an event of it are in it. */
xep_status_t xep_cuda_work_part(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    cuda_result_t result = CUDA_DONE;
    xep_cuda_enter(cuda);
    if (cuda->parted == NULL) result = cuda->driver.event_create(&cuda->parted, CUDA_EVENT_NO_TIMING);
    if (result == CUDA_DONE) result = cuda->driver.event_record(cuda->parted, stream);
    return end(cuda, result, "part the stream's work");
}

xep_status_t xep_cuda_work_branch(xep_device_t *device, void **second_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_status_t status = xep_cuda_work_own_stream(&cuda->heap, second_p);
    if (status != XEP_OK) return status;
    xep_cuda_enter(cuda);
    return end(cuda, cuda->driver.stream_wait(cuda->own, cuda->parted, 0), "let the second stream wait");
}

/* By the same event: what waits for it already does so for its earlier record. */
xep_status_t xep_cuda_work_join(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.event_record(cuda->parted, cuda->own);
    if (result == CUDA_DONE) result = cuda->driver.stream_wait(stream, cuda->parted, 0);
    return end(cuda, result, "let the stream wait");
}

/* Notes are events beside the mark, only for the host to wait for. */
xep_status_t xep_cuda_work_make_notes(xep_heap_device_t *device, uint32_t count)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    cuda_result_t result = CUDA_DONE;
    cuda->notes = calloc(count, sizeof *cuda->notes);
    if (cuda->notes == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u events", count);
    xep_cuda_enter(cuda);
    for (uint32_t i = 0; i < count && result == CUDA_DONE; i++) {
        result = cuda->driver.event_create(&cuda->notes[i], CUDA_EVENT_NO_TIMING);
        cuda->nnotes += result == CUDA_DONE;
    }
    return end(cuda, result, "make events");
}

/* One block: that of gone is freed. */
xep_status_t xep_cuda_work_make_outs(xep_heap_device_t *device, uint32_t nranks)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    const size_t bytes = 2 * (size_t)nranks * sizeof *device->device.gone;
    void *memory = NULL;
    xep_cuda_enter(cuda);
    xep_status_t status = end(cuda, cuda->driver.host_allocate(&memory, bytes, 0), "allocate words for ranks");
    if (status != XEP_OK) return status;
    memset(memory, 0, bytes);
    device->device.gone = memory;
    device->device.left = device->device.gone + nranks;
    return XEP_OK;
}

xep_status_t xep_cuda_work_note(xep_heap_device_t *device, uint32_t number, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    return end(cuda, cuda->driver.event_record(cuda->notes[number], stream), "note how far the stream has come");
}

xep_status_t xep_cuda_work_reached(xep_heap_device_t *device, uint32_t number)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.event_query(cuda->notes[number]);
    if (result != CUDA_NOT_READY) return end(cuda, result, "tell how far the stream has come");
    xep_cuda_leave(cuda);
    return XEP_INPROGRESS;
}

xep_status_t xep_cuda_work_after_note(xep_heap_device_t *device, uint32_t number, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    return end(cuda, cuda->driver.stream_wait(stream, cuda->notes[number], 0), "let the stream wait");
}

/* Errors of a context are sticky: any call returns them. */
xep_status_t xep_cuda_work_works(xep_heap_device_t *device)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.event_query(cuda->marked);
    return end(cuda, result == CUDA_NOT_READY ? CUDA_DONE : result, "go on with its work");
}

/* The number of the memory's device; -1: host memory, which includes addresses that the driver does not know. */
static int device_of(xep_cuda_device_t *cuda, const void *address)
{
    unsigned kind = 0;
    int number = -1;
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.pointer_attribute(&kind, CUDA_POINTER_MEMORY, (cuda_address_t)address);
    if (result == CUDA_DONE && kind == CUDA_MEMORY_DEVICE)
        result = cuda->driver.pointer_attribute(&number, CUDA_POINTER_DEVICE, (cuda_address_t)address);
    xep_cuda_leave(cuda);
    return result == CUDA_DONE ? number : -1;
}

/* An address that a kernel cannot read would break the context, with everything the program has in it. */
xep_status_t xep_cuda_work_check(xep_device_t *device, const char *name, const void *address)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    const int number = address == NULL ? cuda->heap.number : device_of(cuda, address);
    if (number < 0)
        return xep_fail(XEP_ERR_INVALID, "invalid %s: %p is host memory (memory of CUDA device %d)", name, address,
                        cuda->heap.number);
    if (number != cuda->heap.number)
        return xep_fail(XEP_ERR_INVALID, "invalid %s: %p is memory of CUDA device %d (of CUDA device %d)", name,
                        address, number, cuda->heap.number);
    return XEP_OK;
}

/* Where the host writes itself, it would crash. */
xep_status_t xep_cuda_work_check_host(xep_device_t *device, const char *name, const void *address)
{
    const int number = address == NULL ? -1 : device_of(xep_cuda_of(device), address);
    if (number < 0) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid %s: %p is memory of CUDA device %d (host memory)", name, address, number);
}

/*
 * Waits for all streams of the context, including the program's: only when a buffer is made, reset or ended, never for
 * an operation.
 */
xep_status_t xep_cuda_work_sync(xep_device_t *device)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    return end(cuda, cuda->driver.context_sync(), "end its work");
}
