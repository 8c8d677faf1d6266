/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The upper half of an id is never used twice, so that a message for a heap that was closed finds nothing, even if a
 * new one took its index.
 */
#include "ucp_registry.h"

#include <stdio.h>
#include <stdlib.h>

#include "error.h"

xep_status_t xep_ucp_registry_enter(xep_ucp_heap_t *heap)
{
    xep_ucp_transport_t *transport = heap->transport;
    uint32_t index = 0;
    while (index < transport->nheaps && transport->heaps[index] != NULL) index++;
    if (index == transport->nheaps) {
        xep_ucp_heap_t **heaps = realloc(transport->heaps, (index + 1) * sizeof *heaps);
        if (heaps == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u heaps", index + 1);
        transport->heaps = heaps;
        transport->nheaps++;
    }
    transport->heaps[index] = heap;
    heap->id = (uint64_t)++transport->generation << 32 | index;
    return XEP_OK;
}

xep_ucp_heap_t *xep_ucp_registry_find(const xep_ucp_transport_t *transport, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    xep_ucp_heap_t *heap = index < transport->nheaps ? transport->heaps[index] : NULL;
    return heap != NULL && heap->id == id ? heap : NULL;
}

void xep_ucp_registry_leave(xep_ucp_heap_t *heap)
{
    if (xep_ucp_registry_find(heap->transport, heap->id) == heap) heap->transport->heaps[(uint32_t)heap->id] = NULL;
}

/* ---- faults: a heap once faulted says so from every flush and progress ---- */

/*
 * UCX reports a lost connection in callbacks, which cannot return an error: the heap keeps it, and its next flush or
 * progress returns it.
 */

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
