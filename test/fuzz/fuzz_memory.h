/* SPDX-License-Identifier: BSD-3-Clause */

/** The transport of a fuzz world: heaps are memory of this process, exactly as long as was asked for. */
#ifndef FUZZ_MEMORY_H
#define FUZZ_MEMORY_H

#include "sim_dice.h"
#include "transport.h"

typedef struct fuzz_memory fuzz_memory_t;

/** Joiners to a group that grows count as ranks. */
fuzz_memory_t *fuzz_memory_make(uint32_t nranks, const uint32_t *node, sim_dice_t *dice);

/** From now on a rank takes no messages, and, if it is dead, is said to be gone; or it is as before. */
void fuzz_memory_stop(fuzz_memory_t *memory, uint32_t rank, int stopped, int dead);

/** Frees all heaps, and messages that nobody waits for. */
void fuzz_memory_free(fuzz_memory_t *memory);

/** Of a rank, for one more group of it; its close() ends it. */
xep_transport_t *fuzz_memory_transport(fuzz_memory_t *memory, uint32_t rank);

#endif
