/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * At the begin of the control heap: where mapped ranks tell one another, by stores, that the group is over, and where
 * one that sleeps says for whom.
 */
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

/* ---- sleeping ---- */

/*
 * On a host with more ranks than processors, a waiting rank sleeps until the rank that it waits for wakes it: if it
 * polled, that rank might get no processor. Only if all ranks map one another, and no thread makes progress.
 */

/** When the group is created: counts ranks and processors of this host, and so chooses how waits back off. */
xep_status_t xep_group_find_oversubscription(xep_group_t *group);

/** Whether ranks of this group sleep. The same on all ranks of a host; from the begin of the group to its end. */
int xep_group_sleeps(const xep_group_t *group);

#define XEP_ANY_RANK (XEP_NO_RANK - 1) /* of one that waits for no rank in particular: xep_group_wake_idle() */

/**
 * Announces that this rank is about to sleep until rank wakes it; rank sees that whenever it stores a word for this one
 * after the caller's next look. 0: another thread of this process sleeps already.
 */
int xep_group_prepare_wait(xep_group_t *group, uint32_t rank);

/**
 * Sleeps until that rank wakes it, for at most ns, less than a second; not at all if it has done so since
 * xep_group_prepare_wait(). Returns whether it was woken.
 */
int xep_group_sleep(xep_group_t *group, uint32_t rank, uint64_t ns);

/** This rank is awake again; after each xep_group_prepare_wait() that returned 1. */
void xep_group_finish_wait(xep_group_t *group);

/** Wakes rank if it sleeps for this one; after storing the word for it. Any thread. */
void xep_group_wake(const xep_group_t *group, uint32_t rank);

/** Wakes all mapped ranks that sleep until any rank wakes them (XEP_ANY_RANK). Any thread. */
void xep_group_wake_idle(const xep_group_t *group);

/** Wakes all mapped ranks, whatever they wait for. Any thread, and a signal handler. */
void xep_group_wake_all(const xep_group_t *group);

/** What rank sleeps for, in its control heap (group_doorbell.c); NULL: it is not mapped. */
_Atomic uint32_t *xep_group_asleep(const xep_group_t *group, uint32_t rank);

#endif
