/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A random program for the mode "normal" that every rank of a world runs, at its own pace: dispatches,
 * cached dispatches, combines and releases in a collective order, several in flight, each checked
 * against loops that know nothing of the mode. The driver of a rank does what the core would.
 */
#ifndef SCRIPT_H
#define SCRIPT_H

#include "sim.h"

enum { SCRIPT_CALLS = 24, SCRIPT_HANDLES = 12 };

typedef enum { CALL_DISPATCH, CALL_COMBINE, CALL_RELEASE } script_kind_t;
typedef enum { ROUTE_UNIFORM, ROUTE_NOWHERE, ROUTE_ONE_EXPERT, ROUTE_SELF, ROUTE_DUPLICATES, ROUTE_ALL, ROUTE_KINDS } script_route_t;

/** What one rank may be made to say differently from the others. */
typedef enum {
    ODD_NONE,
    ODD_DTYPE,
    ODD_HIDDEN,
    ODD_WEIGHTS,
    ODD_TOPK,
    ODD_IDX_DTYPE,
    ODD_SCALES,
    ODD_SCALES_DTYPE,
    ODD_CACHED,
    ODD_HANDLE, /* another cached handle: odd_handle */
    ODD_KINDS
} script_odd_t;

/** A collective call. What is per rank follows from (seed, call, rank). */
typedef struct script_call {
    script_kind_t kind;
    uint32_t number;      /* in the script */
    uint32_t handle;      /* made, combined or released */
    uint32_t cached;      /* dispatch: handle to use again, or UINT32_MAX */
    uint32_t origin;      /* dispatch: call whose routing this is */
    uint64_t epoch, turn;
    xep_dtype_t dtype;
    uint32_t hidden, topk, nscales;
    xep_dtype_t idx_dtype, scales_dtype;
    int weights;
    script_route_t route;
    uint64_t tokens[SIM_MAX_RANKS];
    uint64_t capacity[SIM_MAX_RANKS]; /* 0: exact */
    uint32_t alignment;
    xep_status_t expect;
    script_odd_t odd;
    uint32_t odd_rank, odd_handle;
    int special;          /* combine: NaN, Inf and denormals among the values */
} script_call_t;

typedef struct script {
    uint64_t seed;
    xep_shape_t shape;     /* of rank 0 */
    uint64_t slot_rows;    /* what heap_size said */
    uint32_t ncalls;
    script_call_t calls[SCRIPT_CALLS];
    uint64_t epoch, turn;  /* of the next call */
    uint64_t first_turn;   /* of this script */
    int unchecked;         /* peers lie: only that nothing crashes matters */
    int integers;          /* rows are small integers: sums are exact */
} script_t;

/** Memory of the user, exactly as long as it must be. */
typedef struct script_memory {
    char *data, *allocated;
    size_t bytes;
    uint64_t checksum;
} script_memory_t;

enum { SCRIPT_INPUTS = 6 };

/** A call in flight on a rank: what the core would keep, and what the user would. */
typedef struct script_flight {
    const script_call_t *call;
    xep_op_t op;
    sim_waits_t waits;
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    script_memory_t inputs[SCRIPT_INPUTS];
    uint32_t ninputs;
    script_memory_t out, out_weights; /* poisoned, with a margin on both sides */
} script_flight_t;

typedef struct script_handle {
    const script_call_t *call; /* that made it; NULL: not yet */
    uint32_t slot;
    int alive;                 /* dispatched with success and not released */
    int releasing;             /* released with an operation in flight */
    xep_recv_t recv;
    script_flight_t *flight;
} script_handle_t;

/** A rank at work. */
typedef struct script_player {
    script_t *script;
    uint32_t next;        /* call */
    uint32_t broken;      /* an operation ended with an error that breaks the buffer */
    script_handle_t handles[SCRIPT_HANDLES];
    uint8_t slot_used[SCRIPT_HANDLES];
    uint8_t turn_done[SCRIPT_CALLS];
    int64_t pairing;      /* integers: sum of <dispatch(x), y> - <x, combine(y)> of this rank */
    char reason[256];     /* the mode's sentence about the last call that ended with an error */
} script_player_t;

/* ---- script.c: what is called ---- */

/** A random script; "before": on the same buffer after that one, whose epochs and turns go on. */
void script_make(sim_world_t *world, script_t *script, uint32_t nranks, const script_t *before);

/** A script without calls, for calls by hand. */
void script_begin(sim_world_t *world, script_t *script, const xep_shape_t *shape);

/** Calls by hand, with defaults: what they end with is to be set where it is not XEP_OK. */
script_call_t *script_dispatch(script_t *script, uint32_t handle, uint32_t cached);
script_call_t *script_combine(script_t *script, uint32_t handle);
script_call_t *script_release(script_t *script, uint32_t handle);

/* ---- script_data.c: what every rank knows of every other's input; sums ---- */

enum { FROM_SOURCE = 1000, FROM_BIAS = 1001 }; /* whose row or weights: not a contribution of rank "from" */

/** Expert that selection k of a token is for, or -1. */
int64_t script_expert(const script_t *script, const script_call_t *call, uint32_t rank, uint64_t token, uint32_t k);
uint32_t script_owner(const script_t *script, int64_t expert);
uint32_t script_first_expert(const script_t *script, uint32_t rank);

/** Whether some selection of the token is on rank "to". */
int script_goes(const script_t *script, const script_call_t *call, uint32_t rank, uint64_t token, uint32_t to);
uint64_t script_rows_to(const script_t *script, const script_call_t *call, uint32_t from, uint32_t to);

/** Of a token: what its source says, or what rank "from" contributes in a combine. */
float script_weight(const script_t *script, const script_call_t *call, uint32_t from, uint32_t rank, uint64_t token, uint32_t k);
uint32_t script_scale(const script_t *script, const script_call_t *call, uint32_t rank, uint64_t token, uint32_t s);
void script_row(const script_t *script, const script_call_t *call, uint32_t from, uint32_t rank, uint64_t token, void *row);

size_t script_bytes(xep_dtype_t dtype);
double script_value(xep_dtype_t dtype, const void *row, uint32_t i);
/** Nearest, ties to even; NaN as documented. */
void script_round(xep_dtype_t dtype, float value, void *row, uint32_t i);

/* ---- script_check.c: what must come out ---- */

void script_check_recv(sim_rank_t *rank, const script_call_t *call, const xep_recv_t *recv);
void script_check_combined(sim_rank_t *rank, const script_flight_t *flight, const script_call_t *dispatch);

/** Integers: <dispatch(x), y> - <x, combine(y)>, which sums to 0 over all ranks. */
int64_t script_pairing(sim_rank_t *rank, const script_flight_t *flight, const script_handle_t *handle);

/* ---- script_player.c, script_buffers.c: the driver ---- */

void script_flight_dispatch(sim_rank_t *rank, script_flight_t *flight);
void script_flight_combine(sim_rank_t *rank, script_flight_t *flight, const script_call_t *dispatch, void *input, size_t stride);
/** Inputs must be as they were; frees all. */
void script_flight_free(sim_rank_t *rank, script_flight_t *flight);

void script_players_make(sim_world_t *world, script_t *script);
void script_players_free(sim_world_t *world);
void script_step(sim_rank_t *rank);
int script_finished(const sim_rank_t *rank);

#endif
