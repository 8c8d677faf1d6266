/* SPDX-License-Identifier: BSD-3-Clause */

/** What a rank that plays a script does when a call has ended: it looks at the outcome, and gives back what it held. */
#ifndef SCRIPT_END_H
#define SCRIPT_END_H

#include "script_player.h"

/** Ends the test: what is wrong with a call of this rank, and the mode's reason. */
void script_fail(sim_rank_t *rank, const script_flight_t *flight, const char *what, int64_t value);

/** The operation in flight on handle has ended with status: it is freed, and so is a handle released meanwhile. */
void script_end_flight(sim_rank_t *rank, script_handle_t *handle, xep_status_t status);

/** Looks at what was received once more, spoils it, and gives the slot back. */
void script_end_handle(sim_rank_t *rank, script_handle_t *handle);

/** What the user had of a dispatch is overwritten, weights that are kept apart: rows that are not written anew show. */
void script_spoil_rows(const xep_recv_t *recv, const float *kept);

/** The ranks that the dispatch of a handle was without; NULL: with all. */
const uint8_t *script_out_of(const script_handle_t *handle);

/** Frees what rows of later pieces would be sent from. */
void script_free_sent(sim_rank_t *rank, script_handle_t *handle);

#endif
