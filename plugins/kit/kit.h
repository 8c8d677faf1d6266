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
enum { XEP_OFFER_DTYPE, XEP_OFFER_HIDDEN, XEP_OFFER_WEIGHTS, XEP_OFFER_FLAGS, XEP_OFFER_PARAMS };

/** Published by the word "ready" beside it. */
typedef struct xep_offer {
    uint64_t epoch;
    uint32_t params[XEP_OFFER_PARAMS];
} xep_offer_t;
_Static_assert(sizeof(xep_offer_t) == 24, "wire-visible");

typedef struct xep_kit {
    const xep_env_t *env;
    const xep_shape_t *shape;
    void *slots; /* [slots] what the mode remembers of a dispatch, zeroed at open */
    void *arena; /* the mode's arrays (arena.h) */
    xep_region_t regions[XEP_REGIONS];
    char *own;   /* heap of this rank, of the kind of memory that the mode's regions are of */
    char **base; /* [R] heap of a rank; NULL: not mapped */
    int all_mapped;
    uint32_t *owner;              /* [E] rank */
    const uint32_t *first_expert; /* [R + 1] the shape's */
    const xep_step_t *dispatch_steps, *combine_steps;
    xep_area_t input; /* combine input of a slot, and the bytes between its rows: where experts may write */
    size_t input_stride;
    uint64_t notices; /* offset of their ring in every heap, where a mode has them (notices.h) */
    /* handshake of combines: */
    uint64_t mail;       /* offset of its lines [slots][R] in every heap */
    uint32_t *there;     /* [slots][R] the slot each rank chose for the dispatch of ours: the mode knows and sets it */
    uint64_t *combined;  /* [slots] epoch of the last combine offered from a slot; 0: none */
    xep_offer_t *offers; /* [slots][R] as received */
} xep_kit_t;

/** How far a sequence of puts to one rank after the other has come. */
typedef struct xep_cursor {
    uint32_t peer; /* 0 .. R: xep_kit_peer() is next */
    uint32_t part; /* of what it gets */
    uint64_t row;  /* of this part */
} xep_cursor_t;

typedef struct xep_kit_state {
    uint32_t step;        /* in those of its kind */
    int told;             /* in this step mapped ranks have been sent theirs */
    xep_status_t verdict; /* XEP_OK, or the error every rank gets */
    xep_status_t failed;  /* XEP_OK, or what was met after something was sent */
    xep_cursor_t cursor;  /* of this step */
    xep_offer_t offer;    /* of this rank's combine: source of puts, unchanged until flushed */
} xep_kit_state_t;

static inline xep_kit_state_t *xep_kit_state(const xep_op_t *op)
{
    return op->state;
}

/**
 * Makes a zeroed mode of so many bytes and its slots, finds the peers, connects to all of them. Fills the kit but for
 * steps, input and mail. After an error nothing is left.
 */
xep_status_t xep_kit_open(const xep_env_t *env, size_t mode_bytes, size_t slot_bytes, void **mode_p);

/** xep_plugin_t.close, where a mode has no more than what the kit has made. NULL is a no-op. */
void xep_kit_close(void *mode);

/** What recv shows of any dispatch. The rest is the mode's. */
xep_recv_t xep_kit_recv(const xep_kit_t *kit, const xep_op_t *op, uint64_t rows);

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

/** Own memory at an offset, and this rank's part of an area. Memory of a device is not to be touched here. */
static inline void *xep_kit_own(const xep_kit_t *kit, uint64_t offset)
{
    return kit->own + offset;
}

static inline char *xep_kit_own_area(const xep_kit_t *kit, xep_area_t area, uint64_t slot)
{
    return xep_kit_own(kit, xep_area_at(area, slot));
}

/** Makes the pages of a mapped rank's heap present, from one offset to another. */
static inline void xep_kit_prefault(const xep_kit_t *kit, uint32_t rank, uint64_t begin, uint64_t end)
{
    if (begin < end) kit->env->prefault(kit->env, kit->base[rank] + begin, end - begin);
}

#endif
