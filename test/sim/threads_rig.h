/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Ranks that are threads of one process, all mapped, running a mode. What the simulator cannot show, since its ranks take
 * turns, is the order of plain stores and words: a thread sanitizer sees it at once; without one it is a race that is run
 * often. With delays, ranks are also stopped for a while at any instruction.
 */
#ifndef THREADS_RIG_H
#define THREADS_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <xep/plugin.h>

typedef struct threads_job threads_job_t;

enum { THREADS_MAX_RANKS = 8 };

/** op.late's arrays. Nobody is seen to wait. */
typedef struct threads_late {
    uint32_t ranks[THREADS_MAX_RANKS];
    uint64_t wait_ns[THREADS_MAX_RANKS];
} threads_late_t;

typedef struct threads_rank {
    xep_env_t env; /* first: the mode hands it back */
    xep_wire_t wire;
    xep_shape_t shape;
    threads_job_t *job;
    void *mode;
    uint64_t epoch, turn; /* of its next operations */
    const char *failure;  /* the first; the rank then ends, and the others do not wait for it */
    pthread_t thread;
} threads_rank_t;

/** What a rank does, until it has a failure. */
typedef void (*threads_main_fn)(threads_rank_t *rank);

/** The plugin of a mode, from XEP_PLUGIN_PATH. */
const xep_plugin_t *threads_plugin(const char *mode);

/** Runs main on every rank of the shape, whose ranks and experts are filled in, by each kind of kernels; fails the test when one does. */
void threads_run(const xep_plugin_t *plugin, const xep_shape_t *shape, threads_main_fn main, int delays);

xep_late_t threads_late(threads_late_t *late);

/** Progress until op is done, or another rank has failed. */
xep_status_t threads_finish(threads_rank_t *rank, xep_op_t *op);

/** The slot's input, when peers have read it; NULL: another rank has failed. */
char *threads_input(threads_rank_t *rank, uint32_t slot, size_t *stride_p);

uint64_t threads_hash(uint64_t a, uint64_t b, uint64_t c);

#endif
