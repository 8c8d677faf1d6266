/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * On a host with more ranks than processors, a waiting rank sleeps until the rank that it waits for wakes it: if it
 * polled, that rank might get no processor. Only if all ranks map one another, and no thread makes progress.
 */
#ifndef XEP_GROUP_SLEEP_H
#define XEP_GROUP_SLEEP_H

#include "group.h"

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

#endif
