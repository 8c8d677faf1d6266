/* SPDX-License-Identifier: BSD-3-Clause */

/** Which devices UCX opens: its own choice, without those that lead to no rank. */
#ifndef XEP_UCP_DEVICES_H
#define XEP_UCP_DEVICES_H

#include <stdbool.h>
#include <stddef.h>

#include "transport.h"
#include "ucp_shared.h"

enum { XEP_UCP_DEVICES_BYTES = 2048, XEP_UCP_INTERFACES_BYTES = 160 };

/** Whether UCX will open TCP: it warns of settings for transports that it does not open. */
bool xep_ucp_devices_have_tcp(void);

/** Whether UCX will open an RDMA device. */
bool xep_ucp_devices_have_rdma(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared);

/** What to set UCX_NET_DEVICES to; "": nothing. Says what is left out, and why. */
void xep_ucp_devices_choose(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared,
                            char list[XEP_UCP_DEVICES_BYTES]);

/** What to set it to for rendezvous joiners, which always goes over TCP. */
void xep_ucp_devices_choose_to_meet(const xep_whereabouts_t *where, char list[XEP_UCP_DEVICES_BYTES]);

/** How many network interfaces UCX may open. */
uint32_t xep_ucp_devices_count(const xep_whereabouts_t *where);

/** The interfaces of this process: "eth0 10.77.0.1, docker0 172.17.0.1" */
void xep_ucp_devices_describe(char text[XEP_UCP_INTERFACES_BYTES]);

#endif
