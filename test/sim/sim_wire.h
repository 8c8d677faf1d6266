/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Heaps of ranks in one process and the wires between them, for modes alone (sim_world.h) and for the whole library
 * (test/fuzz/fuzz_wire.h). They do whatever wire.h allows: a message is taken from its source, and delivered, when the
 * scheduler says so, in any order but behind what a signal must follow. A heap that spares ranks
 * (src/group/transport.h) copies sources at once; who is away takes nothing, and a rank is refused nothing because of
 * that.
 */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include "sim_dice.h"
#include "transport.h"

enum { SIM_MAX_RANKS = 70, SIM_SENTENCE_BYTES = 256 };

typedef struct sim_wire sim_wire_t;
typedef struct sim_message sim_message_t;
typedef struct sim_options sim_options_t; /* sim_world.h */

typedef enum { SIM_PRESENT, SIM_STOPPED, SIM_DEAD } sim_presence_t;

/** What the world around wires does. */
typedef struct sim_net_ops {
    /** Something that a wire was asked for is wrong. May return. */
    void (*fail)(sim_wire_t *self, const char *text);

    /** In the middle of a call: others may go on. */
    void (*pause)(sim_wire_t *self);

    /** Progress of this wire. */
    void (*progress)(sim_wire_t *self);

    /** Whether the rank is there: a process that makes no progress takes nothing. */
    sim_presence_t (*presence)(const sim_wire_t *self);

    /** A control message has come: sim_wire_ctl(). */
    void (*on_ctl)(sim_wire_t *self, uint32_t from, const void *data, size_t bytes);
} sim_net_ops_t;

/** The messages of some wires: in any order with one another. */
typedef struct sim_net {
    const sim_net_ops_t *ops;
    const sim_options_t *options;
    sim_dice_t *dice;
    sim_message_t *messages; /* oldest first */
    uint64_t pending;        /* of them */
} sim_net_t;

/** The heap of a rank, and what others reach from there. */
struct sim_wire {
    xep_heap_wire_t super; /* first: the mode, and the core, hand it back */
    sim_net_t *net;
    sim_dice_t *dice;
    uint32_t rank, nranks;
    sim_wire_t *of[SIM_MAX_RANKS]; /* the wires of all ranks */
    uint8_t is_mapped[SIM_MAX_RANKS];
    uint64_t calls;        /* of the mode, all but map */
    uint64_t posted;       /* messages to ranks that are not mapped */
    uint64_t posted_bytes; /* of these */
    uint64_t held_up;      /* calls of flush_to that were told to wait */
    /* ranks of which nothing is stored here any more, and to which nothing goes */
    uint8_t fenced_off[SIM_MAX_RANKS];
    char sentence[SIM_SENTENCE_BYTES]; /* why it failed first; "": it has not */
    char told[SIM_SENTENCE_BYTES];     /* the thread's last error, which the wire and others overwrite */
};

extern const xep_wire_ops_t sim_wire_ops;

/** Moves one message, chosen at random, one step of its way. */
void sim_wire_step(sim_net_t *net, sim_dice_t *dice);

/** Likewise, but what no network has yet only if it is this rank's. */
void sim_wire_move(const sim_wire_t *self);

/** Takes the oldest message of a rank that is not taken from its source yet; how many of them are left. */
uint64_t sim_wire_take(sim_wire_t *self);

/** Messages of a rank that are under way to another one; to NULL: to any. */
uint64_t sim_wire_count(const sim_wire_t *self, const sim_wire_t *to);

/** All messages of a rank arrive. */
void sim_wire_finish(sim_wire_t *self);

/** A rank has died: of what it has sent to each of the others, a part from the begin on is still to come. */
void sim_wire_bury(sim_wire_t *self);

/** As heap_fence_off and heap_is_behind of a transport: another rank is out for this one; has not taken all it sent. */
void sim_wire_fence_off(sim_wire_t *self, uint32_t rank);
int sim_wire_is_behind(const sim_wire_t *self, uint32_t rank);

/** Control messages to another rank, in no order with anything else. */
void sim_wire_ctl(sim_wire_t *self, uint32_t rank, const void *data, size_t bytes);

/** Forgets all messages. */
void sim_wire_clear(sim_net_t *net);

#endif
