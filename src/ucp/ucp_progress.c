/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What an end makes possible (a signal whose puts were flushed) is done after the round and not in the callbacks: UCX
 * does not expect calls from there.
 */
#include "ucp_progress.h"

#include "error.h"
#include "ucp_fault.h"
#include "ucp_signals.h"

void xep_ucp_advance(xep_ucp_transport_t *transport)
{
    if (ucp_worker_progress(transport->worker) != 0)
        atomic_fetch_add_explicit(&transport->super.moves, 1, memory_order_relaxed);
    while (transport->ready != NULL) {
        xep_ucp_link_t *link = transport->ready;
        transport->ready = link->next_ready;
        link->ready = false;
        if (xep_ucp_signals_advance(link) != XEP_OK)
            xep_ucp_heap_fault(link->heap, XEP_ERR_TRANSPORT, xep_last_error());
    }
}
