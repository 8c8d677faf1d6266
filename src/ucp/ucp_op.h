/* SPDX-License-Identifier: BSD-3-Clause */

/** Operations in flight: records that are used again, their completion, and what an error does. */
#ifndef XEP_UCP_OP_H
#define XEP_UCP_OP_H

#include "ucp_objects.h"

/** A zeroed op of link, counted as outstanding; NULL: no memory, with the reason set. */
xep_ucp_op_t *xep_ucp_op_get(xep_ucp_link_t *link, size_t bytes);

/** Completion: gives back what the op holds. */
void xep_ucp_op_done(xep_ucp_op_t *op, ucs_status_t status);

/** For op's UCX call: completion comes to op. */
ucp_request_param_t xep_ucp_op_param(xep_ucp_op_t *op);

/** Turns the result of the UCX call for op into a status; op must not be used afterwards. */
xep_status_t xep_ucp_op_posted(xep_ucp_op_t *op, ucs_status_ptr_t request);

/**
 * Takes those of a link that the heap fences off from the list of those outstanding. Before it counts as fenced off.
 */
void xep_ucp_ops_fence_off(xep_ucp_link_t *link);

void xep_ucp_ops_close(xep_ucp_transport_t *transport);

#endif
