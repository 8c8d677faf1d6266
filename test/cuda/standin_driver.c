/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The functions of the driver, by their own names and with their own types, as far as the library and its tests use
 * them; those of memory are in standin_memory.c.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

/* ---- streams and events ---- */

enum { NO_TIMING = 2 };

typedef struct event {
    standin_stream_t *stream;
    uint64_t given;
    unsigned flags;
    struct timespec at; /* when the stream came to it */
    uint64_t capture;   /* in which it was recorded; 0: none */
} event_t;

API cuStreamCreate(void **stream_p, unsigned flags)
{
    (void)flags;
    *stream_p = standin_stream_create(standin_context());
    return *stream_p == NULL ? NO_MEMORY : DONE;
}

/* Its thread goes on until the process ends, for the next one. */
API cuStreamDestroy_v2(void *stream)
{
    standin_stream_destroy(stream);
    return DONE;
}

API cuStreamGetCtx(void *stream, void **context_p)
{
    *context_p = stream == NULL ? standin_context() : standin_stream_context(stream);
    return DONE;
}

API cuStreamIsCapturing(void *stream, int *status_p)
{
    *status_p = standin_capturing(standin_stream(stream));
    return DONE;
}

API cuStreamBeginCapture_v2(void *stream, int mode)
{
    if (stream == NULL || mode < 0 || mode > 2 || standin_capturing(stream)) return INVALID;
    standin_capture_begin(stream);
    return DONE;
}

API cuStreamEndCapture(void *stream, void **graph_p)
{
    *graph_p = standin_capture_end(stream);
    return *graph_p == NULL ? INVALID : DONE;
}

API cuGraphInstantiateWithFlags(void **exec_p, void *graph, unsigned long long flags)
{
    *exec_p = graph;
    return flags == 0 ? DONE : INVALID;
}

API cuGraphLaunch(void *exec, void *stream)
{
    standin_graph_replay(exec, standin_stream(stream));
    return DONE;
}

API cuGraphExecDestroy(void *exec)
{
    standin_streams_wait_all();
    standin_graph_destroy(exec);
    return DONE;
}

API cuStreamSynchronize(void *handle)
{
    standin_stream_t *stream = standin_stream(handle);
    if (standin_capturing(stream)) return CAPTURED;
    standin_stream_wait(stream, standin_stream_given(stream));
    return DONE;
}

/* A context that is lost does nothing any more. */
API cuCtxSynchronize(void)
{
    standin_streams_wait_all();
    return standin_fails("cuCtxSynchronize") ? LOST : DONE;
}

API cuEventCreate(void **event_p, unsigned flags)
{
    if (standin_fails("cuEventCreate")) return standin_error(NO_MEMORY);
    *event_p = calloc(1, sizeof(event_t));
    if (*event_p == NULL) return NO_MEMORY;
    standin_count(1);
    ((event_t *)*event_p)->flags = flags;
    return DONE;
}

API cuEventDestroy_v2(void *event)
{
    standin_count(-1);
    free(event);
    return DONE;
}

static void stamp(const void *args)
{
    clock_gettime(CLOCK_MONOTONIC, &(*(event_t *const *)args)->at);
}

/* Of two that both have come to pass. */
API cuEventElapsedTime(float *ms_p, void *begin, void *end)
{
    const event_t *from = begin, *to = end;
    if ((from->flags | to->flags) & NO_TIMING || from->stream == NULL || to->stream == NULL) return INVALID;
    *ms_p =
        (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 + (double)(to->at.tv_nsec - from->at.tv_nsec) / 1e6);
    return DONE;
}

API cuEventRecord(void *handle, void *stream)
{
    if (standin_fails("cuEventRecord")) return standin_error(INVALID);
    event_t *event = handle;
    event->capture = standin_capture_number(standin_stream(stream));
    if (event->capture != 0) return DONE;
    event->stream = standin_stream(stream);
    if ((event->flags & NO_TIMING) == 0) standin_stream_add(event->stream, stamp, &event, sizeof event);
    event->given = standin_stream_given(event->stream);
    return DONE;
}

API cuEventQuery(void *handle)
{
    if (standin_fails("cuEventQuery")) return standin_error(LOST);
    const event_t *event = handle;
    return event->stream == NULL || standin_stream_is_past(event->stream, event->given) ? DONE : NOT_READY;
}

