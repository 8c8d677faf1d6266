/* SPDX-License-Identifier: BSD-3-Clause */

/** Messages: eager UCX active messages that store runs of bytes and a signal in the receiver's heap. */
#ifndef XEP_UCP_MESSAGE_H
#define XEP_UCP_MESSAGE_H

#include "ucp_objects.h"

/** Sends a message to the link's heap: payload stays until op is done. */
xep_status_t xep_ucp_message_send(xep_ucp_op_t *op, const void *payload, size_t bytes);

/** Makes sure that all messages to the link's rank leave UCX before this heap's ops are done. */
xep_status_t xep_ucp_message_push_out(xep_ucp_link_t *link);

/** Sends an empty message: heap is XEP_UCP_NO_HEAP or XEP_UCP_GOODBYE. */
xep_status_t xep_ucp_message_send_empty(xep_ucp_link_t *link, uint64_t heap);

/** Makes the worker take messages in. */
xep_status_t xep_ucp_message_listen(xep_ucp_transport_t *transport);

/** Operations of the transport, for messages from rank to rank that belong to no heap; they take the lock themselves. */
xep_status_t xep_ucp_ctl(xep_transport_t *base, uint32_t rank, const void *data, size_t bytes);
int xep_ucp_ctl_has_left(xep_transport_t *base);

#endif
