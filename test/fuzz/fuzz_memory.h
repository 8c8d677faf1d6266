/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The transport of a fuzz world: heaps are memory of this process, exactly as long as was asked for, on the wires of
 * the simulator.
 */
#ifndef FUZZ_MEMORY_H
#define FUZZ_MEMORY_H

#include "fuzz_world.h"
#include "sim_world.h"

typedef struct fuzz_key {
    uint32_t magic, heap; /* number of it in the world */
    uint64_t bytes;
} fuzz_key_t;

typedef struct fuzz_heap {
    sim_wire_t wire; /* first: the core hands it back */
    struct fuzz_heap *next;
    struct fuzz_transport *transport; /* NULL: closed */
    struct fuzz_memory *memory;
    uint32_t place; /* of its rank in the world */
    fuzz_key_t key;
} fuzz_heap_t;

typedef struct fuzz_memory {
    uint32_t nranks, nheaps, ntransports, node[FUZZ_MOST_RANKS];
    uint8_t stopped[FUZZ_MOST_RANKS], dead[FUZZ_MOST_RANKS];
    sim_options_t options; /* what its wires do */
    sim_net_t net;
    fuzz_heap_t *heaps;
    struct fuzz_transport *transports;
} fuzz_memory_t;

typedef struct fuzz_transport {
    xep_transport_t super;
    struct fuzz_transport *next;
    fuzz_memory_t *memory;
    uint32_t number, place; /* of all transports; of the rank in the world */
    uint32_t rank, nranks;  /* in the group; nranks 0: not connected */
    int admits;             /* without a group: whoever has its address may send */
    struct fuzz_transport *of[FUZZ_MOST_RANKS];
    struct fuzz_msg *msgs, **end;
    int is_closed;
    uint8_t may_map[FUZZ_MOST_RANKS];
    uint8_t address[FUZZ_MOST_RANKS + 8]; /* the length differs from rank to rank */
} fuzz_transport_t;

/** Joiners to a group that grows count as ranks. */
fuzz_memory_t *fuzz_memory_make(uint32_t nranks, const uint32_t *node, sim_dice_t *dice);

/** From now on a rank takes no messages, and, if it is dead, is said to be gone; or it is as before. */
void fuzz_memory_stop(fuzz_memory_t *memory, uint32_t rank, int stopped, int dead);

/** Frees all heaps, and messages that nobody waits for. */
void fuzz_memory_free(fuzz_memory_t *memory);

/** Of a rank, for one more group of it; its close() ends it. */
xep_transport_t *fuzz_memory_transport(fuzz_memory_t *memory, uint32_t rank);

/* ---- fuzz_wire.c: heaps ---- */

void fuzz_wire_begin(fuzz_memory_t *memory, sim_dice_t *dice);
xep_status_t fuzz_wire_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p);
xep_status_t fuzz_wire_connect(xep_heap_wire_t *super, const void *const *keys, const size_t *bytes);
void fuzz_wire_close(xep_heap_wire_t *super);
void fuzz_wire_fence_off(xep_heap_wire_t *super, uint32_t rank);
int fuzz_wire_is_behind(xep_heap_wire_t *super, uint32_t rank);

/** Some messages, or none, go some of their way: those that have left their source, and those of this heap. */
void fuzz_wire_move(fuzz_heap_t *heap);

/** All must be closed. */
void fuzz_wire_free_all(fuzz_memory_t *memory);

#endif
