/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The transports that UCX chose for an endpoint are read from what it prints, the only way before 1.14. They decide how
 * bytes go to the rank, and are shown to users.
 */
#define _GNU_SOURCE
#include "ucp_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "log.h"
#include "ucp_devices.h"
#include "ucp_registry.h"

/* Keeps the first reason: later ones follow from it. */
void xep_ucp_peer_lose(xep_ucp_peer_t *peer, ucs_status_t status, const char *why)
{
    peer->failed = status;
    if (peer->gone[0] == '\0') snprintf(peer->gone, sizeof peer->gone, "rank %u is gone: %s", peer->rank, why);
    xep_log(peer->left ? XEP_LOG_DEBUG : XEP_LOG_INFO, "%s", peer->gone);
    if (!peer->left) xep_ucp_heaps_lost(peer->transport, peer->rank, peer->gone);
}

/* UCX may have chosen an interface that does not lead there, which shows only when it is used. */
static xep_status_t fail_unreachable(const xep_ucp_peer_t *peer, ucs_status_t status)
{
    char own[XEP_UCP_INTERFACES_BYTES];
    xep_ucp_devices_describe(own);
    return xep_fail(XEP_ERR_PEER,
                    "rank %u cannot be reached: %s (it has %.*s; this rank has %s; UCX_NET_DEVICES names those to use)",
                    peer->rank, ucs_status_string(status), XEP_UCP_INTERFACES_BYTES - 1, peer->interfaces, own);
}

/* UCX reports that the rank is gone (at once over TCP, never over shared memory) or was never there. */
static void lost(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    const xep_ucp_peer_t *peer = arg;
    (void)endpoint;
    xep_ucp_peer_lose(arg, status, ucs_status_string(status));
    if (peer->left || peer->watched || peer->taken != 0 || peer->acknowledged != 0) return;
    (void)fail_unreachable(peer, status);
    xep_log(XEP_LOG_WARN, "%s", xep_last_error());
}

xep_status_t xep_ucp_peer_fail(const xep_ucp_peer_t *peer)
{
    if (peer->failed == UCS_ERR_UNREACHABLE) return fail_unreachable(peer, peer->failed);
    return xep_fail(XEP_ERR_PEER, "rank %u cannot be reached: %s", peer->rank, ucs_status_string(peer->failed));
}

/* At first use: in a large job most pairs of ranks never talk. */
xep_status_t xep_ucp_peer_connect(xep_ucp_peer_t *peer)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = peer->address,
        .err_handler = {.cb = lost, .arg = peer},
    };
    ucs_status_t ret;
    if (peer->failed != UCS_OK) return xep_ucp_peer_fail(peer);
    if (peer->endpoint != NULL) return XEP_OK;
    ret = ucp_ep_create(peer->transport->worker, &params, &peer->endpoint);
    if (ret != UCS_OK) {
        peer->endpoint = NULL;
        peer->failed = ret;
        return xep_ucp_peer_fail(peer);
    }
    return XEP_OK;
}

/* "lane[0]:  3:sysv/memory.0 ..." names a transport: its place and length, or NULL */
static const char *lane_transport(const char *line, int *length_p)
{
    const char *name = strstr(line, "lane[");
    if (name == NULL || (name = strchr(name, ':')) == NULL) return NULL;
    name += strspn(name, ": 0123456789");
    *length_p = (int)strcspn(name, "/ \n");
    return name;
}

static void add_lane(xep_ucp_peer_t *peer, const char *name, int length)
{
    size_t used = strlen(peer->lanes);
    char word[32];
    snprintf(word, sizeof word, "%.*s", length, name);
    if (strstr(peer->lanes, word) != NULL) return;
    snprintf(peer->lanes + used, sizeof peer->lanes - used, "%s%s", used == 0 ? "" : ", ", word);
}

/*
 * The text is the same since 1.13. ucp_ep_query() of 1.13 knows only names and sockets, and a library built with 1.13
 * must run with all later versions: using the query there would be a second way that does not replace this one.
 */
static void look_at_lanes(xep_ucp_peer_t *peer)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) return;
    ucp_ep_print_info(peer->endpoint, stream);
    fclose(stream);
    for (char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        int length;
        const char *name;
        char *end = strchr(++line, '\n');
        if (end == NULL) break;
        *end = '\0';
        name = lane_transport(line, &length);
        if (name != NULL) add_lane(peer, name, length);
        *end = '\n';
    }
    free(text);
}

