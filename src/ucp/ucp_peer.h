/* SPDX-License-Identifier: BSD-3-Clause */

/** A rank: its endpoint, made on first use; what UCX chose for it; its failure. */
#ifndef XEP_UCP_PEER_H
#define XEP_UCP_PEER_H

#include "ucp_objects.h"

/** Makes the endpoint when there is none. XEP_ERR_PEER: the rank is gone or cannot be reached. */
xep_status_t xep_ucp_peer_connect(xep_ucp_peer_t *peer);

/**
 * Marks the rank as gone: nothing is sent to it any more, and heaps that reach it by UCX fail, unless it has said
 * goodbye.
 */
void xep_ucp_peer_lose(xep_ucp_peer_t *peer, ucs_status_t status, const char *why);

/** Returns peer->failed as a status, with the reason. */
xep_status_t xep_ucp_peer_fail(const xep_ucp_peer_t *peer);

/** The transports that UCX chose: "sysv, posix, cma". Connected. */
const char *xep_ucp_peer_lanes(xep_ucp_peer_t *peer);

/** Whether UCX uses TCP for everything. Connected. */
bool xep_ucp_peer_is_tcp(xep_ucp_peer_t *peer);

/** Whether this transport is among those that UCX chose. Connected. */
bool xep_ucp_peer_has(xep_ucp_peer_t *peer, const char *transport);

/* ---- its address ---- */

/** What this process tells others of its transport, the worker's address, into the transport's. */
xep_status_t xep_ucp_address_make(xep_ucp_transport_t *transport);

/** Checks the address of another process, and makes a peer of it, not connected yet. Keeps copy. */
xep_status_t xep_ucp_address_take(xep_ucp_transport_t *transport, uint32_t rank, const uint8_t *copy, size_t bytes,
                                  uint8_t flags);

#endif
