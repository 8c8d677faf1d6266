/* SPDX-License-Identifier: BSD-3-Clause */

/** The functions of the CUDA driver that xep_perf uses, found at run time: it is built without CUDA. */
#ifndef PERF_CUDA_DRIVER_H
#define PERF_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

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
    X(context_sync, "cuCtxSynchronize", (void))                                                               \
    X(allocate, "cuMemAlloc_v2", (uintptr_t * address_p, size_t bytes))                                       \
    X(release, "cuMemFree_v2", (uintptr_t address))                                                           \
    X(put, "cuMemcpyHtoDAsync_v2", (uintptr_t to, const void *from, size_t n, void *stream))                  \
    X(fetch, "cuMemcpyDtoHAsync_v2", (void *to, uintptr_t from, size_t n, void *stream))                      \
    X(copy, "cuMemcpyDtoDAsync_v2", (uintptr_t to, uintptr_t from, size_t n, void *stream))                   \
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

/** 0, or -1 and a sentence in why. */
int perf_cuda_driver_open(perf_cuda_driver_t *driver, char *why, size_t why_bytes);

#endif
