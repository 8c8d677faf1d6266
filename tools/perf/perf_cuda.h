/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * --memory cuda: a device for each rank, on which every array of the private memory has a twin at the same offset. What
 * is filled and compared on the host is put there before operations and fetched behind them. Without it (perf->cuda is
 * NULL) all of these do nothing.
 */
#ifndef PERF_CUDA_H
#define PERF_CUDA_H

#include "perf.h"

/** Makes a device current and allocates the twins. Collective. */
void perf_cuda_open(perf_t *perf);
void perf_cuda_close(perf_t *perf);

/** Where operations find an array of the private memory: its twin, or itself. */
void *perf_there(const perf_t *perf, const void *here);

/** The stream of all operations; NULL without a device. */
void *perf_stream(const perf_t *perf);

/** So many bytes of an array from here to there, and back; both wait. */
void perf_put(const perf_t *perf, const void *here, size_t bytes);
void perf_fetch(const perf_t *perf, void *here, size_t bytes);

/** All inputs, from here to there. */
void perf_put_inputs(const perf_t *perf);

/** The same for any memory, of the host or of the device. */
void perf_copy(const perf_t *perf, void *to, const void *from, size_t bytes);

/** Bytes of the device, set to a value. */
void perf_fill(const perf_t *perf, void *there, uint8_t value, size_t bytes);

/** What a handle has received, wherever that is; NULL: nothing. */
const xep_recv_t *perf_received(const xep_handle_t *handle);

/** What a slot has received, in host memory; valid until the next call. */
const xep_recv_t *perf_recv(const perf_t *perf, uint32_t slot);

/** Around an operation, in the order of the stream: how long it took there, once end has waited for it. */
void perf_device_begin(const perf_t *perf);
void perf_device_end(perf_t *perf);

/* ---- with --memory cuda alone ---- */

/* The functions of the CUDA driver that xep_perf uses, found at run time: it is built without CUDA. */

typedef struct perf_ipc {
    char reserved[64];
} perf_ipc_t;

/* X(name of ours, name in the library, parameters) */
#define PERF_CUDA_FUNCTIONS(X)                                                                                \
    X(init, "cuInit", (unsigned flags))                                                                       \
    X(error_text, "cuGetErrorString", (int result, const char **text_p))                                      \
    X(device_count, "cuDeviceGetCount", (int *count_p))                                                       \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context_p, int device))                             \
    X(context_set, "cuCtxSetCurrent", (void *context))                                                        \
    X(allocate, "cuMemAlloc_v2", (uintptr_t * address_p, size_t bytes))                                       \
    X(release, "cuMemFree_v2", (uintptr_t address))                                                           \
    X(copy, "cuMemcpyAsync", (uintptr_t to, uintptr_t from, size_t n, void *stream))                          \
    X(fill, "cuMemsetD8Async", (uintptr_t to, unsigned char value, size_t n, void *stream))                   \
    X(stream_create, "cuStreamCreate", (void **stream_p, unsigned flags))                                     \
    X(stream_wait, "cuStreamSynchronize", (void *stream))                                                     \
    X(module_load, "cuModuleLoadData", (void **module_p, const void *image))                                  \
    X(module_unload, "cuModuleUnload", (void *module))                                                        \
    X(module_function, "cuModuleGetFunction", (void **function_p, void *module, const char *name))            \
    X(launch, "cuLaunchKernel",                                                                               \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
       unsigned block_z, unsigned shared_bytes, void *stream, void **args, void **extra))                     \
    X(event_create, "cuEventCreate", (void **event_p, unsigned flags))                                        \
    X(event_record, "cuEventRecord", (void *event, void *stream))                                             \
    X(event_elapsed, "cuEventElapsedTime", (float *ms_p, void *begin, void *end))                             \
    X(ipc_get, "cuIpcGetMemHandle", (perf_ipc_t * handle_p, uintptr_t address))                               \
    X(ipc_open, "cuIpcOpenMemHandle_v2", (uintptr_t * address_p, perf_ipc_t handle, unsigned flags))          \
    X(ipc_close, "cuIpcCloseMemHandle", (uintptr_t address))

typedef struct perf_cuda_driver {
#define PERF_CUDA_FUNCTION(_name, _symbol, _params) int(*_name) _params;
    PERF_CUDA_FUNCTIONS(PERF_CUDA_FUNCTION)
#undef PERF_CUDA_FUNCTION
} perf_cuda_driver_t;

typedef struct perf_cuda {
    perf_cuda_driver_t driver;
    void *stream;
    void *begin, *end; /* events around an operation */
    uintptr_t twins;   /* of perf->memory, as many bytes */
    xep_recv_t recv;   /* the last one fetched, its arrays in host memory */
    void *fetched[10]; /* these */
    size_t nfetched;
} perf_cuda_t;

/** Ends the run where a call of the driver has failed: what could not be done. */
void perf_cuda_must(const perf_t *perf, int result, const char *what);

/** Memory of the device, at least a byte. */
uintptr_t perf_cuda_allocate(const perf_t *perf, size_t bytes);

#endif
