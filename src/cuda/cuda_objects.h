/* SPDX-License-Identifier: BSD-3-Clause */

/** What the files of this folder know of a device. */
#ifndef XEP_CUDA_OBJECTS_H
#define XEP_CUDA_OBJECTS_H

#include "cuda_driver.h"
#include "device.h"

/** The key of a rank's heap, by which other processes map it. */
typedef struct xep_cuda_key {
    cuda_ipc_t handle;
    uint64_t pid, address;
    int32_t device;
    uint32_t reserved;
} xep_cuda_key_t;

typedef struct xep_cuda_block xep_cuda_block_t;
typedef struct xep_cuda_module xep_cuda_module_t;

typedef struct xep_cuda_device {
    xep_heap_device_t heap; /* first */
    xep_cuda_driver_t driver;
    cuda_handle_t context;
    cuda_handle_t marked; /* event */
    cuda_handle_t own;    /* stream; NULL until it is used */
    cuda_handle_t parted; /* event, likewise */
    cuda_handle_t *notes; /* [nnotes] events */
    uint32_t nnotes;
    void *pinned; /* memory of the host; NULL: none */
    xep_cuda_key_t key;
    xep_cuda_block_t *blocks;   /* memory of modes */
    xep_cuda_module_t *modules; /* and their kernels */
    uint32_t *stop;             /* pinned */
    void **mapped;              /* [nranks] */
    uint8_t *opened;            /* [nranks] 1: by a handle, to be closed */
    uint32_t rank, nranks;
} xep_cuda_device_t;

/** The context is current in this thread until leave: callers may have another one, or none. */
static inline void xep_cuda_enter(xep_cuda_device_t *cuda)
{
    cuda->driver.context_push(cuda->context);
}

static inline void xep_cuda_leave(xep_cuda_device_t *cuda)
{
    cuda_handle_t context;
    cuda->driver.context_pop(&context);
}

/** Leaves, and says what the call was for if it has failed. */
static inline xep_status_t xep_cuda_end(xep_cuda_device_t *cuda, cuda_result_t result, const char *what)
{
    xep_cuda_leave(cuda);
    return xep_cuda_check(&cuda->driver, result, what);
}

static inline xep_cuda_device_t *xep_cuda_of(xep_device_t *device)
{
    return (xep_cuda_device_t *)(void *)device;
}

#endif
