/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Control messages go as tagged messages, not as active ones: for the first active message UCX makes the receiver
 * connect to the sender, and if that one dies meanwhile, libucp 1.13 aborts the receiver.
 */
#include "ucp_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "ucp_context.h"
#include "ucp_peer.h"
#include "ucp_settings.h"

enum { MSG_BYTES = 256 << 20 /* at most: a longer one is not from xep */, LEAVE_MS = 500 };

/** Control messages that UCX sends or receives. */
struct xep_ucp_msg {
    xep_ucp_msg_t **link, *next; /* of its transport's control messages */
    xep_ucp_transport_t *transport;
    bool leaves; /* this process */
    size_t bytes;
    char data[];
};

static xep_ucp_transport_t *transport_of(xep_transport_t *transport)
{
    return (xep_ucp_transport_t *)transport;
}

static xep_ucp_msg_t *open_msg(xep_ucp_transport_t *transport, bool leaves, size_t bytes)
{
    xep_ucp_msg_t *msg = malloc(sizeof *msg + bytes);
    if (msg == NULL) return NULL;
    *msg = (xep_ucp_msg_t){&transport->msgs, transport->msgs, transport, leaves, bytes};
    if (msg->next != NULL) msg->next->link = &msg->next;
    transport->msgs = msg;
    transport->leaving += leaves;
    return msg;
}

static void free_msg(xep_ucp_msg_t *msg)
{
    *msg->link = msg->next;
    if (msg->next != NULL) msg->next->link = msg->link;
    msg->transport->leaving -= msg->leaves;
    free(msg);
}

/* ---- sending ---- */

/* The endpoint reports that the other side is gone. */
static void left(void *request, ucs_status_t status, void *msg)
{
    (void)status;
    free_msg(msg);
    ucp_request_free(request);
}

static xep_status_t send_msg(xep_ucp_peer_t *peer, const void *data, size_t bytes)
{
    if (peer->failed != UCS_OK) return xep_ucp_peer_fail(peer);
    xep_ucp_msg_t *msg = open_msg(peer->transport, true, bytes);
    if (msg == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a control message of %zu bytes", bytes);
    memcpy(msg->data, data, bytes);
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = left,
                                       .user_data = msg};
    ucs_status_ptr_t request = ucp_tag_send_nbx(peer->endpoint, msg->data, bytes, 0, &param);
    if (UCS_PTR_IS_PTR(request)) return XEP_OK;
    free_msg(msg);
    if (request == NULL) return XEP_OK;
    return xep_fail(XEP_ERR_PEER, "ucx cannot send: %s", ucs_status_string(UCS_PTR_STATUS(request)));
}

static xep_status_t unranked_ctl(xep_transport_t *base, uint32_t index, const void *data, size_t bytes)
{
    xep_ucp_lock(transport_of(base));
    xep_status_t status = send_msg(&transport_of(base)->peers[index], data, bytes);
    xep_ucp_unlock(transport_of(base));
    return status;
}

/* ---- receiving ---- */

static void deliver(xep_ucp_msg_t *msg, ucs_status_t status)
{
    xep_transport_t *transport = &msg->transport->super;
    if (status == UCS_OK) transport->on_ctl(transport->on_ctl_arg, 0, msg->data, msg->bytes);
    free_msg(msg);
}

static void came(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *msg)
{
    (void)info; /* it is as long as the probe has said */
    deliver(msg, status);
    ucp_request_free(request);
}

/* A message that is too long is received into no memory, which is an error, and so dropped. */
static void receive(xep_ucp_transport_t *transport, ucp_tag_message_h message, size_t bytes)
{
    xep_ucp_msg_t *msg = bytes > MSG_BYTES ? NULL : open_msg(transport, false, bytes);
    if (msg == NULL) msg = open_msg(transport, false, 0);
    if (msg == NULL) return;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.recv = came,
                                       .user_data = msg};
    ucs_status_ptr_t request = ucp_tag_msg_recv_nbx(transport->worker, msg->data, msg->bytes, message, &param);
    if (!UCS_PTR_IS_PTR(request)) deliver(msg, UCS_PTR_STATUS(request));
}

/* Stale addresses are normal here, and UCX would print an error for each. */
static xep_status_t unranked_progress(xep_transport_t *base)
{
    xep_ucp_transport_t *transport = transport_of(base);
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    xep_ucp_lock(transport);
    xep_ucp_quiet_begin();
    if (ucp_worker_progress(transport->worker) != 0) atomic_fetch_add(&base->moves, 1);
    while ((message = ucp_tag_probe_nb(transport->worker, 0, 0, 1, &info)) != NULL)
        receive(transport, message, info.length);
    xep_ucp_quiet_end();
    xep_ucp_unlock(transport);
    return XEP_OK;
}

/* ---- who is there ---- */

/* left: no heap hears of the end of a process that is not a rank. */
static xep_status_t unranked_admit(xep_transport_t *base, uint32_t index, const void *address, size_t bytes)
{
    xep_ucp_lock(transport_of(base));
    xep_status_t status = xep_ucp_address_take(transport_of(base), index, address, bytes, 0);
    if (status == XEP_OK) {
        transport_of(base)->peers[index].left = true;
        status = xep_ucp_peer_connect(&transport_of(base)->peers[index]);
    }
    xep_ucp_unlock(transport_of(base));
    return status;
}

static int unranked_is_gone(xep_transport_t *base, uint32_t index, char *why, size_t bytes)
{
    xep_ucp_lock(transport_of(base));
    const ucs_status_t failed = transport_of(base)->peers[index].failed;
    xep_ucp_unlock(transport_of(base));
    if (failed != UCS_OK) snprintf(why, bytes, "%s", ucs_status_string(failed));
    return failed != UCS_OK;
}

/* ---- begin and end ---- */

/* Waits a while for messages to leave. */
static void leave(xep_ucp_transport_t *transport)
{
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, xep_deadline(LEAVE_MS));
    while (transport->leaving != 0 && xep_backoff_wait(&backoff, atomic_load(&transport->super.moves)))
        (void)unranked_progress(&transport->super);
    xep_ucp_quiet_begin();
    ucp_worker_destroy(transport->worker);
    xep_ucp_quiet_end();
    ucp_cleanup(transport->context);
}

static void unranked_close(xep_transport_t *base)
{
    xep_ucp_transport_t *transport = transport_of(base);
    if (transport->worker != NULL) leave(transport);
    while (transport->msgs != NULL) free_msg(transport->msgs);
    free(transport->peers);
    free((void *)(uintptr_t)base->address);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static const xep_transport_ops_t unranked_ops = {.admit = unranked_admit,
                                                 .progress = unranked_progress,
                                                 .ctl = unranked_ctl,
                                                 .is_gone = unranked_is_gone,
                                                 .close = unranked_close};

xep_status_t xep_ucp_meet(xep_transport_t *base, const xep_whereabouts_t *where, uint32_t most)
{
    xep_ucp_transport_t *transport = transport_of(base);
    base->ops = &unranked_ops;
    transport->shared.meets = true;
    transport->peers = calloc(most, sizeof *transport->peers);
    if (transport->peers == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u processes", most);
    xep_status_t status = xep_ucp_context_open(&transport->shared, where, &transport->context, &transport->worker);
    return status == XEP_OK ? xep_ucp_address_make(transport) : status;
}
