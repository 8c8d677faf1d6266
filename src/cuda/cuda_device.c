/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The device of one buffer. It works in the context that was current when the buffer was created: that belongs to the
 * program, which must keep it as long as the buffer. Here is what the core asks it for; what the mode does is in
 * cuda_work.c.
 */
#include "cuda_device.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_memory.h"
#include "cuda_work.h"
#include "error.h"

/* From memory that is not pinned the driver would copy with the host waiting in the call. */
static xep_status_t pin(xep_heap_device_t *device, void *base, uint64_t bytes)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    const cuda_result_t result = cuda->driver.host_pin(base, bytes, 0);
    if (result == CUDA_DONE) cuda->pinned = base;
    /* a UCX that knows CUDA has pinned the heap, and will unpin it */
    return xep_cuda_end(cuda, result == CUDA_ALREADY_PINNED ? CUDA_DONE : result, "pin memory of the host");
}

/*
 * For a stream of the program. One that is being captured is refused: it cannot wait for an event outside its graph,
 * and must not go on unordered.
 */
static xep_status_t follow(xep_heap_device_t *device, void *stream)
{
    if (xep_cuda_work_is_captured(&device->device, stream))
        return xep_fail(XEP_ERR_INVALID,
                        "invalid stream: %p is being captured (use another: only events order a graph)", stream);
    return xep_cuda_work_after_mark(&device->device, stream);
}

/* Notes are events beside the mark, only for the host to wait for. */
static xep_status_t make_notes(xep_heap_device_t *device, uint32_t count)
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
    return xep_cuda_end(cuda, result, "make events");
}

/* One block: that of gone is freed. */
static xep_status_t make_outs(xep_heap_device_t *device, uint32_t nranks)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    const size_t bytes = 2 * (size_t)nranks * sizeof *device->device.gone;
    void *memory = NULL;
    xep_cuda_enter(cuda);
    xep_status_t status = xep_cuda_end(cuda, cuda->driver.host_allocate(&memory, bytes, 0), "allocate words for ranks");
    if (status != XEP_OK) return status;
    memset(memory, 0, bytes);
    device->device.gone = memory;
    device->device.left = device->device.gone + nranks;
    return XEP_OK;
}

static xep_status_t note(xep_heap_device_t *device, uint32_t number, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda, cuda->driver.event_record(cuda->notes[number], stream),
                        "note how far the stream has come");
}

static xep_status_t reached(xep_heap_device_t *device, uint32_t number)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.event_query(cuda->notes[number]);
    if (result != CUDA_NOT_READY) return xep_cuda_end(cuda, result, "tell how far the stream has come");
    xep_cuda_leave(cuda);
    return XEP_INPROGRESS;
}

static xep_status_t after_note(xep_heap_device_t *device, uint32_t number, void *stream)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    return xep_cuda_end(cuda, cuda->driver.stream_wait(stream, cuda->notes[number], 0), "let the stream wait");
}

/* Errors of a context are sticky: any call returns them. */
static xep_status_t works(xep_heap_device_t *device)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    xep_cuda_enter(cuda);
    cuda_result_t result = cuda->driver.event_query(cuda->marked);
    return xep_cuda_end(cuda, result == CUDA_NOT_READY ? CUDA_DONE : result, "go on with its work");
}

/*
 * A store into pinned memory, no call of the driver, which may be busy or, after an error, unusable: waiting kernels
 * look at this word now and then.
 */
static void set_stop(xep_heap_device_t *device, int stopped)
{
    __atomic_store_n(xep_cuda_of(&device->device)->stop, stopped != 0, __ATOMIC_RELEASE);
}

/*
 * Also closes a device that was opened only in part: everything is NULL until it is made, and without a context nothing
 * was. The driver is closed last, since its functions free all the rest.
 */
