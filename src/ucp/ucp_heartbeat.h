/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The heartbeat: how a rank of another host that falls silent is noticed.
 *
 * A host that loses power, or its cable, tells nobody. Its connections stay as they are: TCP looks after idle ones in
 * minutes, and after those with bytes under way in a quarter of an hour. So a thread of each rank sends an empty
 * message to every watched rank once in an interval, whatever the program does meanwhile, and counts the intervals in
 * which nothing at all has come from there. Counting is right also where this process itself was stopped: what came
 * meanwhile is taken in before it counts.
 */
#ifndef XEP_UCP_HEARTBEAT_H
#define XEP_UCP_HEARTBEAT_H

#include "ucp_objects.h"

enum { XEP_UCP_BEATS = 5 }; /* intervals in which nothing came, after which a rank is given up */

/** Starts the thread; without the lock. ranks[r] 1: it is watched, and watches this rank. */
xep_status_t xep_ucp_heartbeat_start(xep_ucp_transport_t *transport, const uint8_t *ranks, int32_t interval_ms);

/** Ends it; without the lock. Nothing where there is none. */
void xep_ucp_heartbeat_stop(xep_ucp_transport_t *transport);

#endif
