/* SPDX-License-Identifier: BSD-3-Clause */

/** The heap of a rank in the memory of its device, and how the devices of other processes reach it. */
#ifndef XEP_CUDA_HEAP_H
#define XEP_CUDA_HEAP_H

#include "cuda_objects.h"

/** As in xep_heap_device_ops_t and xep_device_ops_t. */
xep_status_t xep_cuda_heap_open(xep_heap_device_t *device, uint64_t bytes);
xep_status_t xep_cuda_heap_connect(xep_heap_device_t *device, uint32_t rank, uint32_t nranks, const void *const *keys,
                                   const size_t *bytes);
void *xep_cuda_heap_map(xep_device_t *device, uint32_t rank);

/** Closes what connect opened, and frees the heap. */
void xep_cuda_heap_close(xep_cuda_device_t *cuda);

#endif
