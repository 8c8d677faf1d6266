/* SPDX-License-Identifier: BSD-3-Clause */

/** What a process tells others of its transport: the worker's address, and the probe's key where there is one. */
#ifndef XEP_UCP_ADDRESS_H
#define XEP_UCP_ADDRESS_H

#include "ucp_objects.h"

/** Of this process, into transport->address. */
xep_status_t xep_ucp_address_make(xep_ucp_transport_t *transport);

/** Checks another one's, and makes a peer of it, which is not connected yet; copy is kept, and the key a part of it. */
xep_status_t xep_ucp_address_take(xep_ucp_transport_t *transport, uint32_t rank, const uint8_t *copy, size_t bytes,
                                  uint8_t flags, const void **key_p, size_t *key_bytes_p);

#endif
