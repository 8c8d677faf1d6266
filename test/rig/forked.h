/* SPDX-License-Identifier: BSD-3-Clause */

/** Ranks without a launcher: forked processes that share a page, with what a test of the transport needs of a group. */
#ifndef XEP_TEST_FORKED_H
#define XEP_TEST_FORKED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport.h"

enum { FORKED_MAX = 8, FORKED_SECONDS = 100 };

typedef struct forked forked_t; /* what the ranks share */

typedef struct forked_rank {
    forked_t *shared;
    uint32_t rank, nranks;
    uint32_t lane; /* of the barriers and exchanges of one thread: 0 .. 3 */
    xep_transport_t *transport;
} forked_rank_t;

/** Forks nranks processes that run fn, then exit. Returns the number that failed; ends all when time is up. */
int forked_run(uint32_t nranks, void (*fn)(forked_rank_t *self));

/** Ends the process when another rank has failed. */
void forked_check(const forked_rank_t *self);

/** Waits for all ranks; ends the process when one of them is gone. Moves the transport meanwhile when there is one. */
void forked_barrier(forked_rank_t *self);

/** The same without progress of the transport. */
void forked_barrier_still(forked_rank_t *self);

/** A number for the other ranks; a barrier makes it known. */
void forked_say(forked_rank_t *self, uint64_t number);
uint64_t forked_hear(const forked_rank_t *self);

/** How many ranks have come here by now, this one too; once for each rank. */
uint32_t forked_come(forked_rank_t *self);

/** Opens a transport by the environment, up to its address. */
void forked_start(forked_rank_t *self);

/** The same, and connects it. */
void forked_connect(forked_rank_t *self);

/** Exchanges keys of a heap that every rank has opened. */
void forked_heap_connect(forked_rank_t *self, xep_heap_wire_t *heap);

/** forked_rank_t's heap: opened and connected. */
xep_heap_wire_t *forked_heap(forked_rank_t *self, uint64_t bytes);

/** Ends the process with the sentence unless condition holds. */
#define REQUIRE(_condition, ...) forked_require((_condition) != 0, __FILE__, __LINE__, #_condition, __VA_ARGS__)
void forked_require(int holds, const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
