/* SPDX-License-Identifier: BSD-3-Clause */

/* By dlopen, as the library does it: the test is built where there is no CUDA. */
#include "cuda_rig.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

/* CUDA_MEMCPY2D */
typedef struct copy {
    size_t from_x, from_y;
    unsigned from_kind;
    const void *from_host;
    uintptr_t from;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void *to_host;
    uintptr_t to;
    void *to_array;
    size_t to_pitch;
    size_t bytes, rows;
} copy_t;

enum { UNIFIED = 4, NON_BLOCKING = 1, RELAXED = 2 };

static struct {
    int (*init)(unsigned);
    int (*device_count)(int *);
    int (*context_retain)(void **, int);
    int (*context_set)(void *);
    int (*context_get)(void **);
    int (*context_create)(void **, unsigned, int);
    int (*stream_create)(void **, unsigned);
    int (*stream_wait)(void *);
    int (*allocate)(uintptr_t *, size_t);
    int (*release)(uintptr_t);
    int (*put)(uintptr_t, const void *, size_t, void *);
    int (*get)(void *, uintptr_t, size_t, void *);
    int (*copy)(const copy_t *, void *);
    int (*host_function)(void *, void (*)(void *), void *);
    int (*capture_begin)(void *, int);
    int (*capture_end)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*replay)(void *, void *);
    int (*destroy)(void *);
} driver;

static const struct {
    const char *name;
    void *function;
} functions[] = {
    {"cuInit", &driver.init},
    {"cuDeviceGetCount", &driver.device_count},
    {"cuDevicePrimaryCtxRetain", &driver.context_retain},
    {"cuCtxSetCurrent", &driver.context_set},
    {"cuCtxGetCurrent", &driver.context_get},
    {"cuCtxCreate_v2", &driver.context_create},
    {"cuStreamCreate", &driver.stream_create},
    {"cuStreamSynchronize", &driver.stream_wait},
    {"cuMemAlloc_v2", &driver.allocate},
    {"cuMemFree_v2", &driver.release},
    {"cuMemcpyHtoDAsync_v2", &driver.put},
    {"cuMemcpyDtoHAsync_v2", &driver.get},
    {"cuMemcpy2DAsync_v2", &driver.copy},
    {"cuLaunchHostFunc", &driver.host_function},
    {"cuStreamBeginCapture_v2", &driver.capture_begin},
    {"cuStreamEndCapture", &driver.capture_end},
    {"cuGraphInstantiateWithFlags", &driver.instantiate},
    {"cuGraphLaunch", &driver.replay},
    {"cuGraphExecDestroy", &driver.destroy},
};

int cuda_rig_open(unsigned rank)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int count = 0;
    if (library == NULL) return 0;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(library, functions[i].name);
        MP_CHECK(symbol != NULL);
        memcpy(functions[i].function, &symbol, sizeof symbol);
    }
    if (driver.init(0) != 0 || driver.device_count(&count) != 0 || count == 0) return 0;
    MP_CHECK(driver.context_retain(&context, (int)rank % count) == 0);
    MP_CHECK(driver.context_set(context) == 0);
    return 1;
}

void *cuda_rig_stream(void)
{
    void *stream;
    MP_CHECK(driver.stream_create(&stream, NON_BLOCKING) == 0);
    return stream;
}

void *cuda_rig_context(void)
{
    void *context;
    MP_CHECK(driver.context_get(&context) == 0);
    return context;
}

/* The device of the next rank becomes current: 0, there is none but this one. *here_p is to be set again. */
static int go_elsewhere(unsigned rank, void **here_p)
{
    void *there;
    int count = 0;
    MP_CHECK(driver.device_count(&count) == 0);
    if (count < 2) return 0;
    *here_p = cuda_rig_context();
    MP_CHECK(driver.context_retain(&there, (int)(rank + 1) % count) == 0);
    MP_CHECK(driver.context_set(there) == 0);
    return 1;
}

