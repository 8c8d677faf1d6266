/* SPDX-License-Identifier: BSD-3-Clause */

/** The wire of a heap: mapped peers by loads and stores, the others by the link's strategy. */
#ifndef XEP_UCP_WIRE_H
#define XEP_UCP_WIRE_H

#include "ucp_objects.h"

/** Its functions take the lock where they need it. */
extern const xep_wire_ops_t xep_ucp_wire_ops;

#endif
