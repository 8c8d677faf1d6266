/* SPDX-License-Identifier: BSD-3-Clause */

/** What a mode makes a device do. */
#ifndef XEP_CUDA_WORK_H
#define XEP_CUDA_WORK_H

#include "cuda_objects.h"

/** Its table. */
extern const xep_device_ops_t xep_cuda_ops;

/** Some of these, for the core. */
xep_status_t xep_cuda_work_after_mark(xep_device_t *device, void *stream);
int xep_cuda_work_is_captured(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_own_stream(xep_heap_device_t *device, void **stream_p);

#endif
