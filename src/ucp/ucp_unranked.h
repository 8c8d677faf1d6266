/* SPDX-License-Identifier: BSD-3-Clause */

/** A transport without ranks: xep_transport_ops_t.meet, which gives the transport operations of its own. */
#ifndef XEP_UCP_UNRANKED_H
#define XEP_UCP_UNRANKED_H

#include "ucp_objects.h"

xep_status_t xep_ucp_meet(xep_transport_t *transport, const xep_whereabouts_t *where, uint32_t most);

#endif
