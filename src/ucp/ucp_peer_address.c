/* SPDX-License-Identifier: BSD-3-Clause */

/* Peers that read the address may run other versions: the head is checked before UCX gets the rest. */
#include "ucp_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "ucp_devices.h"

enum { ADDRESS_MAGIC = 0x41504558, ADDRESS_VERSION = 5 };

/** What a rank tells all others. It writes it, they read it; the worker's address follows. */
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

/* Like a key it comes from another process, which may run anything. */
static xep_status_t check(const xep_ucp_transport_t *transport, uint32_t rank, const rank_address_t *head, size_t bytes)
{
    if (bytes < sizeof *head || head->magic != ADDRESS_MAGIC || head->worker_bytes == 0 ||
        head->worker_bytes != bytes - sizeof *head)
        return xep_fail(XEP_ERR_PROTOCOL, "invalid address from rank %u: %zu bytes (more than a header of %zu)", rank,
                        bytes, sizeof *head);
    if (head->version != ADDRESS_VERSION)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u and this rank disagree on the version of the transport: %u, %u",
                        rank, head->version, ADDRESS_VERSION);
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
