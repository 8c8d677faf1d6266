/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A world whose ranks are threads of one process, all mapped. What ranks that take turns cannot show is the order of
 * plain stores and words: a thread sanitizer sees it at once; without one it is a race that is run often.
 */
#ifndef SIM_THREADS_H
#define SIM_THREADS_H

#include "sim_world.h"

/** Runs all ranks until they have finished or one has failed. delays: ranks are stopped for a while anywhere. */
void sim_threads_run(sim_world_t *world, int delays);

#endif
