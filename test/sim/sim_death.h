/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A rank that dies, or is stopped and goes on later, at one point of what it does. Points are the places where others
 * get a turn in the middle of its own, each of its stores into a heap, where this machine lets us see them
 * (sim_stores.c), and the begin of a turn after any of these: more can nobody see of when a rank died.
 */
#ifndef SIM_DEATH_H
#define SIM_DEATH_H

#include <setjmp.h>

#include "sim_world.h"

#define SIM_NEVER UINT64_MAX

enum { SIM_FOR_EVER = 100000 /* turns: others that go on without it finish in far less */ };

/**
 * What a rank passed in a run in which nobody died, part by part of its turns. To see stores costs two faults for each;
 * a run with the same seed is the same until somebody dies, and needs to see those of one part alone.
 */
typedef struct sim_parts {
    struct {
        uint64_t points; /* passed at its end */
        uint64_t now;    /* the clock, then */
    } * ends;
    uint64_t count, room;
} sim_parts_t;

struct sim_death {
    struct sim_death *next; /* another rank's, or NULL */
    uint32_t rank;
    sim_parts_t *parts; /* filled where it lives, used where it dies; NULL: all stores are looked at */
    uint64_t part;      /* the one that is next, or on its way */
    int is_inside;      /* of one */
    int is_skipped;     /* whose stores nobody looks at */
    uint64_t at;        /* number of the point; SIM_NEVER: it lives, and its points are counted */
    uint64_t delay;     /* turns of the others until it goes on, or they have finished; 0: it is dead */
    int is_given_up;    /* the others leave it out although it is only stopped */
    uint64_t points;    /* passed so far */
    uint64_t seen;      /* of them, when its last turn began */
    int is_over;        /* it is dead, or was stopped */
    uint64_t since;     /* the clock, then */
    jmp_buf way_out;
};

/** The death of a rank; NULL: it lives to the end. */
sim_death_t *sim_death_of(const sim_world_t *world, uint32_t rank);

/** A turn of any rank, which may be its last. */
void sim_death_step(sim_rank_t *rank);

/** A point of what rank does. Does not return if it dies here. */
void sim_death_pass(sim_rank_t *rank);

/**
 * Around code of the rank's mode, a part of its turn: its stores are points. What enter returns is for leave, which
 * returns whether they were; watched 0: does nothing.
 */
int sim_death_enter(sim_rank_t *rank);
int sim_death_leave(sim_rank_t *rank, int watched);

/* ---- sim_stores.c: every single store of this thread into the heaps of a world, as it is about to happen ---- */

typedef void (*sim_store_fn)(void *arg, const char *at);

/**
 * Until unwatch, which returns whether there was a watch, before is called before each store into a heap. It ends the
 * watch if it does not return, or lets others store, and begins it again behind these. Returns whether this machine can
 * do it. Not nested.
 */
int sim_stores_watch(sim_world_t *world, sim_store_fn before, void *arg);
int sim_stores_unwatch(void);

/* ---- sim_blame.c: whose fault it is that ranks wait, where one has died and is not left out ---- */

/** Every rank that has not finished waits for the dead one, or for a rank that waits for it, and its mode says so. */
void sim_blame_check(sim_world_t *world);

/**
 * By nodes: whoever waits for the dead one, and does not hear it itself, says through whom. Returns how many sentences
 * said so.
 */
uint64_t sim_blame_check_names(sim_world_t *world);

#endif
