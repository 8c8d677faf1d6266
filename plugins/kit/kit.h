/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What every mode has: its peers and experts, and the steps of its operations. A mode's struct begins with an
 * xep_kit_t, the private state of its operations with an xep_kit_state_t: whoever has the mode has these.
 */
#ifndef XEP_KIT_H
#define XEP_KIT_H

#include <stdatomic.h>
#include <stdint.h>

#include <xep/plugin.h>

#include "carve.h"
#include "steps.h"

/** What a combine brings, in this order; compared between ranks (handshake.h). */
enum { XEP_OFFER_DTYPE, XEP_OFFER_HIDDEN, XEP_OFFER_WEIGHTS, XEP_OFFER_FLAGS, XEP_OFFER_QUANT, XEP_OFFER_PARAMS };

/** Published by the word "ready" beside it. */
typedef struct xep_offer {
    uint64_t epoch;
    uint32_t params[XEP_OFFER_PARAMS];
    uint32_t refused; /* calls, by the owner */
} xep_offer_t;
_Static_assert(sizeof(xep_offer_t) == 32, "wire-visible");

/** For handshake.h: one per (slot, rank), in XEP_REGION_CONTROL; written by that rank, read by the heap's owner. */
typedef struct xep_combine_line {
    _Atomic uint64_t ready; /* combine of this epoch may be read in the writer's slot */
    _Atomic uint64_t read;  /* combine of this epoch was read in the heap owner's slot */
    xep_offer_t offer;      /* published by ready */
    uint64_t begin;         /* likewise: xep_combine_store_begin() */
    uint64_t reserved;
} xep_combine_line_t;
_Static_assert(sizeof(xep_combine_line_t) == 64, "a cache line");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "words are shared by processes");

/**
 * Lays what is the mode's in a heap, and says how many rows a slot has; the layout has combine_stride and combine_line
 * already, and gets in_place.stride. Called twice, with every region at 0 to measure them, and where they are.
 */
typedef xep_status_t (*xep_kit_heap_fn)(const xep_shape_t *shape, xep_heap_layout_t *layout,
                                        xep_carve_t region[XEP_REGIONS]);

/** Lays a mode's private arrays, by xep_carve_array(): called twice, too. */
typedef void (*xep_kit_arrays_fn)(void *mode, xep_carve_t *arena);

/** What the kit makes of a mode. */
typedef struct xep_kit_mode {
    size_t mode_bytes; /* of its struct, which begins with xep_kit_t */
    size_t layout;     /* where in it its layout is, which begins with xep_heap_layout_t */
    size_t slot_bytes; /* of what it remembers of a dispatch */
    const xep_step_t *dispatch_steps, *combine_steps; /* of plain buffers; a next piece is a dispatch, too */
    xep_kit_heap_fn lay_heap;
    xep_kit_arrays_fn lay_arrays;
    xep_memory_t memory; /* of all regions */
    int lazily; /* pages of the arrays are touched by the operations: worst cases that are never met cost nothing */
    /* Of a mapped rank's heap, by xep_kit_prefault(): what is of no slot, or is of one and an even load of so many
     * tokens of each rank fills. NULL: none. */
    void (*prefault)(const void *mode, uint32_t rank);
    void (*prefault_slot)(const void *mode, uint32_t rank, uint32_t slot, uint64_t tokens);
} xep_kit_mode_t;

/** Defined by the mode: there is one in each object that the kit is linked into. */
__attribute__((visibility("hidden"))) extern const xep_kit_mode_t xep_kit_mode;

enum { XEP_KIT_RESERVED_MOST = 3 };

typedef struct xep_kit {
    const xep_env_t *env;
    const xep_shape_t *shape;
    const xep_heap_layout_t *layout;       /* the mode's */
    void *slots;                           /* [slots] what the mode remembers of a dispatch, zeroed at open */
    void *arrays, *own_arrays;             /* the mode's, and the kit's: each in one block */
    void *reserved[XEP_KIT_RESERVED_MOST]; /* xep_kit_reserve() */
    char *own;                             /* heap of this rank, of the kind of memory that the mode's regions are of */
    char **base;                           /* [R] heap of a rank; NULL: not mapped */
    char **hears_in;                       /* [R] heap in which this rank finds what another one says in a dispatch */
    const uint32_t *through;               /* [R] whose heap that is (xep_steps_choose()); NULL: always this rank's */
    int all_mapped;
    /* [R] whether that rank pulls outputs of this one in a combine: it is mapped, and not this one. And whether any */
    uint8_t *pulls;
    int is_pulled;
    uint32_t first_looks;         /* in a call that waits, at words that are not there yet, one after the other */
    uint64_t *prefaulted;         /* [slots] tokens for which the pages of a slot were made present */
    uint32_t *owner;              /* [E] rank */
    const uint32_t *first_expert; /* [R + 1] the shape's */
    /* handshake of combines: */
    uint32_t *there;     /* [slots][R] the slot each rank chose for the dispatch of ours: the mode knows and sets it */
    uint64_t *combined;  /* [slots] epoch of the last combine offered from a slot; 0: none, or all have read it */
    xep_offer_t *offers; /* [R] as received: scratch */
    struct xep_in_place *in_place;                     /* kit_in_place.h; NULL: rows are always copied */
    xep_step_t steps[XEP_STEPS_LISTS][XEP_STEPS_MOST]; /* of each kind of operation, as they were chosen */
} xep_kit_t;

