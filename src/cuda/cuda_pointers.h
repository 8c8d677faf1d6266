/* SPDX-License-Identifier: BSD-3-Clause */

/** Whether an address that should be memory of the host is that of a CUDA device. */
#ifndef XEP_CUDA_POINTERS_H
#define XEP_CUDA_POINTERS_H

#include "device.h"

/** NULL: this process has not loaded the driver, so it has no memory of devices; or there is no memory. */
xep_pointers_t *xep_cuda_pointers_open(void);

#endif
