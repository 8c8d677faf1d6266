/* SPDX-License-Identifier: BSD-3-Clause */

/** The transport over UCX: one UCP worker for a group, a symmetric heap for each of its buffers. */
#ifndef XEP_UCP_TRANSPORT_H
#define XEP_UCP_TRANSPORT_H

#include "config.h"
#include "transport.h"

/**
 * Local. config is read here only. heap_open is legal after connect. The wires'
 * flush and progress return XEP_ERR_PEER once a peer that UCX moves bytes for is known to be gone.
 */
xep_status_t xep_ucp_transport_open(const xep_config_t *config, xep_transport_t **transport_p);

#endif