/** How far a sequence of puts to one rank after the other has come. */
typedef struct xep_cursor {
    uint32_t peer;     /* 0 .. R: xep_kit_peer() is next */
    uint32_t transfer; /* of what it gets */
    uint64_t row;      /* of this transfer */
} xep_cursor_t;

typedef struct xep_kit_state {
    uint32_t casts;       /* XEP_STEPS_CASTS: its steps are those of its kind that casts; 0: the others */
    uint32_t pieces;      /* XEP_STEPS_PIECES, likewise: of a combine of several pieces */
    uint32_t step;        /* in them */
    int told;             /* in this step mapped ranks have been sent theirs */
    int begins;           /* goes no further than to the step that receives: at the begin, and while rows are coming */
    xep_status_t verdict; /* XEP_OK, or the error every rank gets */
    xep_status_t failed;  /* XEP_OK, or what was met after something was sent */
    xep_cursor_t cursor;  /* of this step */
    uint64_t since_ns;    /* when this step began; only in a trace */
    xep_offer_t offer;    /* of this rank's combine: source of puts, unchanged until flushed */
    xep_in_place_rows_t in_place; /* of this rank's dispatch */
} xep_kit_state_t;

static inline xep_kit_state_t *xep_kit_state(const xep_op_t *op)
{
    return op->state;
}

/** The slot that rank chose for the dispatch whose handle is in ours. */
static inline uint32_t *xep_combine_slot_there(const xep_kit_t *kit, uint32_t slot, uint32_t rank)
{
    return &kit->there[(size_t)slot * kit->shape->nranks + rank];
}

/** xep_plugin_t.heap_size, as the mode's lay_heap has it. */
xep_status_t xep_kit_heap_size(const xep_shape_t *shape, xep_region_t regions[XEP_REGIONS], uint64_t *recv_rows_p);

/**
 * xep_plugin_t.open: a mode that is zeroed but for its kit, its layout and its arrays, and connected to all peers.
 * After an error nothing is left.
 */
xep_status_t xep_kit_open(const xep_env_t *env, void **mode_p);

/** xep_plugin_t.close, where a mode has no more than what the kit has made. NULL is a no-op. */
void xep_kit_close(void *mode);

/**
 * Room for a worst case, zeroed and not touched before it is used, until the mode is closed. NULL: there was none. Then
 * a mode refuses what needs it, so that a machine which promises no more memory than it has may serve all else.
 */
void *xep_kit_reserve(xep_kit_t *kit, uint64_t count, uint64_t bytes);

/** XEP_ERR_INVALID for a selection of op that is no expert. */
xep_status_t xep_kit_refuse_expert(const xep_kit_t *kit, xep_op_t *op, uint64_t token, uint32_t k);

/** Tells a caller who has asked for it how many rows came, or would have. */
static inline void xep_kit_tell_rows(const xep_op_t *op, uint64_t rows)
{
    op->recv->rows = op->recv->all_rows = rows;
    if (op->dispatch->recv_rows_p != NULL) *op->dispatch->recv_rows_p = rows;
}

/** The rank to serve after i others, self last: no rank is everyone's first. */
static inline uint32_t xep_kit_peer(const xep_kit_t *kit, uint32_t i)
{
    return (kit->shape->rank + 1 + i) % kit->shape->nranks;
}

/** Most ranks that a rank does not map: of the ranks on other nodes than its own, where its own has the fewest. */
static inline uint32_t xep_shape_unmapped(const xep_shape_t *shape)
{
    uint32_t least = shape->nranks;
    for (uint32_t n = 0; n < shape->nodes; n++)
        if (shape->node_ranks[n] < least) least = shape->node_ranks[n];
    return shape->nranks - least;
}

