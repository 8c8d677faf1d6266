/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows of 14 KB between two ranks, both ways at once, GB/s of 128 rows and of 4096 (wire_rate.mp, medians, 2 cores of
 * an EPYC with AVX-512):
 *
 *                                  rma            am
 *   1.13  TCP                       1.1   0.8      11   8.9
 *   1.13  shared memory              88    19      23    15
 *   1.22  TCP                       2.4   2.1      11   8.9
 *   1.22  shared memory, with CMA    89    27      14    11
 *   1.22  the same, puts not cut     10   6.8
 *
 * On shared memory a put is a copy by the sender; but from 1.16 on, with CMA, long puts are system calls: so they are
 * cut. RDMA could not be measured.
 */

#include "ucp_protocol.h"

#include "config.h"
#include "ucp_peer.h"
#include "ucp_transport.h"

enum { LINE_BYTES = 64 };

/*
 * Whether the sender copies puts, or hardware moves them. From 1.16 on UCX may use CMA beside shared memory for long
 * puts, or TCP, whose flush waits for the peer to be in a call of xep; then puts are cut, or all goes in messages.
 */
static bool puts_copy(xep_ucp_peer_t *peer)
{
    if (peer->transport->version < XEP_UCP_SECOND_PROTOCOLS) return true;
    return xep_ucp_protocol_cut(peer) != SIZE_MAX || !(xep_ucp_peer_has(peer, "cma") || xep_ucp_peer_has(peer, "tcp"));
}

const xep_ucp_protocol_t *xep_ucp_protocol(xep_ucp_peer_t *peer)
{
    switch (peer->transport->put) {
    case XEP_PUT_RMA: return &xep_ucp_rma;
    case XEP_PUT_AM: return &xep_ucp_am;
    default: break;
    }
    return puts_copy(peer) && !xep_ucp_peer_is_tcp(peer) ? &xep_ucp_rma : &xep_ucp_am;
}

size_t xep_ucp_protocol_cut(xep_ucp_peer_t *peer)
{
    size_t least = peer->transport->copied_below;
    const bool shares = xep_ucp_peer_has(peer, "sysv") || xep_ucp_peer_has(peer, "posix");
    return least != 0 && shares ? least - LINE_BYTES : SIZE_MAX;
}
