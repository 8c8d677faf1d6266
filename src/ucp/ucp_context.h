/* SPDX-License-Identifier: BSD-3-Clause */

/** The UCP context of a group and its worker. */
#ifndef XEP_UCP_CONTEXT_H
#define XEP_UCP_CONTEXT_H

#include <ucp/api/ucp.h>

#include <xep/xep.h>

#include "ucp_shared.h"

/** Without the lock. Raises the soft limits of files and locked memory to what UCX needs, or says what is missing. */
xep_status_t xep_ucp_context_open(const xep_ucp_shared_t *shared, const xep_whereabouts_t *where,
                                  ucp_context_h *context_p, ucp_worker_h *worker_p);

#endif
