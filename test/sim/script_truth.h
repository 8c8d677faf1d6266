/* SPDX-License-Identifier: BSD-3-Clause */

/** What a call of a script must give: the oracle's shape of it, with contents that are as ugly as they may be. */
#ifndef SCRIPT_TRUTH_H
#define SCRIPT_TRUTH_H

#include "oracle.h"
#include "script.h"

/** Not to be moved: its parts point at one another. */
typedef struct script_truth {
    const script_t *script;
    const script_call_t *dispatch, *combine; /* combine: NULL where only the dispatch is asked for */
    oracle_routing_t routing;
    oracle_shape_t shape;
    uint8_t encoded_from[SIM_MAX_RANKS];
    uint64_t tokens[SIM_MAX_RANKS]; /* of a dispatch that is without ranks */
    const uint8_t *lost;            /* [R] 1: what the experts of a rank have made is not in the combine; NULL: none */
} script_truth_t;

/** As a rank sees a dispatch, and a combine of it; options: of the world, may be NULL without a combine. */
void script_truth_make(script_truth_t *truth, const script_t *script, const script_call_t *dispatch,
                       const script_call_t *combine, uint32_t rank, const sim_options_t *options);

/** Without ranks: a dispatch brings none of their rows, a combine none of theirs. Each [R], or NULL: it is with all. */
void script_truth_leave_out(script_truth_t *truth, const uint8_t *dispatch_out, const uint8_t *combine_out);

/** In how many pieces a dispatch comes. */
uint64_t script_pieces(const script_t *script, const script_call_t *dispatch);

/** Rows a dispatch needs room for at a rank; padded: of the expert that gets most. */
uint64_t script_rows_needed(const script_t *script, const script_call_t *dispatch, uint32_t rank);

#endif
