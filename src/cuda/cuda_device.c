/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The device of one buffer. It works in the context that was current when the buffer was created: that belongs to the
 * program, which must keep it as long as the buffer. Here are its two tables: for the core (a heap and its end) and for
 * the mode (memory, kernels, streams).
 */
#include "cuda_device.h"

#include <stdlib.h>

#include "cuda_heap.h"
#include "cuda_kept.h"
#include "cuda_work.h"
#include "error.h"

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

static const xep_device_ops_t device_ops = {
    .size = sizeof(xep_device_ops_t),
    .map = xep_cuda_heap_map,
    .allocate = xep_cuda_kept_allocate,
    .release = xep_cuda_kept_release,
    .load = xep_cuda_kept_load,
    .find = xep_cuda_work_find,
    .unload = xep_cuda_kept_unload,
    .launch = xep_cuda_work_launch,
    .copy = xep_cuda_work_copy,
    .fill = xep_cuda_work_fill,
    .after_mark = xep_cuda_work_after_mark,
    .mark = xep_cuda_work_mark,
    .part = xep_cuda_work_part,
    .branch = xep_cuda_work_branch,
    .join = xep_cuda_work_join,
    .check_stream = xep_cuda_work_check_stream,
    .check = xep_cuda_work_check,
    .is_captured = xep_cuda_work_is_captured,
    .sync = xep_cuda_work_sync,
    .check_host = xep_cuda_work_check_host,
};

static const xep_heap_device_ops_t heap_ops = {
    .heap_open = xep_cuda_heap_open,
    .heap_connect = xep_cuda_heap_connect,
    .follow = xep_cuda_work_follow,
    .own_stream = xep_cuda_work_own_stream,
    .make_notes = xep_cuda_work_make_notes,
    .make_outs = xep_cuda_work_make_outs,
    .note = xep_cuda_work_note,
    .reached = xep_cuda_work_reached,
    .after_note = xep_cuda_work_after_note,
    .works = xep_cuda_work_works,
    .pin = xep_cuda_work_pin,
    .unpin = xep_cuda_work_unpin,
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
    cuda->heap.device = (xep_device_t){.ops = &device_ops,
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
