/* SPDX-License-Identifier: BSD-3-Clause */

/** A rank's shared memory: where its pages lie and when they appear. */
#ifndef XEP_CORE_HEAP_H
#define XEP_CORE_HEAP_H

#include "config.h"
#include "transport.h"

/** Opens a heap whose pages will be on this rank's NUMA node, huge where the system has such pages. */
xep_status_t xep_heap_open(const xep_config_t *config, xep_transport_t *transport, uint64_t bytes,
                           xep_heap_wire_t **heap_p);

/** Makes pages present, without changing their contents; at most *budget_p bytes, which it uses up. */
void xep_heap_prefault(void *base, uint64_t bytes, uint64_t *budget_p);

#endif
