/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The wire of a simulated rank: messages are taken from their source, and delivered, when the scheduler says so. Where
 * the others go on without ranks that die (world->around), it is as a heap that spares ranks (src/group/transport.h):
 * sources are copied at once, who is dead, or stopped, takes nothing, and a rank is refused nothing because of that.
 */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include "sim_world.h"

extern const xep_wire_ops_t sim_wire_ops;

/** Moves one message, chosen at random, one step of its way. */
void sim_wire_step(sim_world_t *world, sim_dice_t *dice);

/** Takes the oldest message of a rank that is not taken from its source yet; how many of them are left. */
uint64_t sim_wire_take(sim_world_t *world, uint32_t rank);

/** Messages of a rank that are under way. */
uint64_t sim_wire_posted(const sim_world_t *world, uint32_t rank);

/** A rank has died: of what it has sent to each of the others, a part from the begin on is still to come. */
void sim_wire_bury(sim_world_t *world, uint32_t rank);

/** As heap_fence_off and heap_is_behind of a transport: another rank is out for this one; has not taken all it sent. */
void sim_wire_fence_off(sim_rank_t *self, uint32_t rank);
int sim_wire_is_behind(const sim_rank_t *self, uint32_t rank);

/** Control messages to another rank, in no order with anything else; world->around gets it. */
void sim_wire_ctl(sim_rank_t *self, uint32_t rank, const void *data, size_t bytes);

/** Forgets all messages. */
void sim_wire_clear(sim_world_t *world);

#endif
