/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The heartbeat: notices that a rank of another host has fallen silent.
 *
 * A host that loses power, or its cable, cannot say so. Its connections seem alive: TCP notices after minutes if they
 * are idle, and after a quarter of an hour if bytes are under way. So a thread of each rank sends an empty message to
 * every watched rank once in an interval, whatever the program does meanwhile, and counts the intervals in which
 * nothing has come from there. The count is right even if this process itself was stopped: it takes in what came
 * meanwhile before it counts.
 */
#ifndef XEP_UCP_HEARTBEAT_H
#define XEP_UCP_HEARTBEAT_H

#include "ucp_objects.h"

enum { XEP_UCP_BEATS = 5 }; /* intervals in which nothing came, after which a rank is given up */

/** The transport's watch: starts the thread; without the lock. ranks[r] 1: it is watched, and watches this rank. */
xep_status_t xep_ucp_heartbeat_start(xep_transport_t *transport, const uint8_t *ranks, int32_t interval_ms);

/** Ends it; without the lock. A no-op if there is none. */
void xep_ucp_heartbeat_stop(xep_ucp_transport_t *transport);

#endif
