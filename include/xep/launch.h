/* SPDX-License-Identifier: BSD-3-Clause */

/** What a mode for rows in device memory sees of the device: memory, kernels, and what is enqueued on streams. */
#ifndef XEP_LAUNCH_H
#define XEP_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A launch of a kernel; stream is the driver's. The kernel has one parameter, the struct that args points to. */
typedef struct xep_launch {
    void *kernel;
    uint32_t blocks, threads; /* threads of a block */
    uint32_t shared_bytes;
    uint32_t follows; /* 1: may begin before the kernel that was launched before it ends, and waits itself for that */
    void *stream;
    void *args;
} xep_launch_t;

typedef struct xep_device xep_device_t;

/**
 * What a mode sees of the device that its regions lie on. Nothing here waits for the device but sync. An error has set
 * its sentence in this thread.
 */
typedef struct xep_device_ops {
    size_t size; /* of this struct; must be equal in mode and library */

    /** Address of rank's device heap for kernels of this rank's device. */
    void *(*map)(xep_device_t *device, uint32_t rank);

    /**
     * Zeroed memory of this rank alone: XEP_MEMORY_CUDA, of the device, or XEP_MEMORY_HOST, pinned, which kernels reach
     * by the same address. release: NULL is a no-op.
     */
    xep_status_t (*allocate)(xep_device_t *device, xep_memory_t memory, uint64_t bytes, void **memory_p);
    void (*release)(xep_device_t *device, xep_memory_t memory, void *address);

    /** Loads a fat binary, and finds a kernel in it that may be launched with so much dynamic shared memory. */
    xep_status_t (*load)(xep_device_t *device, const void *image, void **module_p);
    xep_status_t (*find)(xep_device_t *device, void *module, const char *name, uint32_t shared_bytes, void **kernel_p);
    void (*unload)(xep_device_t *device, void *module);

    xep_status_t (*launch)(xep_device_t *device, const xep_launch_t *launch);

    /** Enqueues a copy, to or from the device, of rows of so many bytes, from_stride and to_stride bytes apart. */
    xep_status_t (*copy)(xep_device_t *device, void *to, size_t to_stride, const void *from, size_t from_stride,
                         size_t bytes, size_t rows, void *stream);

    /** Enqueues setting bytes of device memory to a value. */
    xep_status_t (*fill)(xep_device_t *device, void *to, uint8_t value, size_t bytes, void *stream);

    /** What is enqueued on stream from now on comes after all that was before the last mark. Errors: check_stream. */
    xep_status_t (*after_mark)(xep_device_t *device, void *stream);
    xep_status_t (*mark)(xep_device_t *device, void *stream);

    /** A stream of the device's own, whose work comes after that of stream; after join that comes after its work. */
    xep_status_t (*branch)(xep_device_t *device, void *stream, void **beside_p);
    xep_status_t (*join)(xep_device_t *device, void *stream);

    /** XEP_OK, or XEP_ERR_INVALID: no stream, or the argument called name no memory, of this device. NULL is. */
    xep_status_t (*check_stream)(xep_device_t *device, void *stream);
    xep_status_t (*check)(xep_device_t *device, const char *name, const void *address);

    /** Whether what is enqueued on stream is kept for a graph, and not done now. */
    int (*is_captured)(xep_device_t *device, void *stream);

    /** Waits until the device has done all that was enqueued. */
    xep_status_t (*sync)(xep_device_t *device);

    /** XEP_OK, or XEP_ERR_INVALID: the argument called name is memory of a device, this one or another. NULL is not. */
    xep_status_t (*check_host)(xep_device_t *device, const char *name, const void *address);
} xep_device_ops_t;

struct xep_device {
    const xep_device_ops_t *ops;
    uint32_t multiprocessors;
    uint32_t shared_bytes; /* most dynamic shared memory of a block */
    const uint32_t *stop;  /* pinned: once it is not 0, kernels wait for nobody any more */
};

#ifdef __cplusplus
}
#endif

#endif
