/* SPDX-License-Identifier: BSD-3-Clause */

/** What fails, and who is told: a heap once faulted says so from every flush and progress. */
#ifndef XEP_UCP_FAULT_H
#define XEP_UCP_FAULT_H

#include "ucp_objects.h"

/** Sets what flush and progress return from now on, unless they have an error already. */
void xep_ucp_heap_fault(xep_ucp_heap_t *heap, xep_status_t status, const char *reason);

/** XEP_OK, or that error, with its reason as this thread's. No lock needed. */
xep_status_t xep_ucp_heap_status(xep_ucp_heap_t *heap);

/** Faults every heap that has UCX move bytes to or from rank. */
void xep_ucp_heaps_lost(xep_ucp_transport_t *transport, uint32_t rank, const char *reason);

#endif
