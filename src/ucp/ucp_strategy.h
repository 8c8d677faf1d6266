/* SPDX-License-Identifier: BSD-3-Clause */

/** Which strategy a peer that is not mapped gets. */
#ifndef XEP_UCP_STRATEGY_H
#define XEP_UCP_STRATEGY_H

#include "ucp_objects.h"

const xep_ucp_strategy_t *xep_ucp_strategy(xep_ucp_peer_t *peer);

/** Most bytes of a put of UCX to the peer: more is cut, as UCX would not copy it; SIZE_MAX: none is cut. */
size_t xep_ucp_strategy_cut(xep_ucp_peer_t *peer);

/** Data bytes of a chunk of what strategy puts together; 0: it does not. */
size_t xep_ucp_strategy_chunk(const xep_ucp_transport_t *transport, const xep_ucp_strategy_t *strategy);

#endif
