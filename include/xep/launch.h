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
    uint32_t follows; /* 1: may begin before the previous kernel ends, and waits for that itself */
    void *stream;
    void *args;
} xep_launch_t;

typedef struct xep_device xep_device_t;

/**
 * What a mode sees of the device that its regions lie on. Only sync waits for the device. A function that fails has set
 * the reason in this thread.
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

    /** Enqueues a copy of rows to or from the device: bytes of each row, from_stride and to_stride apart. */
    xep_status_t (*copy)(xep_device_t *device, void *to, size_t to_stride, const void *from, size_t from_stride,
                         size_t bytes, size_t rows, void *stream);

    /** Enqueues setting bytes of device memory to a value. */
    xep_status_t (*fill)(xep_device_t *device, void *to, uint8_t value, size_t bytes, void *stream);

    /** Orders later work on stream after all work before the last mark. Errors: as check_stream. */
    xep_status_t (*after_mark)(xep_device_t *device, void *stream);
    xep_status_t (*mark)(xep_device_t *device, void *stream);

    /**
     * Part of a stream's work: branch gives a second stream, whose later work is behind all that stream had before
     * part, and join orders later work on stream behind that of the second one. One part at a time.
     */
    xep_status_t (*part)(xep_device_t *device, void *stream);
    xep_status_t (*branch)(xep_device_t *device, void **second_p);
    xep_status_t (*join)(xep_device_t *device, void *stream);

    /**
     * XEP_ERR_INVALID: the stream, or the memory of the argument called name, is not of this device. NULL is accepted.
     */
    xep_status_t (*check_stream)(xep_device_t *device, void *stream);
    xep_status_t (*check)(xep_device_t *device, const char *name, const void *address);

    /** Whether stream is being captured into a graph. */
    int (*is_captured)(xep_device_t *device, void *stream);

    /** Waits until the device has done all enqueued work. */
    xep_status_t (*sync)(xep_device_t *device);

    /** XEP_ERR_INVALID: the argument called name is memory of a device, this one or another. NULL is accepted. */
    xep_status_t (*check_host)(xep_device_t *device, const char *name, const void *address);
} xep_device_ops_t;

struct xep_device {
    const xep_device_ops_t *ops;
    uint32_t multiprocessors;
    uint32_t shared_bytes; /* most dynamic shared memory of a block */
    const uint32_t *stop;  /* pinned: once it is not 0, kernels stop waiting */
    /*
     * XEP_ON_FAILURE_MASK, else NULL; pinned, a word for each rank that only grows. gone: 1: the host has left the rank
     * out; 2: its process has ended, too. left: 1: a kernel has left the rank out; of this rank: others have
     */
    uint32_t *gone, *left;
};

#ifdef __cplusplus
}
#endif

#endif
