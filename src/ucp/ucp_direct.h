/* SPDX-License-Identifier: BSD-3-Clause */

/** The twin of a part of a heap in the memory of a device, and puts from device to device (xep/direct.h). */
#ifndef XEP_UCP_DIRECT_H
#define XEP_UCP_DIRECT_H

#include "ucp_objects.h"

/** The transport's operations heap_twin and heap_put_direct; they take the lock. */
xep_status_t xep_ucp_direct_open(xep_heap_wire_t *heap, uint64_t begin, const xep_memory_range_t *rows,
                                 const xep_memory_range_t *inputs);
xep_status_t xep_ucp_direct_put(xep_heap_wire_t *heap, uint32_t rank, uint64_t offset, const void *src, size_t bytes);

#endif
