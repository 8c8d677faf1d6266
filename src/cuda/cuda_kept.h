/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Memory and kernels of modes. A graph refers to them as long as it can be launched, even after a reset has closed the
 * mode that it was captured with. So what a mode gives back is kept until the buffer ends, for the next mode.
 */
#ifndef XEP_CUDA_KEPT_H
#define XEP_CUDA_KEPT_H

#include "cuda_objects.h"

/** For xep_device_ops_t. */
xep_status_t xep_cuda_kept_allocate(xep_device_t *device, xep_memory_t memory, uint64_t bytes, void **memory_p);
void xep_cuda_kept_release(xep_device_t *device, xep_memory_t memory, void *address);
xep_status_t xep_cuda_kept_load(xep_device_t *device, const void *image, void **module_p);
void xep_cuda_kept_unload(xep_device_t *device, void *module);

/** Frees everything, in the context of the device. */
void xep_cuda_kept_close(xep_cuda_device_t *cuda);

#endif
