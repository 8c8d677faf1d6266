/* SPDX-License-Identifier: BSD-3-Clause */

/** Lays areas one behind the other, each on a cache line of its own, and remembers whether 64 bits were too few. */
#ifndef XEP_CARVE_H
#define XEP_CARVE_H

#include <stdint.h>

typedef struct xep_carve {
    char *base;   /* NULL: only measures */
    uint64_t end; /* bytes so far */
    int overflow;
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

/** xep_carve_offset() as an address; NULL while measuring. */
static inline void *xep_carve_array(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    uint64_t offset = xep_carve_offset(carve, count, bytes);
    return carve->base == 0 ? 0 : carve->base + offset;
}

#endif
