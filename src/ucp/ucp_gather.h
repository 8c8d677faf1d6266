/* SPDX-License-Identifier: BSD-3-Clause */

/** The strategies "am" and "pack": puts to one rank are copied together and sent as one. */
#ifndef XEP_UCP_GATHER_H
#define XEP_UCP_GATHER_H

#include "ucp_objects.h"

extern const xep_ucp_strategy_t xep_ucp_pack, xep_ucp_am;

#endif
