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

/* ---- ucp_transport_library.c ---- */

/* The libucp that this process runs with, which may be another version than the headers'. */

/** "1.13.1"; static storage. */
const char *xep_ucp_version(void);

/** major * 100 + minor */
unsigned xep_ucp_version_number(void);
enum { XEP_UCP_SECOND_PROTOCOLS = 116 }; /* libucp from which its second generation of protocols is the default */

/** The file it was loaded from; "" when the loader cannot tell. Valid as long as the process. */
const char *xep_ucp_path(void);

/* ---- ucp_transport_unranked.c ---- */

/** A transport without ranks: xep_transport_ops_t.meet, which gives the transport operations of its own. */
xep_status_t xep_ucp_meet(xep_transport_t *transport, const xep_whereabouts_t *where, uint32_t most);

#endif
