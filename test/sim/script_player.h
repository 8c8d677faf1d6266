/* SPDX-License-Identifier: BSD-3-Clause */

/** A rank that plays a script: what the core does around a mode, in random order. */
#ifndef SCRIPT_PLAYER_H
#define SCRIPT_PLAYER_H

#include "oracle_pieces.h"
#include "script_flight.h"

typedef struct script_handle {
    const script_call_t *call; /* that made it; NULL: not yet */
    uint32_t slot;
    int alive;     /* dispatched with success and not released */
    int releasing; /* released with an operation in flight */
    xep_recv_t recv;
    script_flight_t *flight;
    int is_without; /* its dispatch was without ranks: */
    uint8_t out[SIM_MAX_RANKS];
    script_flight_t *sent; /* of a dispatch whose last piece is not here: rows are sent from its inputs */
    oracle_pieces_t pieces;
} script_handle_t;

typedef struct script_player {
    script_t *script;
    uint32_t next; /* call */
    int broken;    /* an operation ended with an error that breaks the buffer */
    script_handle_t handles[SCRIPT_HANDLES];
    uint8_t slot_used[SCRIPT_HANDLES];
    uint8_t turn_done[SCRIPT_CALLS];
    const char *idle;      /* send memory that was asked for and not used: poison; NULL: none */
    int64_t pairing;       /* integers: sum of script_check_pairing() of this rank */
    char reason[256];      /* the mode's sentence about the last call that ended with an error */
    const uint32_t *order; /* handles in the order in which they are taken further; NULL: any */
    char *result;          /* sums of the last combine, dense; NULL: not wanted */
} script_player_t;

/** The ranks' drivers, in a world that is open. */
void script_players_make(sim_world_t *world, script_t *script);
void script_players_free(sim_world_t *world);

script_player_t *script_player(const sim_rank_t *rank);

/** As world->step and world->finished: a turn of a rank, and whether it needs no more. */
void script_player_step(sim_rank_t *rank);
int script_player_is_finished(const sim_rank_t *rank);

#endif
