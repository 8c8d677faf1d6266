/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a mode makes its device do. Every call is made in the context of the buffer, and leaves the thread with the
 * context it came with. Functions with a stream enqueue and return; the caller must keep the memory until the stream is
 * past it.
 */
#include "cuda_work.h"

#include "cuda_memory.h"
#include "error.h"

/*
 * A kernel gets at most 48 KiB of dynamic shared memory, unless more is allowed before its first launch: that is done
 * here, so launches need no check.
 */
static xep_status_t find_kernel(xep_device_t *device, void *module, const char *name, uint32_t shared_bytes,
                                void **kernel_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.module_function(kernel_p, module, name);
    if (result == CUDA_DONE)
        result = cuda->driver.function_attribute(*kernel_p, CUDA_KERNEL_SHARED_BYTES, (int)shared_bytes);
    return xep_cuda_end(cuda, result, "find a kernel of the mode");
}

/* Kernels take one struct by value. The driver copies it during the call, so it may lie on the caller's stack. */
static xep_status_t launch_kernel(xep_device_t *device, const xep_launch_t *launch)
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
    return xep_cuda_end(cuda, cuda->driver.launch(&how, launch->kernel, args, NULL), "launch a kernel");
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
static xep_status_t copy_rows(xep_device_t *device, void *to, size_t to_stride, const void *from, size_t from_stride,
                              size_t bytes, size_t rows, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    const int dense = rows == 1 || (to_stride == bytes && from_stride == bytes);
    if (bytes == 0 || rows == 0) return XEP_OK;
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda,
                        dense ? cuda->driver.memory_copy((cuda_address_t)to, (cuda_address_t)from, bytes * rows, stream)
                              : copy_strided(cuda, to, to_stride, from, from_stride, bytes, rows, stream),
                        "copy rows");
}

static xep_status_t fill_memory(xep_device_t *device, void *to, uint8_t value, size_t bytes, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    if (bytes == 0) return XEP_OK;
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda, cuda->driver.memory_fill((cuda_address_t)to, value, bytes, stream), "fill memory");
}

/* Captured work runs when the graph does: the program must order the graph after earlier operations. */
static int is_captured(const xep_cuda_device_t *cuda, void *stream)
{
    int status = 0;
    return stream != NULL && cuda->driver.stream_capturing(stream, &status) == CUDA_DONE && status != 0;
}

/* NULL is the default stream of the buffer's context, and always valid. */
static xep_status_t check_stream(xep_device_t *device, void *stream)
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
    xep_status_t status = check_stream(device, stream);
    if (status != XEP_OK) return status;
    xep_cuda_enter(cuda);
    if (!is_captured(cuda, stream)) result = cuda->driver.stream_wait(stream, cuda->marked, 0);
    return xep_cuda_end(cuda, result, "let the stream wait");
}

int xep_cuda_work_is_captured(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    const int captured = is_captured(cuda, stream);
    xep_cuda_leave(cuda);
    return captured;
}

/* Each operation records the same event again: a wait that was enqueued before is for the earlier record. */
static xep_status_t set_mark(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda, is_captured(cuda, stream) ? CUDA_DONE : cuda->driver.event_record(cuda->marked, stream),
                        "mark the stream");
}

xep_status_t xep_cuda_work_own_stream(xep_heap_device_t *device, void **stream_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    cuda_result_t result = CUDA_DONE;
    if (cuda->own == NULL) result = cuda->driver.stream_create(&cuda->own, CUDA_STREAM_NON_BLOCKING);
    *stream_p = cuda->own;
    return xep_cuda_end(cuda, result, "use a second stream");
}

/* In a graph, too: streams that wait for an event of it are in it. */
static xep_status_t part(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    cuda_result_t result = CUDA_DONE;
    xep_cuda_enter(cuda);
    if (cuda->parted == NULL) result = cuda->driver.event_create(&cuda->parted, CUDA_EVENT_NO_TIMING);
    if (result == CUDA_DONE) result = cuda->driver.event_record(cuda->parted, stream);
    return xep_cuda_end(cuda, result, "part the stream's work");
}

static xep_status_t branch(xep_device_t *device, void **second_p)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_status_t status = xep_cuda_work_own_stream(&cuda->heap, second_p);
    if (status != XEP_OK) return status;
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda, cuda->driver.stream_wait(cuda->own, cuda->parted, 0), "let the second stream wait");
}

/* By the same event: what waits for it already does so for its earlier record. */
static xep_status_t join(xep_device_t *device, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.event_record(cuda->parted, cuda->own);
    if (result == CUDA_DONE) result = cuda->driver.stream_wait(stream, cuda->parted, 0);
    return xep_cuda_end(cuda, result, "let the stream wait");
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
static xep_status_t check_memory(xep_device_t *device, const char *name, const void *address)
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
static xep_status_t check_host(xep_device_t *device, const char *name, const void *address)
{
    const int number = address == NULL ? -1 : device_of(xep_cuda_of(device), address);
    if (number < 0) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid %s: %p is memory of CUDA device %d (host memory)", name, address, number);
}

/*
 * Waits for all streams of the context, including the program's: only when a buffer is made, reset or ended, never for
 * an operation.
 */
static xep_status_t sync_context(xep_device_t *device)
{
    xep_cuda_device_t *cuda = xep_cuda_of(device);
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda, cuda->driver.context_sync(), "end its work");
}

const xep_device_ops_t xep_cuda_ops = {
    .size = sizeof(xep_device_ops_t),
    .map = xep_cuda_heap_map,
    .allocate = xep_cuda_kept_allocate,
    .release = xep_cuda_kept_release,
    .load = xep_cuda_kept_load,
    .find = find_kernel,
    .unload = xep_cuda_kept_unload,
    .launch = launch_kernel,
    .copy = copy_rows,
    .fill = fill_memory,
    .after_mark = xep_cuda_work_after_mark,
    .mark = set_mark,
    .part = part,
    .branch = branch,
    .join = join,
    .check_stream = check_stream,
    .check = check_memory,
    .is_captured = xep_cuda_work_is_captured,
    .sync = sync_context,
    .check_host = check_host,
};
