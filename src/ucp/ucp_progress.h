/* SPDX-License-Identifier: BSD-3-Clause */

/** A round of the worker. */
#ifndef XEP_UCP_PROGRESS_H
#define XEP_UCP_PROGRESS_H

#include "ucp_objects.h"

/** Progress of everything; then what became possible by it. */
void xep_ucp_advance(xep_ucp_transport_t *transport);

#endif
