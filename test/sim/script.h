/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A random program that every rank of a world runs, at its own pace: dispatches, cached dispatches, combines and
 * releases in a collective order, several in flight. What a call must give follows from it (script_truth.h).
 */
#ifndef SCRIPT_H
#define SCRIPT_H

#include "sim_calls.h"

enum { SCRIPT_CALLS = 24, SCRIPT_HANDLES = 24, SCRIPT_NO_HANDLE = 0xffffffff };

typedef enum { CALL_DISPATCH, CALL_COMBINE, CALL_RELEASE, CALL_NEXT } script_kind_t;
typedef enum {
    ROUTE_UNIFORM,
    ROUTE_NOWHERE,
    ROUTE_ONE_EXPERT,
    ROUTE_SELF,
    ROUTE_DUPLICATES,
    ROUTE_ALL,
    ROUTE_KINDS
} script_route_t;

/** What one rank may be made to say differently from the others. */
typedef enum {
    ODD_NONE,
    ODD_DTYPE,
    ODD_HIDDEN,
    ODD_TOPK,
    ODD_SCALES,
    ODD_SCALES_DTYPE,
    ODD_WEIGHTS,
    ODD_SENT,
    ODD_IDX_DTYPE,
    ODD_QUANT,
    ODD_AT_OWNER,
    ODD_CACHED,
    ODD_IN_PLACE,
    ODD_PIECES,
    ODD_HANDLE,  /* another cached handle: odd_handle; by hand only */
    ODD_REFUSED, /* it has refused a call more */
    ODD_KINDS
} script_odd_t;

/** A collective call. What is per rank stands here by rank, or follows from (seed, call, rank). */
typedef struct script_call {
    script_kind_t kind;
    uint32_t number; /* in the script */
    uint32_t handle; /* made, combined, released, or brought a piece further */
    uint32_t cached; /* dispatch: handle to use again, or SCRIPT_NO_HANDLE */
    uint32_t origin; /* dispatch: call whose routing this is */
    uint64_t epoch, turn;
    xep_dtype_t dtype;
    xep_quant_t quant;
    uint32_t hidden, topk, nscales;
    xep_dtype_t idx_dtype, scales_dtype;
    int weights;      /* dispatch: topk_weights; combine: by rank they are sent back, by expert it is given others */
    int sent;         /* dispatch: weights travel with the rows by expert */
    int at_owner;     /* combine: XEP_COMBINE_SUM_AT_OWNER */
    int in_place;     /* dispatch */
    int in_pieces;    /* dispatch: XEP_DISPATCH_PIECES */
    uint64_t rest;    /* dispatch: how many pieces it has beyond the first */
    int kept;         /* dispatch: its pieces have outputs */
    uint32_t payload; /* whose data this has: its own number, or that of the outputs of all pieces */
    script_route_t route;
    uint64_t tokens[SIM_MAX_RANKS];
    uint64_t capacity[SIM_MAX_RANKS]; /* 0: exact */
    uint32_t alignment[SIM_MAX_RANKS];
    xep_rows_t arrangement[SIM_MAX_RANKS];
    int by_column[SIM_MAX_RANKS];
    xep_status_t expect;
    script_odd_t odd;
    uint32_t odd_rank, odd_handle;
    int special; /* combine: NaN, Inf and denormals among the values */
    /* where ranks are left out, what survivors have told of it: 1 for a rank that it is without */
    uint8_t out[SIM_MAX_RANKS];
    uint8_t with[SIM_MAX_RANKS]; /* 1: some survivor has told that it is with that rank */
    int is_told;
} script_call_t;

typedef struct script {
    const struct sim_mode *mode;
    uint64_t seed;
    xep_shape_t shape;  /* of rank 0 */
    uint64_t slot_rows; /* what heap_size said */
    uint32_t ncalls;
    script_call_t calls[SCRIPT_CALLS];
    script_call_t finals[SCRIPT_HANDLES]; /* the combine of a handle in pieces, whose outputs all pieces have */
    uint64_t epoch, turn;                 /* of the next call */
    uint64_t first_turn;                  /* of this script */
    int unchecked;                        /* peers lie: only that nothing crashes matters */
    int integers;                         /* rows are small integers: sums are exact */
    int global_tokens; /* token t of rank r is token t * R + r of everybody: the same data however many ranks */
} script_t;

/** A random script; "before": on the same buffer after that one, whose epochs and turns go on. */
void script_make(sim_world_t *world, const struct sim_mode *mode, script_t *script, uint32_t nranks,
                 const script_t *before);

/** A script without calls, for calls by hand. */
void script_begin(sim_world_t *world, const struct sim_mode *mode, script_t *script, const xep_shape_t *shape);

/** Calls by hand, with defaults: what they end with is to be set where it is not XEP_OK. */
script_call_t *script_dispatch(script_t *script, uint32_t handle, uint32_t cached);
script_call_t *script_combine(script_t *script, uint32_t handle);
script_call_t *script_release(script_t *script, uint32_t handle);

/** The next piece of a handle whose combine is in script->finals. */
script_call_t *script_next(script_t *script, uint32_t handle);

/** What a dispatch of which all else is known ends with. */
void script_expect(const script_t *script, script_call_t *call);

/** A type from first to last, of at most so many bytes. */
xep_dtype_t script_dtype(sim_dice_t *dice, size_t most, xep_dtype_t first, xep_dtype_t last);

/** What E4M3_STATIC divides by; the other casts need none. */
/** The dispatch that made a handle. */
const script_call_t *script_maker(const script_t *script, uint32_t handle);

float script_quant_scale(const script_call_t *call);

/** Whether a rank is the one that says something else. */
int script_is_odd(const script_call_t *call, uint32_t rank, script_odd_t odd);

#endif
