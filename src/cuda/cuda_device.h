/* SPDX-License-Identifier: BSD-3-Clause */

/** The CUDA device of a buffer: its heap, reached by the devices of all ranks; kernels, copies and marks on streams. */
#ifndef XEP_CUDA_DEVICE_H
#define XEP_CUDA_DEVICE_H

#include "device.h"

/**
 * The device that is current in this thread. XEP_ERR_UNSUPPORTED: there is no driver or no device; XEP_ERR_INVALID: no
 * device is current.
 */
xep_status_t xep_cuda_device_open(xep_heap_device_t **device_p);

#endif
