/* SPDX-License-Identifier: BSD-3-Clause */

/** The protocols of peers that are not mapped; ucp_link.c chooses. */
#ifndef XEP_UCP_PROTOCOL_H
#define XEP_UCP_PROTOCOL_H

#include "ucp_objects.h"

/* ---- ucp_protocol_gather.c ---- */

/* Puts to one rank are gathered and sent together. */

extern const xep_ucp_protocol_t xep_ucp_am;

/* ---- ucp_protocol_rma.c ---- */

/* One UCX put for each put. All protocols use its gets. */

extern const xep_ucp_protocol_t xep_ucp_rma;

xep_status_t xep_ucp_rma_get(xep_ucp_link_t *link, uint64_t offset, void *dst, size_t bytes);

/** Whether the limits allow so many bytes more. */
bool xep_ucp_rma_has_room(xep_ucp_link_t *link, size_t bytes);

#endif
