/* SPDX-License-Identifier: BSD-3-Clause */

/** What the library sees of CUDA. */
#ifndef XEP_CUDA_DEVICE_H
#define XEP_CUDA_DEVICE_H

#include "device.h"

/**
 * The CUDA device of a buffer: its heap, reached by the devices of all ranks; kernels, copies and marks on streams. It
 * is the device that is current in this thread. XEP_ERR_UNSUPPORTED: there is no driver or no device; XEP_ERR_INVALID:
 * no device is current.
 */
xep_status_t xep_cuda_device_open(xep_heap_device_t **device_p);

/**
 * Whether an address that should be memory of the host is that of a CUDA device. NULL: this process has not loaded the
 * driver, so it has no memory of devices; or there is no memory.
 */
xep_pointers_t *xep_cuda_pointers_open(void);

#endif
