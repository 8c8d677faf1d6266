/* SPDX-License-Identifier: BSD-3-Clause */

/** The lock of a transport: see ucp_objects.h. */
#ifndef XEP_UCP_LOCK_H
#define XEP_UCP_LOCK_H

#include <sched.h>

#include "cpu.h"
#include "ucp_objects.h"

static inline void xep_ucp_lock(xep_ucp_transport_t *transport)
{
    unsigned spins = 0;
    while (atomic_exchange_explicit(&transport->lock, 1, memory_order_acquire) != 0)
        if (++spins % 128 != 0) xep_cpu_relax();
        else sched_yield(); /* the holder may have lost its core */
}

static inline bool xep_ucp_trylock(xep_ucp_transport_t *transport)
{
    return atomic_load_explicit(&transport->lock, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&transport->lock, 1, memory_order_acquire) == 0;
}

static inline void xep_ucp_unlock(xep_ucp_transport_t *transport)
{
    atomic_store_explicit(&transport->lock, 0, memory_order_release);
}

#endif
