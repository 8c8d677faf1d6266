/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Where a host has more ranks than processors, a rank that waits sleeps until the one that it waits for has something
 * to say: while it looked for itself, that one would have no processor. Only where all ranks map one another, and no
 * thread makes progress.
 */
#ifndef XEP_GROUP_SLEEP_H
#define XEP_GROUP_SLEEP_H

#include "group.h"

/** While the group is created: how many ranks and processors this host has, and so how a wait of this rank rests. */
xep_status_t xep_group_find_crowd(xep_group_t *group);

/** Whether ranks of this group sleep. The same on all ranks of a host; from the begin of the group to its end. */
int xep_group_sleeps(const xep_group_t *group);

/**
 * Says that this rank is about to sleep until it hears from rank, which then sees that whenever it tells this one
 * something after the caller's next look. 0: another thread of this process sleeps already.
 */
int xep_group_lie_down(xep_group_t *group, uint32_t rank);

/**
 * Sleeps until that rank rouses it, at most ns, which are less than a second; not at all where it has done so since
 * xep_group_lie_down(). Whether it was roused.
 */
int xep_group_sleep(xep_group_t *group, uint32_t rank, uint64_t ns);

/** It is awake; behind each xep_group_lie_down() that returned 1. */
void xep_group_get_up(xep_group_t *group);

/** Wakes rank if it sleeps until it hears from this one; after what is told was stored. Any thread. */
void xep_group_rouse(const xep_group_t *group, uint32_t rank);

/** Wakes all mapped ranks, whatever they wait for. Any thread, and a signal handler. */
void xep_group_rouse_all(const xep_group_t *group);

#endif
