/* SPDX-License-Identifier: BSD-3-Clause */

/** What the ranks of survivors.c say of each operation, in memory that outlives each of them: do they agree? */
#ifndef TEST_SURVIVORS_SAID_H
#define TEST_SURVIVORS_SAID_H

#include <stdatomic.h>

#include <xep/xep.h>

enum { SAID_RANKS = 8 /* most */, SAID_ROUNDS = 60, SAID_OPERATIONS = 3 /* of each kind, in a round */ };

typedef struct said {
    atomic_int pid[SAID_RANKS], done[SAID_RANKS];
    /* the set of ranks that an operation was without, plus 1; 0: nothing */
    uint32_t dispatch[SAID_ROUNDS * SAID_OPERATIONS][SAID_RANKS], combine[SAID_ROUNDS * SAID_OPERATIONS][SAID_RANKS];
} said_t;

/** One for all ranks. */
extern said_t *said;

/** Makes it, with the pid of this rank. Collective. */
void said_open(xep_group_t *group);

/**
 * Where all map one another, survivors have said the same of each operation. Over the wire they may have heard
 * different things of the rank that went, in the operations that were in flight. out: the ranks that are no survivors.
 */
void said_compare(xep_group_t *group, uint32_t out);

#endif
