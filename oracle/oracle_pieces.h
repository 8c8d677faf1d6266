/* SPDX-License-Identifier: BSD-3-Clause */

/** What a dispatch in pieces must bring: rows in slots of some room, which are together what one piece would be. */
#ifndef ORACLE_PIECES_H
#define ORACLE_PIECES_H

#include "oracle_data.h"
#include "oracle_differ.h"

/** The rows of the pieces so far, one behind the other, in memory of its own. All zero: none yet. */
typedef struct oracle_pieces {
    xep_payload_t payloads[XEP_PAYLOADS_MOST]; /* that recv shows */
    xep_recv_t recv;
    uint64_t *begin;  /* [R + 1] by rank */
    uint64_t *counts; /* [L] selections, not aligned */
    /* by expert: */
    uint32_t *pair_begin, *pair_count;       /* [L][R] */
    uint64_t *expert_begin, *expert_aligned; /* [L] */
    int opened;
} oracle_pieces_t;

/**
 * Compares the next piece, which recv shows, as far as that can be done alone, and takes its rows; behind the last one
 * all of them. room: rows of a slot. 0, or 1 and the first difference.
 */
int oracle_pieces_take(oracle_pieces_t *pieces, const oracle_shape_t *shape, uint32_t rank, uint64_t room,
                       const xep_recv_t *recv, oracle_difference_t *difference_p);

/** Frees what was taken: as it was at first. */
void oracle_pieces_free(oracle_pieces_t *pieces);

/** How many pieces a dispatch comes in. */
uint64_t oracle_count_pieces(const oracle_shape_t *shape, uint64_t room);

#endif
