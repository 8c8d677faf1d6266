/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Control messages makes no connections: a rank that was never reached counts as gone, and libucp 1.13 has aborted when
 * it made an endpoint to a rank that was leaving.
 */
#include "ucp_message.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "ucp_link.h"
#include "ucp_op.h"
#include "ucp_peer.h"

static xep_status_t send_locked(xep_ucp_transport_t *transport, xep_ucp_peer_t *peer, const void *data, size_t bytes)
{
    if (peer->failed != UCS_OK) return xep_ucp_peer_fail(peer);
    if (peer->endpoint == NULL) return xep_fail(XEP_ERR_PEER, "rank %u was never reached", peer->rank);
    xep_ucp_op_t *op = xep_ucp_op_get(&transport->probe->links[peer->rank], 0);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->ctl = malloc(bytes);
    if (op->ctl == NULL) {
        xep_ucp_op_done(op, UCS_OK);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a control message of %zu bytes", bytes);
    }
    memcpy(op->ctl, data, bytes);
    /* this rank must fetch the answers, even if it has mapped all others */
    atomic_store_explicit(&transport->urgent, true, memory_order_relaxed);
    xep_status_t status = xep_ucp_message_send_ctl(op, op->ctl, bytes);
    xep_ucp_advance(transport); /* on its way before the caller is out of the library */
    return status;
}

xep_status_t xep_ucp_ctl(xep_transport_t *base, uint32_t rank, const void *data, size_t bytes)
{
    xep_ucp_transport_t *transport = (xep_ucp_transport_t *)base;
    xep_ucp_lock(transport);
    xep_status_t status = send_locked(transport, &transport->peers[rank], data, bytes);
    xep_ucp_unlock(transport);
    return status;
}

/* The probe's heap has no operations but control messages and goodbyes. */
int xep_ucp_ctl_has_left(xep_transport_t *base)
{
    xep_ucp_transport_t *transport = (xep_ucp_transport_t *)base;
    xep_ucp_lock(transport);
    int left = transport->probe->outstanding == 0;
    xep_ucp_unlock(transport);
    return left;
}
