/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The whole library on several ranks of one process, for fuzz targets: each rank is a fiber, the bootstrap and the
 * transport are memory of this process, and time passes only where somebody waits. So a deadline costs microseconds,
 * and everything follows from the seed. Ranks of a node map one another; to others puts travel as messages that arrive
 * later.
 */
#ifndef FUZZ_WORLD_H
#define FUZZ_WORLD_H

#include <xep/xep.h>

enum { FUZZ_MOST_RANKS = 4 };

typedef struct fuzz_world fuzz_world_t;

typedef struct fuzz_options {
    uint32_t nranks;
    uint32_t joiners; /* processes besides, which may join: numbers nranks and on; all together FUZZ_MOST_RANKS */
    uint32_t node[FUZZ_MOST_RANKS]; /* of each rank */
    uint64_t seed;
    int32_t timeout_ms; /* of the group */
    /** What a rank is told of another in exchange "number" of the bootstrap; may be changed. NULL: as it is. */
    void (*tell)(void *arg, uint32_t number, uint32_t to, uint32_t from, void *data, size_t bytes);
    /** A rank's program; it gets no group where none could be made: then status says why. A joiner gets none. */
    void (*run)(void *arg, uint32_t rank, xep_group_t *group, xep_status_t status);
    void *arg; /* of both */
} fuzz_options_t;

/** Runs all ranks, from the making of their groups, until each has returned. A rank destroys its group itself. */
void fuzz_world_run(const fuzz_options_t *options);

/**
 * Of the rank that calls it, between its calls of the library: it is as one that is stopped, or dead, and takes no
 * messages; or it goes on. It is the caller that does nothing meanwhile.
 */
void fuzz_world_stop(int stopped, int dead);

/** Inside of a rank: lets others go on; so much time has passed then, at least. */
void fuzz_turn(uint64_t ns);

#endif
