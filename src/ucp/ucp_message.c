/* SPDX-License-Identifier: BSD-3-Clause */

#include "ucp_message.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "log.h"
#include "ucp_link.h"
#include "ucp_op.h"
#include "ucp_peer.h"
#include "ucp_registry.h"

enum {
    MESSAGE_WEIGHT =
        1024, /* of an empty message: what a small write takes of a socket's buffer, bookkeeping included */
    SURE_WEIGHT = 32 * 1024 /* a new connection takes twice as much of 1 KB messages at an MTU of 1500 bytes, though
                               nobody reads (Linux; loopback: 4 MB) */
};

static uint64_t weight(size_t payload)
{
    return MESSAGE_WEIGHT + payload;
}

/* Eager only: a message must leave without an answer of the receiver, which may be in no call of xep. */
static xep_status_t post(xep_ucp_op_t *op, const void *payload, size_t bytes)
{
    xep_ucp_peer_t *peer = xep_ucp_peer_of(op->link);
    ucp_request_param_t param = xep_ucp_op_param(op);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    op->message.sender = peer->transport->rank;
    op->message.taken = peer->taken;
    peer->sent += weight(bytes);
    return xep_ucp_op_posted(op, ucp_am_send_nbx(peer->endpoint, XEP_UCP_AM_ID, &op->message, sizeof op->message,
                                                 payload, bytes, &param));
}

/* Messages to a heap are numbered in the order of these calls; the receiver stores signals in this order. */
xep_status_t xep_ucp_message_send(xep_ucp_op_t *op, const void *payload, size_t bytes)
{
    op->message.heap = op->link->remote_heap;
    op->message.sequence = op->link->sequence++;
    op->message.held_offset = op->link->held_offset;
    op->message.held_value = op->link->held_value;
    op->link->held_offset = XEP_UCP_NO_SIGNAL;
    xep_ucp_link_touch(op->link);
    return post(op, payload, bytes);
}

xep_status_t xep_ucp_message_send_empty(xep_ucp_link_t *link, uint64_t heap)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, 0);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->message.heap = heap;
    return post(op, NULL, 0);
}

/*
 * For UCX a small message is done once it is in UCX's own buffer, even if a full socket took only part of it. Then a
 * rank whose operation is complete would keep bytes that others wait for until its next call, and for ever if that call
 * is the barrier of another library. But UCX takes no other message before the rest is written, so an empty one is sent
 * after it. This is needed only if the socket may be full: the peer's messages say how much it has received.
 *
 * Measured on TCP loopback, exchange of 8 bytes and a signal: 6.3 us without, 11.1 us with the empty message.
 * ucp_ep_flush instead: 33 us, and it waits for an answer of the peer, which may be in that barrier already.
 */
xep_status_t xep_ucp_message_push_out(xep_ucp_link_t *link)
{
    const xep_ucp_peer_t *peer = xep_ucp_peer_of(link);
    if (!link->socket) return XEP_OK;
    if (link->protocol->by_messages && peer->sent - peer->acknowledged <= SURE_WEIGHT) return XEP_OK;
    return xep_ucp_message_send_empty(link, XEP_UCP_NO_HEAP);
}

/* ---- control messages ---- */

/*
 * They make no connections: a rank that was never reached counts as gone, and libucp 1.13 has aborted when it made an
 * endpoint to a rank that was leaving.
 */
static xep_status_t send_locked(xep_ucp_transport_t *transport, xep_ucp_peer_t *peer, const void *data, size_t bytes)
{
    if (peer->failed != UCS_OK) return xep_ucp_peer_fail(peer);
    if (peer->endpoint == NULL) return xep_fail(XEP_ERR_PEER, "rank %u was never reached", peer->rank);
    xep_ucp_op_t *op = xep_ucp_op_get(&transport->ctl->links[peer->rank], 0);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->ctl = malloc(bytes);
    if (op->ctl == NULL) {
        xep_ucp_op_done(op, UCS_OK);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a control message of %zu bytes", bytes);
    }
    memcpy(op->ctl, data, bytes);
    /* this rank must fetch the answers, even if it has mapped all others */
    atomic_store_explicit(&transport->urgent, true, memory_order_relaxed);
    op->message.heap = XEP_UCP_CTL;
    xep_status_t status = post(op, op->ctl, bytes);
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

/* Heartbeats and goodbyes are counted there, too: they leave at once, or this rank leaves. */
int xep_ucp_ctl_has_left(xep_transport_t *base)
{
    xep_ucp_transport_t *transport = (xep_ucp_transport_t *)base;
    xep_ucp_lock(transport);
    int left = transport->ctl->outstanding == 0;
    xep_ucp_unlock(transport);
    return left;
}

/* ---- what arrives ---- */

/* the message's sender is a rank */
static void note_message(xep_ucp_transport_t *transport, const xep_ucp_message_t *message, size_t bytes)
{
    xep_ucp_peer_t *peer = &transport->peers[message->sender];
    peer->taken += weight(bytes);
    peer->heard = true;
    if (message->heap == XEP_UCP_GOODBYE) peer->left = true;
    if (message->taken > peer->acknowledged && message->taken <= peer->sent) peer->acknowledged = message->taken;
}

/* Ignored before the transport is connected; the sender is a rank. */
static void take_ctl(xep_ucp_transport_t *transport, const xep_ucp_message_t *message, const void *data, size_t bytes)
{
    if (message->sender >= transport->nranks || transport->super.on_ctl == NULL) return;
    transport->super.on_ctl(transport->super.on_ctl_arg, message->sender, data, bytes);
}

/* runs in the thread that makes progress, with the lock held */
static ucs_status_t arrived(void *arg, const void *header, size_t header_bytes, void *payload, size_t bytes,
                            const ucp_am_recv_param_t *param)
{
    xep_ucp_transport_t *transport = arg;
    xep_ucp_message_t message;
    xep_ucp_heap_t *heap;
    if (header_bytes != sizeof message || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        xep_log(XEP_LOG_WARN, "a message that is not one of ours was dropped: header of %zu bytes", header_bytes);
        return UCS_OK;
    }
    memcpy(&message, header, sizeof message);
    if (message.sender < transport->nranks) note_message(transport, &message, bytes);
    if (message.heap == XEP_UCP_NO_HEAP || message.heap == XEP_UCP_GOODBYE) return UCS_OK;
    if (message.heap == XEP_UCP_CTL) {
        take_ctl(transport, &message, payload, bytes);
        return UCS_OK;
    }
    heap = xep_ucp_registry_find(transport, message.heap);
    if (heap == NULL) {
        xep_log(XEP_LOG_DEBUG, "a message of rank %u for a heap that is closed was dropped", message.sender);
        return UCS_OK;
    }
    xep_status_t status = xep_ucp_intake_deliver(heap->intake, &message, payload, bytes);
    if (status != XEP_OK) xep_ucp_heap_fault(heap, status, xep_last_error());
    return UCS_OK;
}

/* The handler gets whole messages only. */
xep_status_t xep_ucp_message_listen(xep_ucp_transport_t *transport)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = XEP_UCP_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = arrived,
        .arg = transport,
    };
    ucs_status_t ret = ucp_worker_set_am_recv_handler(transport->worker, &param);
    return ret == UCS_OK ? XEP_OK
                         : xep_fail(XEP_ERR_TRANSPORT, "ucp_worker_set_am_recv_handler: %s", ucs_status_string(ret));
}
