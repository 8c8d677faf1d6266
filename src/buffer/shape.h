/* SPDX-License-Identifier: BSD-3-Clause */

/** The shape that a mode gets, and where the regions that it asks for lie in the heap. */
#ifndef XEP_BUFFER_SHAPE_H
#define XEP_BUFFER_SHAPE_H

#include <xep/plugin.h>

#include "group.h"

/**
 * From checked params; sends: [R], copied; NULL: all do. group NULL: for rank 0 of one that does not exist, spread
 * evenly over so many nodes. XEP_ERR_NO_MEMORY; free what it made with close.
 */
xep_status_t xep_shape_open(const xep_buffer_params_t *params, const xep_group_t *group, uint32_t nranks,
                            uint32_t nodes, const uint32_t *sends, xep_shape_t *shape);
void xep_shape_close(xep_shape_t *shape);

enum { XEP_MEMORIES = 2 }; /* kinds of memory */

/**
 * Asks the mode how large its regions are and puts those of a kind of memory one behind the other: offsets, and where
 * the last of each kind ends. They may be in host memory, and in memory.
 */
xep_status_t xep_shape_measure(const xep_plugin_t *plugin, const xep_shape_t *shape, xep_memory_t memory,
                               xep_region_t regions[XEP_REGIONS], uint64_t end[XEP_MEMORIES], uint64_t *recv_rows_p);

#endif
