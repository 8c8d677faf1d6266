/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The open heaps of a transport, by their id in messages: an index, and a number that is never used again, so that late
 * messages find nothing.
 */
#ifndef XEP_UCP_REGISTRY_H
#define XEP_UCP_REGISTRY_H

#include "ucp_objects.h"

/** Gives the heap an id. */
xep_status_t xep_ucp_registry_enter(xep_ucp_heap_t *heap);

/** Forgets it; a second time does nothing. */
void xep_ucp_registry_leave(xep_ucp_heap_t *heap);

/** The open heap of that id, or NULL. */
xep_ucp_heap_t *xep_ucp_registry_find(const xep_ucp_transport_t *transport, uint64_t id);

/* ---- faults: a heap once faulted says so from every flush and progress ---- */

/** Sets the error that flush and progress return from now on, unless there is one already. */
void xep_ucp_heap_fault(xep_ucp_heap_t *heap, xep_status_t status, const char *reason);

/** XEP_OK, or that error, with its reason as this thread's. No lock needed. */
xep_status_t xep_ucp_heap_status(xep_ucp_heap_t *heap);

/** Faults every heap for which UCX moves bytes to or from rank. */
void xep_ucp_heaps_lost(xep_ucp_transport_t *transport, uint32_t rank, const char *reason);

#endif
