/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A random program for the mode "ll" that every rank of a world runs, at its own pace: dispatches in every
 * arrangement and quantisation, cached dispatches, combines and releases in a collective order, several in flight,
 * each checked against loops that know nothing of the mode. The driver of a rank does what the core would.
 */
#ifndef LL_SCRIPT_H
#define LL_SCRIPT_H

#include "script.h"
#include "sim.h"

enum { LL_CALLS = 24, LL_HANDLES = 24, LL_INPUTS = 8 };

typedef enum {
    LL_ODD_NONE,
    LL_ODD_DTYPE,
    LL_ODD_HIDDEN,
    LL_ODD_TOPK,
    LL_ODD_QUANT,
    LL_ODD_SCALES,
    LL_ODD_SENT,
    LL_ODD_KINDS
} ll_odd_t;

/** A collective call. What is per rank follows from (seed, call, rank), or stands here by rank. */
typedef struct ll_call {
    script_kind_t kind;
    uint32_t number;
    uint32_t handle;
    uint32_t cached; /* dispatch: handle whose routing is used again, or UINT32_MAX */
    uint32_t origin; /* dispatch: call whose routing this is */
    uint64_t epoch, turn;
    xep_dtype_t dtype;
    xep_quant_t quant;
    uint32_t hidden, topk, nscales;
    xep_dtype_t idx_dtype, scales_dtype;
    int weights; /* dispatch: given; combine: given for the sum */
    int sent;    /* dispatch: with the rows */
    int logfmt;
    script_route_t route;
    uint64_t tokens[SIM_MAX_RANKS];
    uint64_t capacity[SIM_MAX_RANKS];
    uint32_t alignment[SIM_MAX_RANKS];
    xep_rows_t arrangement[SIM_MAX_RANKS];
    int by_column[SIM_MAX_RANKS];
    xep_status_t expect;
    ll_odd_t odd;
    uint32_t odd_rank;
    int special; /* combine: NaN, Inf and denormals among the values */
} ll_call_t;

typedef struct ll_script {
    uint64_t seed;
    xep_shape_t shape; /* of rank 0 */
    uint64_t slot_rows;
    uint32_t ncalls;
    ll_call_t calls[LL_CALLS];
    uint64_t epoch, turn;
    int unchecked;     /* peers lie: only that nothing crashes matters */
    int global_tokens; /* token t of rank r is token t * R + r of everybody: the same data however many ranks */
} ll_script_t;

typedef struct ll_flight {
    const ll_call_t *call;
    xep_op_t op;
    sim_waits_t waits;
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    script_memory_t inputs[LL_INPUTS];
    uint32_t ninputs;
    script_memory_t out;
    int32_t *stats; /* [L] before and after */
    uint64_t rows;  /* recv_rows_p */
} ll_flight_t;

typedef struct ll_handle {
    const ll_call_t *call; /* that made it */
    uint32_t slot;
    int alive;
    int releasing;
    xep_recv_t recv;
    ll_flight_t *flight;
} ll_handle_t;

typedef struct ll_player {
    ll_script_t *script;
    uint32_t next;
    int broken;
    ll_handle_t handles[LL_HANDLES];
    uint8_t slot_used[LL_HANDLES];
    uint8_t turn_done[LL_CALLS];
    uint32_t refused;
    ll_flight_t *abandoned[LL_CALLS]; /* ended with an error: the wire may still read what they put */
    uint32_t nabandoned;
    const uint32_t *order; /* handles in the order in which they are taken further; NULL: any */
    char *result;          /* sums of the last combine, dense; NULL: not wanted */
} ll_player_t;

/* ---- ll_script.c ---- */

void ll_script_make(sim_world_t *world, ll_script_t *script, uint32_t nranks);
ll_call_t *ll_script_dispatch(ll_script_t *script, uint32_t handle, uint32_t cached);
ll_call_t *ll_script_combine(ll_script_t *script, uint32_t handle);
ll_call_t *ll_script_release(ll_script_t *script, uint32_t handle);

/** What a dispatch of which all else is known ends with. */
void ll_script_expect(const ll_script_t *script, ll_call_t *call);

/* ---- ll_data.c ---- */

int64_t ll_expert(const ll_script_t *script, const ll_call_t *call, uint32_t rank, uint64_t token, uint32_t k);
uint32_t ll_first_expert(const ll_script_t *script, uint32_t rank);
uint32_t ll_owner(const ll_script_t *script, int64_t expert);
/** Selections of an expert by a rank. */
uint64_t ll_count(const ll_script_t *script, const ll_call_t *call, uint32_t rank, int64_t expert);
float ll_weight(const ll_script_t *script, const ll_call_t *call, uint32_t rank, uint64_t token, uint32_t k);
uint32_t ll_scale(const ll_script_t *script, const ll_call_t *call, uint32_t rank, uint64_t token, uint32_t s);
/** The row of a token (expert -1), what its expert makes of it, or a bias (expert -2, -3). */
void ll_row(const ll_script_t *script, const ll_call_t *call, int64_t expert, uint32_t rank, uint64_t token, void *row);
/** e4m3 and scales by the rules of xep.h, in double precision and plain loops. */
void ll_cast(const ll_call_t *call, const void *row, uint8_t *q, uint32_t *scales);

/* ---- ll_check.c ---- */

void ll_check_recv(sim_rank_t *rank, const ll_call_t *call, const xep_recv_t *recv);
void ll_check_combined(sim_rank_t *rank, const ll_flight_t *flight, const ll_call_t *dispatch);
/** Rows compact, or most rows of an expert padded, that rank would get. */
uint64_t ll_needed(const ll_script_t *script, const ll_call_t *call, uint32_t rank);

/* ---- ll_buffers.c ---- */

void ll_flight_dispatch(sim_rank_t *rank, ll_flight_t *flight);
void ll_flight_combine(sim_rank_t *rank, ll_flight_t *flight, const ll_handle_t *handle, void *input, size_t stride);
void ll_flight_free(sim_rank_t *rank, ll_flight_t *flight);

/* ---- ll_player.c ---- */

void ll_players_make(sim_world_t *world, ll_script_t *script);
void ll_players_free(sim_world_t *world);
void ll_step_player(sim_rank_t *rank);
int ll_player_finished(const sim_rank_t *rank);

static inline ll_player_t *ll_player_of(const sim_rank_t *rank)
{
    return rank->driver;
}

static inline const ll_script_t *ll_script_of(const sim_rank_t *rank)
{
    return ll_player_of(rank)->script;
}

#endif
