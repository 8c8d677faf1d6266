/* SPDX-License-Identifier: BSD-3-Clause */

/** A heap on a rank: how it is reached, found out when the first wants to. */
#ifndef XEP_UCP_LINK_H
#define XEP_UCP_LINK_H

#include "ucp_objects.h"

/** Finds out how the rank is reached. After it link->state is not NEW. */
xep_status_t xep_ucp_link_open(xep_ucp_link_t *link);
void xep_ucp_link_close(xep_ucp_link_t *link);

/** Of a heap that spares ranks: parts it from one. */
void xep_ucp_link_sever(xep_ucp_link_t *link);

/** Sends what the links of a heap hold back. */
xep_status_t xep_ucp_links_push(xep_ucp_heap_t *heap);

#endif
