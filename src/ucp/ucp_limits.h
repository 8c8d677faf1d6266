/* SPDX-License-Identifier: BSD-3-Clause */

/** Limits of this process below which UCX does not fail, but aborts or waits for ever. */
#ifndef XEP_UCP_LIMITS_H
#define XEP_UCP_LIMITS_H

#include <ucp/api/ucp.h>

#include "transport.h"
#include "ucp_shared.h"

/** Raises the soft limit of open files to what UCX needs; an error where the hard one is too low. Before ucp_init. */
xep_status_t xep_ucp_limits_files(const xep_whereabouts_t *where, const xep_ucp_shared_t *shared);

/** Likewise of locked memory, where the context has RDMA devices. Before a worker is made. */
xep_status_t xep_ucp_limits_memory(ucp_context_h context);

#endif