static void close_device(xep_heap_device_t *device)
{
    xep_cuda_device_t *cuda = xep_cuda_of(&device->device);
    if (cuda->context != NULL) {
        xep_cuda_enter(cuda);
        xep_cuda_heap_close(cuda);
        xep_cuda_kept_close(cuda);
        if (cuda->pinned != NULL) cuda->driver.host_unpin(cuda->pinned);
        if (cuda->marked != NULL) cuda->driver.event_destroy(cuda->marked);
        if (cuda->parted != NULL) cuda->driver.event_destroy(cuda->parted);
        if (cuda->own != NULL) cuda->driver.stream_destroy(cuda->own);
        for (uint32_t i = 0; i < cuda->nnotes; i++) cuda->driver.event_destroy(cuda->notes[i]);
        if (cuda->stop != NULL) cuda->driver.host_free(cuda->stop);
        if (cuda->heap.device.gone != NULL) cuda->driver.host_free(cuda->heap.device.gone);
        xep_cuda_leave(cuda);
    }
    xep_cuda_driver_close(&cuda->driver);
    free(cuda->notes);
    free(cuda);
}

static const xep_heap_device_ops_t heap_ops = {
    .heap_open = xep_cuda_heap_open,
    .heap_connect = xep_cuda_heap_connect,
    .follow = follow,
    .own_stream = xep_cuda_work_own_stream,
    .make_notes = make_notes,
    .make_outs = make_outs,
    .note = note,
    .reached = reached,
    .after_note = after_note,
    .works = works,
    .pin = pin,
    .stop = set_stop,
    .close = close_device,
};

/* Chooses no device: all ranks that forgot to choose would share device 0. */
static xep_status_t find_context(xep_cuda_device_t *cuda)
{
    const xep_cuda_driver_t *driver = &cuda->driver;
    cuda_result_t result = driver->context_current(&cuda->context);
    if (result == CUDA_DONE && cuda->context == NULL)
        return xep_fail(XEP_ERR_INVALID, "no CUDA device is current in this thread (cudaSetDevice() chooses one)");
    if (result == CUDA_DONE) result = driver->context_device(&cuda->heap.number);
    return xep_cuda_check(driver, result, "tell its device");
}

/*
 * Asks for the device's properties, and makes what a buffer needs once: the event that marks the end of its last
 * operation, and the stop word. The context is current, as find_context() has just checked.
 */
static xep_status_t ask_device(xep_cuda_device_t *cuda)
{
    const xep_cuda_driver_t *driver = &cuda->driver;
    int processors = 0, shared = 0;
    void *stop = NULL;
    cuda_result_t result = driver->device_attribute(&processors, CUDA_MULTIPROCESSORS, cuda->heap.number);
    if (result == CUDA_DONE) result = driver->device_attribute(&shared, CUDA_SHARED_BYTES, cuda->heap.number);
    if (result == CUDA_DONE) result = driver->event_create(&cuda->marked, CUDA_EVENT_NO_TIMING);
    if (result == CUDA_DONE) result = driver->host_allocate(&stop, sizeof *cuda->stop, 0);
    if (result != CUDA_DONE) return xep_cuda_check(driver, result, "use its device");
    cuda->stop = stop;
    *cuda->stop = 0;
    cuda->heap.device = (xep_device_t){.ops = &xep_cuda_ops,
                                       .multiprocessors = (uint32_t)processors,
                                       .shared_bytes = (uint32_t)shared,
                                       .stop = cuda->stop};
    return XEP_OK;
}

/* The key's memory is that of the device, so that the core can send it later: heap_open() fills it. */
xep_status_t xep_cuda_device_open(xep_heap_device_t **device_p)
{
    xep_cuda_device_t *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a device");
    cuda->heap.ops = &heap_ops;
    cuda->heap.key = &cuda->key;
    cuda->heap.key_bytes = sizeof cuda->key;
    xep_status_t status = xep_cuda_driver_open(&cuda->driver);
    if (status == XEP_OK) status = find_context(cuda);
    if (status == XEP_OK) status = ask_device(cuda);
    if (status != XEP_OK) {
        close_device(&cuda->heap);
        return status;
    }
    *device_p = &cuda->heap;
    return XEP_OK;
}
