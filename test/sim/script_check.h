/* SPDX-License-Identifier: BSD-3-Clause */

/** Compares what a call ended with with the oracle. */
#ifndef SCRIPT_CHECK_H
#define SCRIPT_CHECK_H

#include "oracle_pieces.h"
#include "script_flight.h"

/** The received rows of a dispatch, now or when the handle is released. */
void script_check_recv(sim_rank_t *rank, const script_t *script, const script_call_t *call, const xep_recv_t *recv,
                       const uint8_t *out);

/** The next piece of a dispatch in pieces; behind the last one, all of them. */
void script_check_piece(sim_rank_t *rank, const script_t *script, const script_call_t *call, const xep_recv_t *recv,
                        oracle_pieces_t *pieces);

/** A dispatch that ended as it should: its rows, or what it says of the rows that did not fit. */
void script_check_dispatch(sim_rank_t *rank, const script_flight_t *flight);

/** A dispatch that failed: it has counted nothing. */
void script_check_no_stats(sim_rank_t *rank, const script_flight_t *flight);

/** A combine that ended with XEP_OK. */
void script_check_combine(sim_rank_t *rank, const script_flight_t *flight);

/**
 * Rows of small integers by rank: <dispatch(x), y> - <x, combine(y)> of a combine, whose sum over all ranks is 0: the
 * two operations are adjoint.
 */
int64_t script_check_pairing(const sim_rank_t *rank, const script_flight_t *flight);

#endif
