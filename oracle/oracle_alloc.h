/* SPDX-License-Identifier: BSD-3-Clause */

/** Small allocations of tools and tests: they succeed or the process ends. */
#ifndef ORACLE_ALLOC_H
#define ORACLE_ALLOC_H

#include <stdio.h>
#include <stdlib.h>

/** Prints a line and exits with 1 when there is none. */
static inline void *oracle_must(void *memory, size_t bytes)
{
    if (memory != NULL) return memory;
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
}

/** Zeroed memory, free() frees it. */
static inline void *oracle_alloc(size_t bytes)
{
    return oracle_must(calloc(1, bytes != 0 ? bytes : 1), bytes);
}

/** The same memory with another size, what is new not zeroed. */
static inline void *oracle_realloc(void *memory, size_t bytes)
{
    return oracle_must(realloc(memory, bytes), bytes);
}

#endif
