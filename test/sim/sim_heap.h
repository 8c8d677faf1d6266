/* SPDX-License-Identifier: BSD-3-Clause */

/** Memory of a rank that notices who leaves it. */
#ifndef SIM_HEAP_H
#define SIM_HEAP_H

#include <stdint.h>

/**
 * Zeroed, on a page. With a fence, what is a page or more beside it ends the process, and with a sanitizer every byte
 * beside it does. Aborts where there is no memory.
 */
void *sim_heap_make(uint64_t bytes, int fence);

/** Whether nothing was written in the page behind it. */
int sim_heap_free(void *heap, uint64_t bytes, int fence);

/** Bytes of the heap's pages that are its alone. */
uint64_t sim_heap_pages(uint64_t bytes, int fence);

#endif
