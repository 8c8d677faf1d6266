/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCX tells of a lost connection in callbacks, which cannot return an error to anybody: it is kept with the heap, and
 * its next flush or progress returns it.
 */
#include "ucp_fault.h"

#include <stdio.h>

#include "error.h"

void xep_ucp_heap_fault(xep_ucp_heap_t *heap, xep_status_t status, const char *reason)
{
    if (atomic_load_explicit(&heap->status, memory_order_relaxed) != XEP_OK) return;
    snprintf(heap->reason, sizeof heap->reason, "%s", reason);
    atomic_store_explicit(&heap->status, status, memory_order_release);
}

xep_status_t xep_ucp_heap_status(xep_ucp_heap_t *heap)
{
    xep_status_t status = (xep_status_t)atomic_load_explicit(&heap->status, memory_order_acquire);
    return status == XEP_OK ? XEP_OK : xep_fail(status, "%s", heap->reason);
}

void xep_ucp_heaps_lost(xep_ucp_transport_t *transport, uint32_t rank, const char *reason)
{
    for (uint32_t index = 0; index < transport->nheaps; index++) {
        xep_ucp_heap_t *heap = transport->heaps[index];
        if (heap == NULL || heap->links == NULL || heap->links[rank].state != XEP_UCP_LINK_REMOTE) continue;
        if (heap->super.spares) continue; /* it asks is_gone */
        xep_ucp_heap_fault(heap, XEP_ERR_PEER, reason);
    }
}
