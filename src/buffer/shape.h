/* SPDX-License-Identifier: BSD-3-Clause */

/** The shape that a mode gets. */
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

#endif
