/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Lays out arrays one behind the other, each from a cache line on, in a heap or in private memory. A carve remembers an
 * overflow of 64 bits, so that it is checked only once, at the end.
 */
#ifndef XEP_CARVE_H
#define XEP_CARVE_H

#include <stdint.h>

#include <xep/plugin.h>

#include "kit_in_place.h"

static inline uint64_t xep_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t xep_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

typedef struct xep_carve {
    char *base;   /* NULL: only measures */
    uint64_t end; /* bytes so far */
    int overflow;
    uint64_t stride;    /* of areas: from a slot's to the next one's */
    uint32_t alignment; /* that something in it needs; 0: that of a line */
} xep_carve_t;

/** Offset of count times bytes. */
static inline uint64_t xep_carve_offset(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    uint64_t begin = carve->end, area;
    if (__builtin_mul_overflow(count, bytes, &area) || __builtin_add_overflow(begin, area, &carve->end) ||
        carve->end > UINT64_MAX / 2)
        carve->overflow = 1;
    carve->end = (carve->end + 63) & ~(uint64_t)63;
    return begin;
}

/** What comes next begins at a multiple of alignment: a power of two up to 4096. */
static inline void xep_carve_align(xep_carve_t *carve, uint32_t alignment)
{
    if (carve->alignment < alignment) carve->alignment = alignment;
    if (carve->end > UINT64_MAX / 2) carve->overflow = 1;
    else carve->end = (carve->end + alignment - 1) & ~(uint64_t)(alignment - 1);
}

/** What comes next begins a page of 4096 bytes. */
static inline void xep_carve_page(xep_carve_t *carve)
{
    xep_carve_align(carve, 4096);
}

/** An array that every slot has: its offset for slot 0 in any rank's heap, and the distance to the next slot's. */
typedef struct xep_area {
    uint64_t first, stride;
    uint64_t bytes; /* of one of the count elements it was laid for */
} xep_area_t;

static inline xep_area_t xep_carve_area(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    return (xep_area_t){xep_carve_offset(carve, count, bytes), carve->stride, bytes};
}

static inline uint64_t xep_area_at(xep_area_t area, uint64_t slot)
{
    return area.first + slot * area.stride;
}

/**
 * The part of a heap's layout that all modes have: a mode's own layout begins with it. K is the topk of the shape, or 1
 * in a mode that has a row for each selection.
 */
typedef struct xep_heap_layout {
    uint64_t recv_rows;      /* rows of a slot */
    uint64_t combine_stride; /* bytes between rows of the input */
    /* XEP_REGION_CONTROL, offsets: */
    uint64_t notices;      /* their ring, in a mode that has them (notices.h) */
    uint64_t combine_line; /* [slots][R] xep_combine_line_t (handshake.h) */
    /* XEP_REGION_METADATA */
    xep_area_t tokens;  /* [recv_rows] int32_t */
    xep_area_t idx;     /* [recv_rows][K] of the dispatch's index type */
    xep_area_t weights; /* [recv_rows][K] float */
    xep_area_t beside;  /* [recv_rows] of as many words as there may be beside a row: fields.h */
    /* XEP_REGION_ROWS */
    xep_in_place_layout_t in_place;
    xep_area_t x;     /* [recv_rows] rows */
    xep_area_t input; /* [recv_rows] rows: expert outputs, which other ranks may read */
} xep_heap_layout_t;

/** Lays tokens to x of a slot, for a mode whose rows have topk selections and at most so many words beside them. */
void xep_carve_received(const xep_shape_t *shape, xep_heap_layout_t *layout, uint32_t topk, uint64_t words,
                        xep_carve_t slot[XEP_REGIONS]);

/** Lays the areas of a slot, each in its region: called once to measure and once to place them. */
typedef void (*xep_carve_slot_fn)(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t slot[XEP_REGIONS]);

/** Lays those of all slots behind what the regions have. */
void xep_carve_slots(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t region[XEP_REGIONS],
                     xep_carve_slot_fn lay);

/** xep_carve_offset() as an address; NULL while measuring. */
static inline void *xep_carve_array(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    uint64_t offset = xep_carve_offset(carve, count, bytes);
    return carve->base == 0 ? 0 : carve->base + offset;
}

#endif
