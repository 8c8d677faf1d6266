/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The heap of a rank in the memory of its device, and how the devices of other processes reach it; and the memory and
 * kernels of modes.
 */
#ifndef XEP_CUDA_MEMORY_H
#define XEP_CUDA_MEMORY_H

#include "cuda_objects.h"

/* ---- the heap ---- */

/** As in xep_heap_device_ops_t and xep_device_ops_t. */
xep_status_t xep_cuda_heap_open(xep_heap_device_t *device, uint64_t bytes);
xep_status_t xep_cuda_heap_connect(xep_heap_device_t *device, uint32_t rank, uint32_t nranks, const void *const *keys,
                                   const size_t *bytes);
void *xep_cuda_heap_map(xep_device_t *device, uint32_t rank);

/** Closes what connect opened, and frees the heap. */
void xep_cuda_heap_close(xep_cuda_device_t *cuda);

/* ---- what modes have ---- */

/*
 * Memory and kernels of modes. A graph refers to them as long as it can be launched, even after a reset has closed the
 * mode that it was captured with. So what a mode gives back is kept until the buffer ends, for the next mode.
 */

/** For xep_device_ops_t. */
xep_status_t xep_cuda_kept_allocate(xep_device_t *device, xep_memory_t memory, uint64_t bytes, void **memory_p);
void xep_cuda_kept_release(xep_device_t *device, xep_memory_t memory, void *address);
xep_status_t xep_cuda_kept_load(xep_device_t *device, const void *image, void **module_p);
void xep_cuda_kept_unload(xep_device_t *device, void *module);

/** Frees everything, in the context of the device. */
void xep_cuda_kept_close(xep_cuda_device_t *cuda);

#endif
