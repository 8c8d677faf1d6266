/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A call in flight on a rank: what the core would keep of it, and the user's memory: inputs of exact length and odd
 * strides, outputs between margins.
 */
#ifndef SCRIPT_FLIGHT_H
#define SCRIPT_FLIGHT_H

#include "script_memory.h"

enum { SCRIPT_INPUTS = 8 };

typedef struct script_flight {
    const script_t *script;
    const script_call_t *call, *dispatch; /* dispatch: that made the handle, the same for a dispatch */
    xep_op_t op;
    sim_waits_t waits;
    xep_dispatch_args_t dispatch_args;
    xep_combine_args_t combine_args;
    script_memory_t inputs[SCRIPT_INPUTS];
    uint32_t ninputs;
    script_memory_t out, out_weights, missing;
    const uint8_t *dispatch_out; /* combine: [R] whom its dispatch was without; NULL: nobody */
    int32_t *stats;              /* [L + 1], 1000 + e before */
    uint64_t rows;               /* recv_rows_p */
    char *held;                  /* the first input, of which rows are still coming; NULL: none were */
    size_t held_row, held_stride;
} script_flight_t;

/** Of a call that begins, with its arguments, in a slot. cached_slot: of a dispatch, or XEP_NO_SLOT. */
script_flight_t *script_flight_dispatch(sim_rank_t *rank, const script_t *script, const script_call_t *call,
                                        uint32_t slot, uint32_t cached_slot, xep_recv_t *recv);

/** input: where the mode wants the rows, NULL: they are the user's. */
script_flight_t *script_flight_combine(sim_rank_t *rank, const script_t *script, const script_call_t *call,
                                       const script_call_t *dispatch, uint32_t slot, xep_recv_t *recv, void *input,
                                       size_t stride);

/** sent: the flight of the dispatch, which stays until its last piece is here; input: as above. */
script_flight_t *script_flight_next(sim_rank_t *rank, const script_call_t *call, const script_flight_t *sent,
                                    uint32_t slot, xep_recv_t *recv, void *input, size_t stride);

/** Some of the rows that are still coming (xep_op_t.coming) are there now; or none. */
void script_flight_bring(sim_rank_t *rank, script_flight_t *flight);

/** Inputs must be as they were; frees all. */
void script_flight_free(sim_rank_t *rank, script_flight_t *flight);

/** Margins of an output of rows a stride apart, and gaps between them, must be as they were. */
void script_flight_check_margins(sim_rank_t *rank, const script_flight_t *flight, const script_memory_t *memory,
                                 size_t row, size_t stride, uint64_t rows);

#endif
