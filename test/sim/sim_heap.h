/* SPDX-License-Identifier: BSD-3-Clause */

/** What the core does for a mode before it opens: the arrays of a shape, the place of each region, and memory. */
#ifndef SIM_HEAP_H
#define SIM_HEAP_H

#include <stdint.h>

#include <xep/plugin.h>

/* ---- memory of a rank that notices who leaves it ---- */

/**
 * Zeroed, on a page. With a fence, what is a page or more beside it ends the process, and with a sanitizer every byte
 * beside it does. Aborts where there is no memory.
 */
void *sim_heap_make(uint64_t bytes, int fence);

/** Whether nothing was written in the page behind it. */
int sim_heap_free(void *heap, uint64_t bytes, int fence);

/** Bytes of the heap's pages that are its alone. */
uint64_t sim_heap_pages(uint64_t bytes, int fence);

/* ---- sim_shape.c ---- */

/** Makes shape that of a rank: experts in blocks, nodes as node [R] says, NULL: all on one. */
void sim_shape_fill(xep_shape_t *shape, uint32_t rank, const uint32_t *node);
void sim_shape_free(xep_shape_t *shape);

/** Asks the mode, of a shape without arrays, for regions, bytes of the heap and rows of a slot; as its status says. */
xep_status_t sim_shape_measure(const xep_plugin_t *plugin, const xep_shape_t *shape, const uint32_t *node,
                               xep_region_t regions[XEP_REGIONS], uint64_t *bytes_p, uint64_t *rows_p);

#endif
