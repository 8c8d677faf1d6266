/* SPDX-License-Identifier: BSD-3-Clause */

/** The wire of a simulated rank: messages are taken from their source, and delivered, when the scheduler says so. */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include "sim_world.h"

extern const xep_wire_ops_t sim_wire_ops;

/** Moves one message, chosen at random, one step of its way. */
void sim_wire_step(sim_world_t *world, sim_dice_t *dice);

/** Messages of a rank that are under way. */
uint64_t sim_wire_posted(const sim_world_t *world, uint32_t rank);

/** Forgets all messages. */
void sim_wire_clear(sim_world_t *world);

#endif
