/* SPDX-License-Identifier: BSD-3-Clause */

#include "group_doorbell.h"

#include <stdlib.h>

#include "error.h"

/** Of one rank; written by it at every mapped rank, read by the owner. */
typedef struct line {
    _Atomic uint64_t ended;    /* a word of group_abort.c; 0: none */
    _Atomic uint64_t left_out; /* 1: it has made a smaller group without the owner */
    uint64_t pad[6];
} line_t;
_Static_assert(sizeof(line_t) == 64, "one writer a cache line");

/** In the heap of the owner. */
typedef struct doorbells {
    _Atomic uint64_t rings; /* counted up by ranks after they have written ended */
    uint64_t pad[7];
    _Atomic uint32_t asleep; /* group_sleep.c */
    uint32_t rest[15];
    line_t lines[]; /* [nranks] */
} doorbells_t;
_Static_assert(sizeof(doorbells_t) == 128, "two cache lines: of each one the others are read often");

static doorbells_t *doorbells_of(char *control)
{
    return (doorbells_t *)(void *)control;
}

uint64_t xep_group_doorbells_bytes(uint32_t nranks)
{
    return sizeof(doorbells_t) + nranks * sizeof(line_t);
}

xep_status_t xep_group_find_doorbells(xep_group_t *group)
{
    xep_wire_t *wire = &group->control->wire;
    char **control_of = calloc(group->nranks, sizeof *control_of);
    if (control_of == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (r != group->rank && group->peers[r].mapped) control_of[r] = wire->ops->map(wire, r);
    group->control_of = control_of;
    return XEP_OK;
}

void xep_group_ring(const xep_group_t *group, uint64_t word)
{
    for (uint32_t r = 0; group->control_of != NULL && r < group->nranks; r++) {
        if (group->control_of[r] == NULL) continue;
        doorbells_t *doorbells = doorbells_of(group->control_of[r]);
        atomic_store_explicit(&doorbells->lines[group->rank].ended, word, memory_order_relaxed);
        atomic_fetch_add_explicit(&doorbells->rings, 1, memory_order_release);
    }
}

/* Reads the lines only after a ring, and once for each: a rank that is out may ring for ever. */
uint64_t xep_group_listen(xep_group_t *group, uint32_t *from_p)
{
    if (group->control_of == NULL) return 0;
    doorbells_t *doorbells = doorbells_of(group->control->base);
    uint64_t rings = atomic_load_explicit(&doorbells->rings, memory_order_acquire), word = 0;
    if (rings == atomic_load_explicit(&group->heard, memory_order_relaxed)) return 0;
    for (uint32_t r = 0; r < group->nranks; r++) {
        uint64_t said = atomic_load_explicit(&doorbells->lines[r].ended, memory_order_relaxed);
        if (said >> 32 <= word >> 32 || xep_group_is_out(group, r)) continue; /* the reason that matters most */
        *from_p = r;
        word = said;
    }
    atomic_store_explicit(&group->heard, rings, memory_order_relaxed);
    return word;
}

void xep_group_ring_out(const xep_group_t *group, uint32_t rank)
{
    if (group->control_of[rank] == NULL) return;
    atomic_store_explicit(&doorbells_of(group->control_of[rank])->lines[group->rank].left_out, 1, memory_order_release);
}

_Atomic uint32_t *xep_group_asleep(const xep_group_t *group, uint32_t rank)
{
    if (rank == group->rank) return &doorbells_of(group->control->base)->asleep;
    return group->control_of[rank] == NULL ? NULL : &doorbells_of(group->control_of[rank])->asleep;
}

int xep_group_is_rung_out(const xep_group_t *group)
{
    const doorbells_t *doorbells = doorbells_of(group->control->base);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (atomic_load_explicit(&doorbells->lines[r].left_out, memory_order_acquire) != 0) return 1;
    return 0;
}