void *cuda_rig_stream_elsewhere(unsigned rank)
{
    void *here;
    if (!go_elsewhere(rank, &here)) return NULL;
    void *stream = cuda_rig_stream();
    MP_CHECK(driver.context_set(here) == 0);
    return stream;
}

void *cuda_rig_stream_apart(unsigned rank)
{
    void *here = cuda_rig_context(), *apart, *stream = NULL;
    int count = 0;
    MP_CHECK(driver.device_count(&count) == 0);
    if (driver.context_create(&apart, 0, (int)rank % count) == 0) stream = cuda_rig_stream();
    MP_CHECK(driver.context_set(here) == 0);
    return stream;
}

void cuda_rig_wait(void *stream)
{
    MP_CHECK(driver.stream_wait(stream) == 0);
}

typedef struct hold {
    const atomic_int *counter;
    int value;
} hold_t;

static void wait_for_counter(void *arg)
{
    const hold_t *hold = arg;
    mp_await(hold->counter, hold->value);
    free(arg);
}

void cuda_rig_hold(void *stream, const atomic_int *counter, int value)
{
    hold_t *hold = malloc(sizeof *hold);
    MP_CHECK(hold != NULL);
    *hold = (hold_t){counter, value};
    MP_CHECK(driver.host_function(stream, wait_for_counter, hold) == 0);
}

void *cuda_rig_alloc(const void *from, size_t bytes)
{
    uintptr_t address;
    MP_CHECK(driver.allocate(&address, bytes == 0 ? 1 : bytes) == 0);
    if (from != NULL && bytes != 0) {
        cuda_rig_put((void *)address, from, bytes, NULL);
        cuda_rig_wait(NULL);
    }
    return (void *)address;
}

void *cuda_rig_alloc_elsewhere(unsigned rank, size_t bytes)
{
    void *here;
    if (!go_elsewhere(rank, &here)) return NULL;
    void *memory = cuda_rig_alloc(NULL, bytes);
    MP_CHECK(driver.context_set(here) == 0);
    return memory;
}

void cuda_rig_free(void *memory)
{
    if (memory != NULL) MP_CHECK(driver.release((uintptr_t)memory) == 0);
}

void cuda_rig_put(void *to, const void *from, size_t bytes, void *stream)
{
    if (bytes != 0) MP_CHECK(driver.put((uintptr_t)to, from, bytes, stream) == 0);
}

void cuda_rig_get(void *to, const void *from, size_t bytes, void *stream)
{
    if (bytes != 0) MP_CHECK(driver.get(to, (uintptr_t)from, bytes, stream) == 0);
    cuda_rig_wait(stream);
}

void cuda_rig_copy(void *to, size_t to_stride, const void *from, size_t from_stride, size_t bytes, size_t rows,
                   void *stream)
{
    const copy_t copy = {.from_kind = UNIFIED,
                         .from = (uintptr_t)from,
                         .from_pitch = from_stride,
                         .to_kind = UNIFIED,
                         .to = (uintptr_t)to,
                         .to_pitch = to_stride,
                         .bytes = bytes,
                         .rows = rows};
    if (bytes != 0 && rows != 0) MP_CHECK(driver.copy(&copy, stream) == 0);
}

void cuda_rig_capture(void *stream)
{
    MP_CHECK(driver.capture_begin(stream, RELAXED) == 0);
}

void *cuda_rig_graph(void *stream)
{
    void *graph, *exec;
    MP_CHECK(driver.capture_end(stream, &graph) == 0);
    MP_CHECK(driver.instantiate(&exec, graph, 0) == 0);
    return exec;
}

void cuda_rig_replay(void *graph, void *stream)
{
    MP_CHECK(driver.replay(graph, stream) == 0);
}

void cuda_rig_free_graph(void *graph)
{
    MP_CHECK(driver.destroy(graph) == 0);
}