/** Experts of a rank. */
static inline uint32_t xep_kit_experts(const xep_kit_t *kit, uint32_t rank)
{
    return kit->first_expert[rank + 1] - kit->first_expert[rank];
}

/** Sets a word in the heap of a mapped rank, after everything this thread stored there by plain stores. */
static inline void xep_kit_signal(const xep_kit_t *kit, uint32_t rank, uint64_t offset, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)(kit->base[rank] + offset), value, memory_order_release);
    if (kit->env->wake != NULL) kit->env->wake(kit->env, rank);
}

/** Sends what the wire holds back; to mapped ranks nothing is. */
static inline xep_status_t xep_kit_flush(const xep_kit_t *kit)
{
    return kit->all_mapped ? XEP_OK : kit->env->wire->ops->flush(kit->env->wire);
}

/** Own memory at an offset, and this rank's part of an area. Memory of a device is not to be touched here. */
static inline void *xep_kit_own(const xep_kit_t *kit, uint64_t offset)
{
    return kit->own + offset;
}

static inline char *xep_kit_own_area(const xep_kit_t *kit, xep_area_t area, uint64_t slot)
{
    return xep_kit_own(kit, xep_area_at(area, slot));
}

/**
 * Fills op's recv with what all modes show of a dispatch of so many rows; the arrangement, scales and counts are the
 * mode's.
 */
static inline void xep_kit_fill_recv(const xep_kit_t *kit, const xep_op_t *op, uint64_t rows)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const xep_heap_layout_t *at = kit->layout;
    const uint32_t *experts = kit->shape->expert + kit->first_expert[kit->shape->rank];
    *op->recv = (xep_recv_t){
        .size = sizeof *op->recv,
        .rows = rows,
        .capacity = args->capacity != 0 ? args->capacity : rows,
        .x = xep_kit_own_area(kit, at->x, op->slot),
        .dtype = args->dtype,
        .hidden = args->hidden,
        .topk = args->topk,
        .topk_idx_dtype = args->topk_idx_dtype,
        .topk_idx = xep_kit_own_area(kit, at->idx, op->slot),
        .topk_weights = (float *)(void *)xep_kit_own_area(kit, at->weights, op->slot),
        .src_token = (int32_t *)(void *)xep_kit_own_area(kit, at->tokens, op->slot),
        .first_expert = experts[0],
        .local_experts = kit->shape->local_experts,
        .pieces = 1,
        .all_rows = rows,
        .experts = experts,
    };
}

/** When a phase begins, for the trace; 0: there is none. */
static inline uint64_t xep_kit_phase(const xep_kit_t *kit)
{
    return kit->env->tracing ? kit->env->now_ns(kit->env) : 0;
}

/** Ends a phase of op that began at a time of xep_kit_phase(); returns now, when the next one begins. */
static inline uint64_t xep_kit_end_phase(const xep_kit_t *kit, const xep_op_t *op, const char *name, uint64_t begin_ns)
{
    uint64_t now = kit->env->now_ns(kit->env);
    kit->env->span(kit->env, op, name, XEP_NO_RANK, begin_ns, now);
    return now;
}

/** Makes the pages of a mapped rank's heap present, from one offset to another; of elements of an area. */
static inline void xep_kit_prefault(const xep_kit_t *kit, uint32_t rank, uint64_t begin, uint64_t end)
{
    if (begin < end) kit->env->prefault(kit->env, kit->base[rank] + begin, end - begin);
}

static inline void xep_kit_prefault_area(const xep_kit_t *kit, uint32_t rank, xep_area_t area, uint32_t slot,
                                         uint64_t begin, uint64_t end)
{
    uint64_t at = xep_area_at(area, slot);
    xep_kit_prefault(kit, rank, at + begin * area.bytes, at + end * area.bytes);
}

/**
 * Makes present what so many tokens of each rank need of a slot, at all mapped ranks: of slot 0 when the mode is
 * opened, of others when they are first used, and again when more tokens come. A buffer whose handles are released
 * before the next dispatch never uses the memory of a second slot.
 */
void xep_kit_map_slot(xep_kit_t *kit, uint32_t slot, uint64_t tokens);

/** Before a dispatch begins. */
static inline void xep_kit_use_slot(xep_kit_t *kit, const xep_op_t *op)
{
    if (op->dispatch->tokens > kit->prefaulted[op->slot]) xep_kit_map_slot(kit, op->slot, op->dispatch->tokens);
}

/** Of what a slot receives in these rows: tokens to x. */
void xep_kit_prefault_received(const xep_kit_t *kit, uint32_t rank, uint32_t slot, uint64_t begin, uint64_t end);

#endif
