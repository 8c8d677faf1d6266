/* SPDX-License-Identifier: BSD-3-Clause */

/** Lays areas one behind the other, each on a cache line of its own, and remembers whether 64 bits were too few. */
#ifndef XEP_CARVE_H
#define XEP_CARVE_H

#include <stdint.h>

#include <xep/plugin.h>

typedef struct xep_carve {
    char *base;   /* NULL: only measures */
    uint64_t end; /* bytes so far */
    int overflow;
    uint64_t stride; /* of areas: from a slot's to the next one's */
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

/** What comes next begins a page of 4096 bytes. */
static inline void xep_carve_page(xep_carve_t *carve)
{
    if (carve->end > UINT64_MAX / 2) carve->overflow = 1;
    else carve->end = (carve->end + 4095) & ~(uint64_t)4095;
}

/** An area that every slot has: where that of slot 0 is, in any rank's heap, and how far it is to the next slot's. */
typedef struct xep_area {
    uint64_t first, stride;
} xep_area_t;

static inline xep_area_t xep_carve_area(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    return (xep_area_t){xep_carve_offset(carve, count, bytes), carve->stride};
}

static inline uint64_t xep_area_at(xep_area_t area, uint64_t slot)
{
    return area.first + slot * area.stride;
}

/** Carves that begin where the regions do: at 0 while heap_size measures them. */
static inline void xep_carve_begin(xep_carve_t carve[XEP_REGIONS], const xep_region_t regions[XEP_REGIONS])
{
    for (int i = 0; i < XEP_REGIONS; i++) carve[i] = (xep_carve_t){.end = regions[i].offset};
}

/** What the carves came to is what the regions need. Those without an alignment get that of a line. */
static inline xep_status_t xep_carve_end(const xep_carve_t carve[XEP_REGIONS], xep_region_t regions[XEP_REGIONS])
{
    for (int i = 0; i < XEP_REGIONS; i++) {
        if (carve[i].overflow) return XEP_ERR_NO_MEMORY;
        regions[i].bytes = carve[i].end - regions[i].offset;
        if (regions[i].alignment == 0) regions[i].alignment = 64;
    }
    return XEP_OK;
}

/** Lays the areas of a slot, each in the region it belongs to: called once to measure, once where they are. */
typedef void (*xep_carve_slot_fn)(const xep_shape_t *shape, void *layout, xep_carve_t slot[XEP_REGIONS]);

/** Lays those of all slots behind what the regions have. */
void xep_carve_slots(const xep_shape_t *shape, void *layout, xep_carve_t region[XEP_REGIONS], xep_carve_slot_fn lay);

/** xep_carve_offset() as an address; NULL while measuring. */
static inline void *xep_carve_array(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    uint64_t offset = xep_carve_offset(carve, count, bytes);
    return carve->base == 0 ? 0 : carve->base + offset;
}

#endif