const char *xep_ucp_peer_lanes(xep_ucp_peer_t *peer)
{
    if (peer->lanes[0] == '\0') look_at_lanes(peer);
    if (peer->lanes[0] == '\0') snprintf(peer->lanes, sizeof peer->lanes, "ucx");
    return peer->lanes;
}

bool xep_ucp_peer_is_tcp(xep_ucp_peer_t *peer)
{
    return strcmp(xep_ucp_peer_lanes(peer), "tcp") == 0;
}

bool xep_ucp_peer_has(xep_ucp_peer_t *peer, const char *transport)
{
    return strstr(xep_ucp_peer_lanes(peer), transport) != NULL;
}

/* ---- its address ---- */

/* Peers that read the address may run other versions: the head is checked before UCX gets the rest. */

enum { ADDRESS_MAGIC = 0x41504558, ADDRESS_VERSION = 5 };

/** The head of a rank's address, which all other ranks read. The address of its UCX worker follows. */
typedef struct rank_address {
    uint32_t magic, version;
    uint32_t worker_bytes;
    uint32_t ucx;                              /* xep_ucp_version_number() */
    char interfaces[XEP_UCP_INTERFACES_BYTES]; /* text, for errors */
} rank_address_t;
static_assert(sizeof(rank_address_t) == 16 + XEP_UCP_INTERFACES_BYTES, "wire format");

xep_status_t xep_ucp_address_make(xep_ucp_transport_t *transport)
{
    rank_address_t head = {.magic = ADDRESS_MAGIC, .version = ADDRESS_VERSION, .ucx = transport->version};
    ucp_address_t *worker;
    size_t bytes;
    ucs_status_t ret = ucp_worker_get_address(transport->worker, &worker, &bytes);
    if (ret != UCS_OK) return xep_fail(XEP_ERR_TRANSPORT, "ucp_worker_get_address: %s", ucs_status_string(ret));
    uint8_t *address = malloc(sizeof head + bytes);
    head.worker_bytes = (uint32_t)bytes;
    xep_ucp_devices_describe(head.interfaces);
    if (address != NULL) {
        memcpy(address, &head, sizeof head);
        memcpy(address + sizeof head, worker, bytes);
    }
    ucp_worker_release_address(transport->worker, worker);
    if (address == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for an address of %zu bytes", bytes);
    transport->super.address = address;
    transport->super.address_bytes = sizeof head + bytes;
    return XEP_OK;
}

/*
 * Like a key it comes from another process, which may run anything. The version before the length: that of another one
 * may differ.
 */
static xep_status_t check(const xep_ucp_transport_t *transport, uint32_t rank, const rank_address_t *head, size_t bytes)
{
    if (head->magic == ADDRESS_MAGIC && head->version != ADDRESS_VERSION)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and this rank disagree on the version of the transport: %u, %u",
                        rank, head->version, ADDRESS_VERSION);
    if (bytes < sizeof *head || head->magic != ADDRESS_MAGIC || head->worker_bytes == 0 ||
        head->worker_bytes != bytes - sizeof *head)
        return xep_fail(XEP_ERR_PROTOCOL, "invalid address from rank %u: %zu bytes (more than a header of %zu)", rank,
                        bytes, sizeof *head);
    /* 1.13 and 1.22 cannot unpack one another's keys, 1.17 and 1.18 do not connect; some that differ may */
    if (head->ucx != transport->version)
        return xep_fail(XEP_ERR_MISMATCH,
                        "rank %u and this rank have different versions of UCX: %u.%u, %u.%u (all need the same)", rank,
                        head->ucx / 100, head->ucx % 100, transport->version / 100, transport->version % 100);
    return XEP_OK;
}

xep_status_t xep_ucp_address_take(xep_ucp_transport_t *transport, uint32_t rank, const uint8_t *copy, size_t bytes,
                                  uint8_t flags)
{
    rank_address_t head = {0};
    xep_ucp_peer_t *peer = &transport->peers[rank];
    memcpy(&head, copy, bytes < sizeof head ? bytes : sizeof head);
    xep_status_t status = check(transport, rank, &head, bytes);
    if (status != XEP_OK) return status;
    *peer = (xep_ucp_peer_t){.transport = transport,
                             .rank = rank,
                             .may_map = (flags & XEP_PEER_MAY_MAP) != 0,
                             .visible = (flags & XEP_PEER_VISIBLE) != 0,
                             .address = copy + sizeof head,
                             .interfaces = (const char *)copy + offsetof(rank_address_t, interfaces)};
    snprintf(peer->text, sizeof peer->text, "%s", rank == transport->rank ? "self" : "not reached so far");
    return XEP_OK;
}
