/* SPDX-License-Identifier: BSD-3-Clause */

/** The strategy "rma": a UCX put for each put; also gets, and puts of chunks, for all strategies. */
#ifndef XEP_UCP_RMA_H
#define XEP_UCP_RMA_H

#include "ucp_objects.h"

extern const xep_ucp_strategy_t xep_ucp_rma;

/** One put from src, which stays until done. */
xep_status_t xep_ucp_rma_put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes,
                             xep_ucp_chunk_t *chunk);

xep_status_t xep_ucp_rma_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes);

/** Whether the caps allow bytes more. */
bool xep_ucp_rma_has_room(xep_ucp_link_t *link, size_t bytes);

#endif
