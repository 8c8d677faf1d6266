/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The functions of the CUDA driver that are used, found in libcuda.so.1 when the first buffer in device memory is
 * created. Their types are declared here: the library is built without CUDA, and runs where there is none.
 */
#ifndef XEP_CUDA_DRIVER_H
#define XEP_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include <xep/status.h>

typedef int cuda_result_t; /* CUresult */
typedef int cuda_device_t;
typedef uintptr_t cuda_address_t; /* CUdeviceptr */
typedef void *cuda_handle_t;      /* CUcontext, CUstream, CUevent, CUmodule, CUfunction */

typedef struct cuda_ipc {
    char reserved[64];
} cuda_ipc_t;

/** CUDA_MEMCPY2D */
typedef struct cuda_copy {
    size_t from_x, from_y;
    unsigned from_kind;
    const void *from_host;
    cuda_address_t from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void *to_host;
    cuda_address_t to_device;
    void *to_array;
    size_t to_pitch;
    size_t bytes, rows;
} cuda_copy_t;

/** CUlaunchAttribute, CUlaunchConfig */
typedef struct cuda_launch_attribute {
    unsigned id;
    char pad[4];
    union {
        char bytes[64];
        int on;
    } value;
} cuda_launch_attribute_t;

typedef struct cuda_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z;
    unsigned shared_bytes;
    cuda_handle_t stream;
    cuda_launch_attribute_t *attributes;
    unsigned nattributes;
} cuda_launch_t;

enum {
    CUDA_DONE = 0, /* results */
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_READY = 600,
    CUDA_ALREADY_PINNED = 712,
    CUDA_KIND_UNIFIED = 4,   /* of a copy: the addresses tell */
    CUDA_MEMORY_DEVICE = 2,  /* of a pointer */
    CUDA_POINTER_MEMORY = 2, /* attributes of pointers */
    CUDA_POINTER_MANAGED = 8,
    CUDA_POINTER_DEVICE = 9,
    CUDA_MULTIPROCESSORS = 16, /* attributes of devices */
    CUDA_SHARED_BYTES = 97,
    CUDA_KERNEL_SHARED_BYTES = 8, /* of kernels */
    CUDA_LAUNCH_FOLLOWS = 6,      /* of launches: programmatic stream serialization */
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIMING = 2,
    CUDA_IPC_PEER_ACCESS = 1
};

/* X(name of ours, name in the library, parameters); the name in the library is the one that cuda.h gives */
#define CUDA_FUNCTIONS(X)                                                                                           \
    X(init, "cuInit", (unsigned flags))                                                                             \
    X(error_text, "cuGetErrorString", (cuda_result_t result, const char **text_p))                                  \
    X(context_current, "cuCtxGetCurrent", (cuda_handle_t * context_p))                                              \
    X(context_push, "cuCtxPushCurrent_v2", (cuda_handle_t context))                                                 \
    X(context_pop, "cuCtxPopCurrent_v2", (cuda_handle_t * context_p))                                               \
    X(context_device, "cuCtxGetDevice", (cuda_device_t * device_p))                                                 \
    X(context_sync, "cuCtxSynchronize", (void))                                                                     \
    X(device_attribute, "cuDeviceGetAttribute", (int *value_p, int attribute, cuda_device_t device))                \
    X(memory_allocate, "cuMemAlloc_v2", (cuda_address_t * address_p, size_t bytes))                                 \
    X(memory_free, "cuMemFree_v2", (cuda_address_t address))                                                        \
    X(memory_set, "cuMemsetD8_v2", (cuda_address_t address, unsigned char value, size_t bytes))                     \
    X(memory_fill, "cuMemsetD8Async",                                                                               \
      (cuda_address_t address, unsigned char value, size_t bytes, cuda_handle_t stream))                            \
    X(memory_copy, "cuMemcpyAsync", (cuda_address_t to, cuda_address_t from, size_t bytes, cuda_handle_t stream))   \
    X(memory_copy_strided, "cuMemcpy2DAsync_v2", (const cuda_copy_t *copy, cuda_handle_t stream))                   \
    X(host_allocate, "cuMemHostAlloc", (void **address_p, size_t bytes, unsigned flags))                            \
    X(host_free, "cuMemFreeHost", (void *address))                                                                  \
    X(host_pin, "cuMemHostRegister_v2", (void *address, size_t bytes, unsigned flags))                              \
    X(host_unpin, "cuMemHostUnregister", (void *address))                                                           \
    X(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, cuda_address_t address))             \
    X(ipc_get, "cuIpcGetMemHandle", (cuda_ipc_t * handle_p, cuda_address_t address))                                \
    X(ipc_open, "cuIpcOpenMemHandle_v2", (cuda_address_t * address_p, cuda_ipc_t handle, unsigned flags))           \
    X(ipc_close, "cuIpcCloseMemHandle", (cuda_address_t address))                                                   \
    X(module_load, "cuModuleLoadData", (cuda_handle_t * module_p, const void *image))                               \
    X(module_unload, "cuModuleUnload", (cuda_handle_t module))                                                      \
    X(module_function, "cuModuleGetFunction", (cuda_handle_t * function_p, cuda_handle_t module, const char *name)) \
    X(function_attribute, "cuFuncSetAttribute", (cuda_handle_t function, int attribute, int value))                 \
    X(launch, "cuLaunchKernelEx", (const cuda_launch_t *launch, cuda_handle_t function, void **args, void **extra)) \
    X(event_create, "cuEventCreate", (cuda_handle_t * event_p, unsigned flags))                                     \
    X(event_destroy, "cuEventDestroy_v2", (cuda_handle_t event))                                                    \
    X(event_record, "cuEventRecord", (cuda_handle_t event, cuda_handle_t stream))                                   \
    X(event_query, "cuEventQuery", (cuda_handle_t event))                                                           \
    X(stream_create, "cuStreamCreate", (cuda_handle_t * stream_p, unsigned flags))                                  \
    X(stream_destroy, "cuStreamDestroy_v2", (cuda_handle_t stream))                                                 \
    X(stream_capturing, "cuStreamIsCapturing", (cuda_handle_t stream, int *status_p))                               \
    X(stream_context, "cuStreamGetCtx", (cuda_handle_t stream, cuda_handle_t * context_p))                          \
    X(stream_wait, "cuStreamWaitEvent", (cuda_handle_t stream, cuda_handle_t event, unsigned flags))

typedef struct xep_cuda_driver {
    void *library;
#define CUDA_FUNCTION(_name, _symbol, _params) cuda_result_t(*_name) _params;
    CUDA_FUNCTIONS(CUDA_FUNCTION)
#undef CUDA_FUNCTION
} xep_cuda_driver_t;

/** Loads the driver. XEP_ERR_UNSUPPORTED: there is none, or it is too old; the sentence says which. */
xep_status_t xep_cuda_driver_open(xep_cuda_driver_t *driver);
void xep_cuda_driver_close(xep_cuda_driver_t *driver);

/** XEP_OK, or the error of what was tried, in words of the driver: XEP_ERR_NO_MEMORY, XEP_ERR_TRANSPORT. */
xep_status_t xep_cuda_check(const xep_cuda_driver_t *driver, cuda_result_t result, const char *what);

#endif
