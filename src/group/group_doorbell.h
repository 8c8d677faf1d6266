/* SPDX-License-Identifier: BSD-3-Clause */

/** Where mapped ranks tell one another, by stores, that the group is over: at the begin of the control heap. */
#ifndef XEP_GROUP_DOORBELL_H
#define XEP_GROUP_DOORBELL_H

#include "group.h"

/** Bytes of it; the heap is zeroed. */
uint64_t xep_group_doorbells_bytes(uint32_t nranks);

/** Finds the doorbells of mapped ranks; after nodes are known, before what is below does anything. */
xep_status_t xep_group_find_doorbells(xep_group_t *group);

/** Writes the word of an abort into this rank's line at all mapped ranks, and rings there. Stores and no more. */
void xep_group_ring(const xep_group_t *group, uint64_t word);

/** The word of a rank that has rung since the last look, or 0. Any thread. */
uint64_t xep_group_listen(xep_group_t *group, uint32_t *from_p);

/**
 * Tells a rank, if it is mapped, that this one has made a smaller group without it; and whether this rank was told so.
 * Such a rank may have slept through all control messages, and no other rank is left to send it.
 */
void xep_group_ring_out(const xep_group_t *group, uint32_t rank);
int xep_group_is_rung_out(const xep_group_t *group);

/** The word of group_sleep.c in the control heap of a rank; NULL: it is not mapped. */
_Atomic uint32_t *xep_group_asleep(const xep_group_t *group, uint32_t rank);

#endif