API cuEventSynchronize(void *handle)
{
    const event_t *event = handle;
    if (event->stream != NULL) standin_stream_wait(event->stream, event->given);
    return DONE;
}

static void wait_event(const void *args)
{
    const event_t *event = args;
    standin_stream_wait(event->stream, event->given);
}

API cuStreamWaitEvent(void *stream, void *handle, unsigned flags)
{
    if (standin_fails("cuStreamWaitEvent")) return standin_error(INVALID);
    const event_t *event = handle;
    if (flags != 0) return INVALID;
    if (event->capture != 0) /* work of all streams of a graph is in the order in which it was given */
        return standin_capture_join(standin_stream(stream), event->capture) ? DONE : CAPTURED;
    if (standin_capturing(standin_stream(stream))) return CAPTURED; /* an event of outside the graph */
    if (event->stream != NULL) standin_stream_add(standin_stream(stream), wait_event, event, sizeof *event);
    return DONE;
}

typedef struct host_function {
    void (*run)(void *arg);
    void *arg;
} host_function_t;

static void run_host_function(const void *args)
{
    const host_function_t *function = args;
    function->run(function->arg);
}

API cuLaunchHostFunc(void *stream, void (*run)(void *arg), void *arg)
{
    const host_function_t function = {run, arg};
    standin_stream_add(standin_stream(stream), run_host_function, &function, sizeof function);
    return DONE;
}

/* ---- copies ---- */

typedef struct fill {
    address_t address;
    unsigned char value;
    size_t bytes;
} fill_t;

static void run_fill(const void *args)
{
    const fill_t *fill = args;
    memset((void *)fill->address, fill->value, fill->bytes);
}

static void add_fill(address_t address, unsigned char value, size_t bytes, void *stream)
{
    const fill_t fill = {address, value, bytes};
    standin_stream_add(standin_stream(stream), run_fill, &fill, sizeof fill);
}

API cuMemsetD8Async(address_t address, unsigned char value, size_t bytes, void *stream)
{
    if (standin_fails("cuMemsetD8Async")) return standin_error(INVALID);
    add_fill(address, value, bytes, stream);
    return DONE;
}

/* The host goes on before it is done, as with the driver. */
API cuMemsetD8_v2(address_t address, unsigned char value, size_t bytes)
{
    if (standin_fails("cuMemsetD8_v2")) return standin_error(INVALID);
    add_fill(address, value, bytes, NULL);
    return DONE;
}

/* CUDA_MEMCPY2D */
typedef struct copy {
    size_t from_x, from_y;
    unsigned from_kind;
    const void *from_host;
    address_t from;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void *to_host;
    address_t to;
    void *to_array;
    size_t to_pitch;
    size_t bytes, rows;
} copy_t;

enum { LARGE_COPY = 256 * 1024 };

static void run_copy(const void *args)
{
    const copy_t *copy = args;
    for (size_t i = 0; i < copy->rows; i++)
        memcpy((char *)copy->to + i * copy->to_pitch, (const char *)copy->from + i * copy->from_pitch, copy->bytes);
}

/* With STANDIN_SLOW_COPIES the library's copies take so many microseconds for each 256 KiB. */
static void run_copy_of_library(const void *args)
{
    const copy_t *copy = args;
    const char *slow = getenv("STANDIN_SLOW_COPIES");
    const size_t large = copy->rows * copy->bytes / LARGE_COPY;
    if (slow != NULL && large != 0) usleep((useconds_t)(large * strtoul(slow, NULL, 10)));
    run_copy(copy);
}

API cuMemcpy2DAsync_v2(const copy_t *copy, void *stream)
{
    if (standin_fails("cuMemcpy2DAsync_v2")) return standin_error(INVALID);
    if (copy->from_kind != 4 || copy->to_kind != 4 || copy->from_pitch < copy->bytes || copy->to_pitch < copy->bytes)
        return INVALID;
    standin_stream_add(standin_stream(stream), run_copy_of_library, copy, sizeof *copy);
    return DONE;
}

