/* SPDX-License-Identifier: BSD-3-Clause */

/** What a mode makes a device do: xep_device_ops_t, without what cuda_kept.h has. */
#ifndef XEP_CUDA_WORK_H
#define XEP_CUDA_WORK_H

#include "cuda_objects.h"

xep_status_t xep_cuda_work_find(xep_device_t *device, void *module, const char *name, uint32_t shared_bytes,
                                void **kernel_p);
xep_status_t xep_cuda_work_launch(xep_device_t *device, const xep_launch_t *launch);
xep_status_t xep_cuda_work_copy(xep_device_t *device, void *to, size_t to_stride, const void *from, size_t from_stride,
                                size_t bytes, size_t rows, void *stream);
xep_status_t xep_cuda_work_fill(xep_device_t *device, void *to, uint8_t value, size_t bytes, void *stream);
xep_status_t xep_cuda_work_after_mark(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_follow(xep_heap_device_t *device, void *stream);
int xep_cuda_work_is_captured(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_make_notes(xep_heap_device_t *device, uint32_t count);
xep_status_t xep_cuda_work_make_outs(xep_heap_device_t *device, uint32_t nranks);
xep_status_t xep_cuda_work_note(xep_heap_device_t *device, uint32_t number, void *stream);
xep_status_t xep_cuda_work_reached(xep_heap_device_t *device, uint32_t number);
xep_status_t xep_cuda_work_after_note(xep_heap_device_t *device, uint32_t number, void *stream);
xep_status_t xep_cuda_work_works(xep_heap_device_t *device);
xep_status_t xep_cuda_work_pin(xep_heap_device_t *device, void *base, uint64_t bytes);
void xep_cuda_work_unpin(xep_heap_device_t *device, void *base);
xep_status_t xep_cuda_work_own_stream(xep_heap_device_t *device, void **stream_p);
xep_status_t xep_cuda_work_mark(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_part(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_branch(xep_device_t *device, void **second_p);
xep_status_t xep_cuda_work_join(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_check_stream(xep_device_t *device, void *stream);
xep_status_t xep_cuda_work_check(xep_device_t *device, const char *name, const void *address);
xep_status_t xep_cuda_work_check_host(xep_device_t *device, const char *name, const void *address);
xep_status_t xep_cuda_work_sync(xep_device_t *device);

#endif
