/* SPDX-License-Identifier: BSD-3-Clause */

/** Whose fault it is that ranks wait, in a world of which a rank has died and is not left out. */
#ifndef SIM_BLAME_H
#define SIM_BLAME_H

#include "sim_world.h"

/** Whoever has not finished waits for the dead one, or for one that does, and the mode says so. */
void sim_blame_check(sim_world_t *world);

/**
 * By nodes: whoever waits for the dead one, and does not hear it itself, says through whom. Returns how many sentences
 * said so.
 */
uint64_t sim_blame_check_names(sim_world_t *world);

#endif
