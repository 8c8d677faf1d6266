/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows of 14 KB between two ranks, both ways at once, GB/s of 128 rows and of 4096 (wire_rate.mp, medians, 2 cores):
 *
 *                                  rma           pack          am
 *   1.13  TCP                       0.9   0.6     0.8   0.5     3.5   2.1
 *   1.13  shared memory, with CMA    41    11      26   8.4     3.6   3.1
 *   1.22  TCP                       1.1   1.1     2.6   2.3     2.1   1.8
 *   1.22  shared memory, with CMA   5.7   3.5      10   4.7     4.5   3.6
 *   1.22  shared memory without      43    13      28   9.3
 *
 * On shared memory a put is a copy by the sender, but from 1.16 on a system call where there is CMA: then fewer and
 * larger ones pay. 512 rows of 512 bytes, no call each, are 12 GB/s by rma and 7.3 by pack there. RDMA could not be
 * measured.
 */

#include "ucp_strategy.h"

#include "config.h"
#include "ucp_gather.h"
#include "ucp_library.h"
#include "ucp_peer.h"
#include "ucp_rma.h"

enum { PACK_BYTES = 512 * 1024 };

const xep_ucp_strategy_t *xep_ucp_strategy(xep_ucp_peer_t *peer)
{
    switch (peer->transport->put) {
    case XEP_PUT_RMA: return &xep_ucp_rma;
    case XEP_PUT_PACK: return &xep_ucp_pack;
    case XEP_PUT_AM: return &xep_ucp_am;
    default: break;
    }
    if (peer->transport->version < XEP_UCP_SECOND_PROTOCOLS)
        return xep_ucp_peer_is_tcp(peer) ? &xep_ucp_am : &xep_ucp_rma;
    return xep_ucp_peer_is_tcp(peer) || xep_ucp_peer_has_cma(peer) ? &xep_ucp_pack : &xep_ucp_rma;
}

size_t xep_ucp_strategy_chunk(const xep_ucp_transport_t *transport, const xep_ucp_strategy_t *strategy)
{
    uint64_t share = transport->inflight / 4; /* so that several are on their way at once */
    if (strategy == &xep_ucp_rma) return 0;
    if (strategy == &xep_ucp_am || share < XEP_UCP_MESSAGE_BYTES) return XEP_UCP_MESSAGE_BYTES;
    return share < PACK_BYTES ? (size_t)share : PACK_BYTES;
}
