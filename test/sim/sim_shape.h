/* SPDX-License-Identifier: BSD-3-Clause */

/** What the core does for a mode before it opens: the arrays of a shape, the place of each region in the heap. */
#ifndef SIM_SHAPE_H
#define SIM_SHAPE_H

#include <xep/plugin.h>

/** Makes shape that of a rank: experts in blocks, nodes as node [R] says, NULL: all on one. */
void sim_shape_fill(xep_shape_t *shape, uint32_t rank, const uint32_t *node);
void sim_shape_free(xep_shape_t *shape);

/** Asks the mode, of a shape without arrays, for regions, bytes of the heap and rows of a slot; as its status says. */
xep_status_t sim_shape_measure(const xep_plugin_t *plugin, const xep_shape_t *shape, const uint32_t *node,
                               xep_region_t regions[XEP_REGIONS], uint64_t *bytes_p, uint64_t *rows_p);

#endif
