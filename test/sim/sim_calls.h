/* SPDX-License-Identifier: BSD-3-Clause */

/** Calls of a mode as the core makes them: what they must not do where the wire fails, and how long they wait. */
#ifndef SIM_CALLS_H
#define SIM_CALLS_H

#include "sim_world.h"

/** What the core keeps of an operation's waits, and what they should be. */
typedef struct sim_waits {
    uint32_t ranks[SIM_MAX_RANKS]; /* op.late's arrays */
    uint64_t wait_ns[SIM_MAX_RANKS];
    uint32_t late[SIM_MAX_RANKS]; /* when its mode looked last, at looked, and somebody waited */
    uint32_t nlate;
    uint64_t looked;
    uint64_t expected[SIM_MAX_RANKS];
} sim_waits_t;

/** op.late of an operation that begins; waits: zeroed. */
xep_late_t sim_late(sim_waits_t *waits);

/**
 * The mode's dispatch or combine. Where the wire fails in it and it says so, nobody may have seen a word or a byte, and
 * the operation, with the same epoch, is begun once more.
 */
xep_status_t sim_begin(sim_rank_t *rank, xep_op_t *op);

/** An operation that was not begun is to be begun again, as if it never had been. */
void sim_renew(sim_rank_t *rank, xep_op_t *op);

/**
 * The mode's progress, as by a caller who waits (of every third operation, by one who does not): nobody is late for
 * longer or shorter than told.
 */
xep_status_t sim_progress(sim_rank_t *rank, xep_op_t *op, sim_waits_t *waits);

/**
 * What the user is told of op's error, the mode's sentence or else the thread's last error, must be what the wire said
 * when it failed.
 */
void sim_check_wires_sentence(sim_rank_t *rank, const xep_op_t *op);

#endif