API cuMemcpyAsync(address_t to, address_t from, size_t bytes, void *stream)
{
    const copy_t copy = {.from = from, .to = to, .bytes = bytes, .rows = 1};
    if (standin_fails("cuMemcpyAsync")) return standin_error(INVALID);
    standin_stream_add(standin_stream(stream), run_copy_of_library, &copy, sizeof copy);
    return DONE;
}

API cuMemcpyHtoDAsync_v2(address_t to, const void *from, size_t bytes, void *stream)
{
    const copy_t copy = {.from = (address_t)from, .to = to, .bytes = bytes, .rows = 1};
    standin_stream_add(standin_stream(stream), run_copy, &copy, sizeof copy);
    return DONE;
}

API cuMemcpyDtoHAsync_v2(void *to, address_t from, size_t bytes, void *stream)
{
    return cuMemcpyHtoDAsync_v2((address_t)to, (const void *)from, bytes, stream);
}

API cuMemcpyDtoDAsync_v2(address_t to, address_t from, size_t bytes, void *stream)
{
    return cuMemcpyHtoDAsync_v2(to, (const void *)from, bytes, stream);
}

/* ---- kernels ---- */

API cuModuleLoadData(void **module_p, const void *image)
{
    if (standin_fails("cuModuleLoadData")) return standin_error(TOO_NEW);
    if (image == NULL) return INVALID;
    *module_p = (void *)(uintptr_t)image;
    standin_count(1);
    return DONE;
}

API cuModuleUnload(void *module)
{
    standin_streams_wait_all();
    if (module == NULL) return INVALID;
    standin_count(-1);
    return DONE;
}

static const standin_kernel_t *find_kernel(const standin_kernel_t *kernels, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

API cuModuleGetFunction(void **function_p, void *module, const char *name)
{
    if (standin_fails("cuModuleGetFunction")) return standin_error(NOT_FOUND);
    const standin_kernel_t *kernel = find_kernel(standin_normal_kernels, standin_normal_count, name);
    if (kernel == NULL) kernel = find_kernel(standin_ll_kernels, standin_ll_count, name);
    if (kernel == NULL) kernel = find_kernel(standin_ll_combine_kernels, standin_ll_combine_count, name);
    if (kernel == NULL) kernel = find_kernel(standin_captured_kernels, standin_captured_count, name);
    if (module == NULL || kernel == NULL) return NOT_FOUND;
    *function_p = (void *)(uintptr_t)kernel;
    return DONE;
}

API cuFuncSetAttribute(void *function, int attribute, int value)
{
    if (standin_fails("cuFuncSetAttribute")) return standin_error(INVALID);
    return function != NULL && attribute == 8 && value <= 232448 ? DONE : INVALID;
}

/* CUlaunchAttribute, CUlaunchConfig */
typedef struct attribute {
    unsigned id;
    char pad[4];
    int value[16];
} attribute_t;

typedef struct launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void *stream;
    const attribute_t *attributes;
    unsigned nattributes;
} launch_t;

/* A kernel that may begin before the last one ends is run behind it all the same. */
API cuLaunchKernelEx(const launch_t *how, void *function, void **args, void **extra)
{
    enum { FOLLOWS = 6 };
    if (standin_fails("cuLaunchKernelEx")) return standin_error(LOST);
    const standin_kernel_t *kernel = function;
    if (how->grid_x == 0 || how->grid_x > 24 || how->grid_y != 1 || how->grid_z != 1 || how->block_x == 0 ||
        how->block_x > 1024 || how->block_x % 32 != 0 || how->block_y != 1 || how->block_z != 1 ||
        how->shared_bytes > 232448 || extra != NULL || standin_context() == NULL)
        return INVALID;
    if (how->nattributes > 1 || (how->nattributes == 1 && how->attributes->id != FOLLOWS)) return INVALID;
    standin_stream_add(standin_stream(how->stream), kernel->run, args[0], kernel->bytes);
    return DONE;
}

API cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **args, void **extra)
{
    const standin_kernel_t *kernel = function;
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != 1024 || block_y != 1 || block_z != 1 ||
        shared_bytes != 0 || extra != NULL || standin_context() == NULL)
        return INVALID;
    standin_stream_add(standin_stream(stream), kernel->run, args[0], kernel->bytes);
    return DONE;
}
