/* SPDX-License-Identifier: BSD-3-Clause */

/* Which strategy a peer that is not mapped gets. */

#include "ucp_internal.h"

enum { PACK_BYTES = 512 * 1024 };

const xep_ucp_strategy_t *xep_ucp_strategy(xep_ucp_peer_t *peer)
{
    switch (peer->transport->put) {
    case XEP_PUT_RMA: return &xep_ucp_rma;
    case XEP_PUT_PACK: return &xep_ucp_pack;
    case XEP_PUT_AM: return &xep_ucp_am;
    default: break;
    }
    if (!xep_ucp_peer_is_tcp(peer)) return &xep_ucp_rma;
    return peer->transport->version >= XEP_UCP_FAST_PUTS ? &xep_ucp_pack : &xep_ucp_am;
}

size_t xep_ucp_strategy_chunk(const xep_ucp_transport_t *transport, const xep_ucp_strategy_t *strategy)
{
    uint64_t share = transport->inflight / 4; /* so that several are on their way at once */
    if (strategy == &xep_ucp_rma) return 0;
    if (strategy == &xep_ucp_am || share < XEP_UCP_MESSAGE_BYTES) return XEP_UCP_MESSAGE_BYTES;
    return share < PACK_BYTES ? (size_t)share : PACK_BYTES;
}
