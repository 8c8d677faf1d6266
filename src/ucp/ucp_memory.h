/* SPDX-License-Identifier: BSD-3-Clause */

/** The memory of a heap: allocated by UCX, so that peers may map it. */
#ifndef XEP_UCP_MEMORY_H
#define XEP_UCP_MEMORY_H

#include <time.h>

#include "ucp_objects.h"

/** Zeroed, on a page; sets base and bytes. */
xep_status_t xep_ucp_memory_open(xep_ucp_heap_t *heap, uint64_t bytes);
void xep_ucp_memory_close(xep_ucp_heap_t *heap);

/** Segments that UCX has made in this process since then are this user's alone. */
void xep_ucp_memory_keep_to_user(time_t since);

#endif
