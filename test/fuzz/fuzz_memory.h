/* SPDX-License-Identifier: BSD-3-Clause */

/** The transport of a fuzz world: heaps are memory of this process, exactly as long as was asked for. */
#ifndef FUZZ_MEMORY_H
#define FUZZ_MEMORY_H

#include "transport.h"

typedef struct fuzz_memory fuzz_memory_t;

fuzz_memory_t *fuzz_memory_make(uint32_t nranks, const uint32_t *node);

/** Frees all heaps, and messages that nobody waits for. */
void fuzz_memory_free(fuzz_memory_t *memory);

/** Of a rank; its close() frees it. */
xep_transport_t *fuzz_memory_transport(fuzz_memory_t *memory, uint32_t rank);

#endif
