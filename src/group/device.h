/* SPDX-License-Identifier: BSD-3-Clause */

/** What the core needs of a device: a heap in its memory that the devices of all ranks reach. */
#ifndef XEP_GROUP_DEVICE_H
#define XEP_GROUP_DEVICE_H

#include <xep/plugin.h>

typedef struct xep_heap_device xep_heap_device_t; /* of one buffer */

typedef struct xep_heap_device_ops {
    /** Allocates the heap, zeroed, and makes its key. Local. */
    xep_status_t (*heap_open)(xep_heap_device_t *device, uint64_t bytes);

    /** All ranks' keys, in rank order. After it map() works. Local. */
    xep_status_t (*heap_connect)(xep_heap_device_t *device, uint32_t rank, uint32_t nranks, const void *const *keys,
                                 const size_t *bytes);

    /** Orders later work on stream after the last mark. XEP_ERR_INVALID: it cannot. */
    xep_status_t (*follow)(xep_heap_device_t *device, void *stream);

    /** Gives a stream that the device has for work of the library alone. */
    xep_status_t (*own_stream)(xep_heap_device_t *device, void **stream_p);

    /** Makes so many notes, once; freed by close. */
    xep_status_t (*make_notes)(xep_heap_device_t *device, uint32_t count);

    /**
     * Notes how far a stream has come; reached: XEP_OK when it is there, XEP_INPROGRESS before; after_note: orders
     * later work on a stream, which is checked, after it.
     */
    xep_status_t (*note)(xep_heap_device_t *device, uint32_t number, void *stream);
    xep_status_t (*reached)(xep_heap_device_t *device, uint32_t number);
    xep_status_t (*after_note)(xep_heap_device_t *device, uint32_t number, void *stream);

    /** XEP_OK, or why the device does no work any more. */
    xep_status_t (*works)(xep_heap_device_t *device);

    /** Pins host memory, once, without which copies are not asynchronous; until close, so it is freed behind that. */
    xep_status_t (*pin)(xep_heap_device_t *device, void *base, uint64_t bytes);

    /** Makes gone and left of the device, for so many ranks; freed by close. */
    xep_status_t (*make_outs)(xep_heap_device_t *device, uint32_t nranks);

    /** Makes kernels stop waiting (0: they may wait again). */
    void (*stop)(xep_heap_device_t *device, int stopped);

    /** Frees everything. Peers must be done with the heap. */
    void (*close)(xep_heap_device_t *device);
} xep_heap_device_ops_t;

struct xep_heap_device {
    xep_device_t device; /* first, so that the mode's pointer is ours */
    const xep_heap_device_ops_t *ops;
    int32_t number; /* what the driver calls it in this process */
    void *base;     /* of the heap; NULL: none was opened */
    uint64_t bytes;
    const void *key; /* what peers need to reach it; exchanged by the core */
    size_t key_bytes;
};

/** Tells memory of devices from memory of the host: of a process that has devices. */
typedef struct xep_pointers xep_pointers_t;
struct xep_pointers {
    int32_t (*device_of)(const xep_pointers_t *pointers, const void *address); /* number of the device; -1: the host */
    void (*close)(xep_pointers_t *pointers);
};

#endif
