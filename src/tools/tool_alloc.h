/* SPDX-License-Identifier: BSD-3-Clause */

/** Small allocations of tools and tests: they succeed or the process ends. */
#ifndef TOOL_ALLOC_H
#define TOOL_ALLOC_H

#include <stdio.h>
#include <stdlib.h>

/** Zeroed memory, free() frees it. Prints a line and exits with 1 when there is none. */
static inline void *tool_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);

    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

#endif
