/* SPDX-License-Identifier: BSD-3-Clause */

/** Which strategy a peer that is not mapped gets. */
#ifndef XEP_UCP_STRATEGY_H
#define XEP_UCP_STRATEGY_H

#include "ucp_objects.h"

const xep_ucp_strategy_t *xep_ucp_strategy(xep_ucp_peer_t *peer);

/** Most bytes of one UCX put to the peer: longer puts are cut, as UCX would not copy them; SIZE_MAX: none is cut. */
size_t xep_ucp_strategy_cut(xep_ucp_peer_t *peer);

/** Data bytes of a chunk in which strategy gathers puts; 0: it gathers none. */
size_t xep_ucp_strategy_chunk(const xep_ucp_transport_t *transport, const xep_ucp_strategy_t *strategy);

/* ---- ucp_strategy_gather.c ---- */

/* Puts to one rank are gathered and sent together. */

extern const xep_ucp_strategy_t xep_ucp_pack, xep_ucp_am;

/* ---- ucp_strategy_rma.c ---- */

/* One UCX put for each put. All strategies use its gets, and its puts of chunks. */

extern const xep_ucp_strategy_t xep_ucp_rma;

/** One put from src, which stays until done. */
xep_status_t xep_ucp_rma_put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes,
                             xep_ucp_chunk_t *chunk);

xep_status_t xep_ucp_rma_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes);

/** Whether the limits allow so many bytes more. */
bool xep_ucp_rma_has_room(xep_ucp_link_t *link, size_t bytes);

#endif
