/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A world of N ranks in one process over a wire that does whatever wire.h allows: puts arrive late and in any order,
 * signals no earlier than they may, anything may be refused for a while, ranks stall. Everything follows from a seed,
 * so what failed once fails again. Any mode can live in it. Ranks take turns (sim_world_run) or are threads
 * (sim_threads.c).
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

#include "sim_wire.h"

/** Fields of a xep_shape_t whose elements are of two bytes. */
#define SIM_SHAPE(_experts, _topk, _hidden, _tokens)                                                   \
    .experts = (_experts), .topk = (_topk), .hidden = (_hidden), .tokens = (_tokens), .elem_bytes = 2, \
    .combine_elem_bytes = 2

typedef struct sim_world sim_world_t;
typedef struct sim_death sim_death_t; /* sim_death.h */

enum { SIM_REASONS = 16 };

/** A sentence about an operation, or a call (op is NULL). */
typedef struct sim_reason {
    const xep_op_t *op;
    char text[SIM_SENTENCE_BYTES];
} sim_reason_t;

/** A rank: what its mode sees, and the driver's state. */
typedef struct sim_rank {
    xep_env_t env; /* first: the mode hands it back */
    sim_world_t *world;
    uint32_t index;
    sim_dice_t dice; /* its own, so that ranks may be threads */
    xep_shape_t shape;
    sim_wire_t wire;
    void *mode;
    int busy;                          /* its code is on the stack: not to be entered again */
    uint32_t stalled;                  /* turns of the scheduler it sleeps */
    sim_reason_t reasons[SIM_REASONS]; /* of its last errors, in a ring */
    uint32_t nreasons;
    uint32_t refused;              /* operations that the mode did not begin because the wire failed */
    uint8_t out[SIM_MAX_RANKS];    /* ranks that are: none */
    uint32_t ranks[SIM_MAX_RANKS]; /* of everybody */
    xep_ranks_t everybody;
    int dead;     /* it makes no step any more */
    int stopped;  /* nor does it now, but it will */
    int is_out;   /* the others have told it that they go on without it */
    void *member; /* of sim_members.c */
    void *driver;
} sim_rank_t;

/** What goes on around the calls of a mode where the others go on without ranks that die: sim_members.h. */
typedef struct sim_around {
    /** Bytes at the end of each heap that are its own. */
    uint64_t (*bytes)(const xep_shape_t *shape);

    /** Heaps are made, modes are not open yet; modes are closed. */
    void (*open)(sim_world_t *world);
    void (*close)(sim_world_t *world);

    /** In every turn: whether operations may be begun and taken further. */
    int (*stands)(sim_rank_t *rank);

    /** Before the mode begins an operation: whom it is without. Before it is taken further: what the others know. */
    void (*choose)(sim_rank_t *rank, xep_op_t *op);
    xep_status_t (*settle)(sim_rank_t *rank, xep_op_t *op);

    /** The mode has ended it. Returns how it ends. */
    xep_status_t (*end)(sim_rank_t *rank, xep_op_t *op, xep_status_t status);

    /** A control message has come: sim_wire_ctl(). */
    void (*on_ctl)(sim_rank_t *rank, uint32_t from, const void *data, size_t bytes);
} sim_around_t;

/** What kind of world: filled by the test, or by sim_options_random(). */
struct sim_options {
    uint32_t nranks;
    uint32_t node[SIM_MAX_RANKS]; /* of each rank, numbered by first rank: those of one map one another */
    uint32_t threads;             /* of each rank's team, run one after the other, in any order */
    xep_simd_t simd;
    uint64_t stream_bytes;
    uint32_t inflight;      /* messages of a rank before put is refused */
    uint32_t refuse;        /* percent of puts refused at random */
    uint32_t hold;          /* 1: nothing leaves before flush is called */
    uint32_t deliver;       /* percent of scheduler turns that move a message */
    uint32_t corrupt;       /* 1: what peers write is spoiled at random */
    uint64_t corrupt_bytes; /* of the start of each heap */
    uint64_t part_bytes;    /* rows are told of in parts of so many; 0: all at once */
    uint64_t feed_rows;     /* rows go once to each node, with room for so many of an upstream rank; 0: to each rank */
    int flat;               /* they go to each rank all the same; in ll with room for so many of each other one */
    uint32_t masks;         /* 1: ranks may be left out, though none is */
    uint32_t spoiled;       /* 1: the test spoils heaps itself, so that sources of puts may change */
    uint64_t fail_at;       /* call of rank 0's wire that fails; 0: none does */
    int fail_once;          /* and only that one: else the wire is dead from then on */
};

/** One turn of a rank: begin or progress something. */
typedef void (*sim_step_fn)(sim_rank_t *rank);
/** Whether the rank has nothing left to do. */
typedef int (*sim_finished_fn)(const sim_rank_t *rank);

struct sim_world {
    uint64_t seed;
    sim_dice_t dice;
    uint64_t now; /* turns of the scheduler: the clock */
    int threads;  /* ranks are threads: nobody takes turns */
    int still;    /* nobody does, for a while */
    sim_options_t options;
    const xep_plugin_t *plugin;
    sim_rank_t *ranks;
    sim_net_t net;
    sim_step_fn step;
    sim_finished_fn finished;
    const sim_around_t *around;  /* set before it is opened; NULL: an operation is with all ranks */
    sim_death_t *death;          /* likewise; NULL: nobody dies */
    _Atomic uint32_t first_dead; /* the lowest rank that is; UINT32_MAX: none */
    atomic_int failed;
    char failure[1024]; /* the first, once failed */
};

/* ---- chance ---- */

/** A hash of five numbers: data that every rank, and the oracle, can make for itself. */
uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e);

/** The best kernels of this machine. */
xep_simd_t sim_simd_best(void);

/**
 * All but the number of ranks and the kernels. Mapped groups, hosts, nothing mapped, ranks of a node that are no
 * neighbours: all of it occurs.
 */
void sim_options_random(sim_dice_t *dice, sim_options_t *options);

/* ---- a world ---- */

/** Only dice, for choosing options. */
void sim_world_init(sim_world_t *world, uint64_t seed, const xep_plugin_t *plugin);

/** Heaps, wires, modes. shape: of rank 0; ranks and their experts are filled in. 0 on failure. */
int sim_world_open(sim_world_t *world, const sim_options_t *options, const xep_shape_t *shape);
void sim_world_close(sim_world_t *world);

/** Closes and opens all modes on the memory as it is, as a reset does. 0 on failure. */
int sim_world_reopen(sim_world_t *world);

/**
 * Runs all ranks until those that are not stopped have finished, something has failed, or the turns are used up (a
 * failure unless quiet).
 */
void sim_world_run(sim_world_t *world, uint64_t turns, int quiet);

/** Lets other ranks, and messages, go on in the middle of this one's code. */
void sim_interleave(sim_rank_t *rank);

/** What the mode last said of op, or kept of what the wire said; "" if nothing. */
const char *sim_reason(const sim_rank_t *rank, const xep_op_t *op);

/** Notes the first failure. */
void sim_fail(sim_world_t *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- sim_threads.c ---- */

/**
 * The ranks are threads, all mapped, until they have finished or one has failed. What ranks that take turns cannot show
 * is the order of plain stores and words: a thread sanitizer sees it at once; without one it is a race that is run
 * often. delays: ranks are stopped for a while anywhere.
 */
void sim_threads_run(sim_world_t *world, int delays);

#endif
