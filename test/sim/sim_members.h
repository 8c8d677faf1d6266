/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The core's members (src/elastic/members.h), as they are, around modes: who is out is agreed on by the ballots that
 * ranks write and read, or send one another, in any order of turns. What waits of the core do with a clock, giving a
 * rank up, is here chance: whoever waits for the rank that died, or is stopped for too long, does it.
 */
#ifndef SIM_MEMBERS_H
#define SIM_MEMBERS_H

#include "sim_world.h"

extern const sim_around_t sim_members;

/** Whether the ranks have agreed, as this one knows, that the operation is with the other one. */
int sim_members_is_with(const sim_rank_t *rank, uint32_t other, uint64_t epoch);

/** Whom the rank has left out, [R] as xep_env_t has it. */
const uint8_t *sim_members_out(const sim_rank_t *rank);

#endif
