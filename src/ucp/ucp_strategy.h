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

/* ---- ucp_strategy_gather.c ---- */

/* Puts to one rank are copied together and sent as one. */

extern const xep_ucp_strategy_t xep_ucp_pack, xep_ucp_am;

/* ---- ucp_strategy_rma.c ---- */

/* A UCX put for each put; also gets, and puts of chunks, for all strategies. */

extern const xep_ucp_strategy_t xep_ucp_rma;

/** One put from src, which stays until done. */
xep_status_t xep_ucp_rma_put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes,
                             xep_ucp_chunk_t *chunk);

xep_status_t xep_ucp_rma_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes);

/** Whether the caps allow bytes more. */
bool xep_ucp_rma_has_room(xep_ucp_link_t *link, size_t bytes);

#endif
