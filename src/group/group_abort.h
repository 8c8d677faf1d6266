/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The end of a group before its time: one rank gives up, and all others hear of it at once.
 *
 *  1. The rank remembers that it has (group->aborted, and who and why in group->ended), and writes the same into its
 *     line of the control heap of every rank that it maps, then rings there. No more than stores: a signal handler may
 *     be what does it.
 *  2. Ranks that it does not map it tells by mail, when it is in the library the next time: in the call that the abort
 *     ends, in its progress thread, in the destroy calls.
 *  3. A rank that hears of it does the same, once, with the same word: so all hear of it also when the first one dies
 *     in the middle of telling.
 *
 * Whoever waits looks at its bell each time round. What a rank that is out says counts for nothing: the others have
 * gone on without it.
 */
#ifndef XEP_GROUP_ABORT_H
#define XEP_GROUP_ABORT_H

#include "group.h"

/** Why a group ends; others are told, so values never change. */
typedef enum xep_end_why {
    XEP_END_ASKED = 1,       /* xep_group_abort() */
    XEP_END_INTERRUPTED = 2, /* params.interrupted */
    XEP_END_SHRINK = 3,      /* xep_group_shrink() */
    XEP_END_DOUBT = 4,       /* it came of one that grew, and not all ranks may have it */
    XEP_END_LAST = XEP_END_DOUBT
} xep_end_why_t;

/** Ends the group, for this rank's own reason. Async-signal-safe. */
void xep_group_end(xep_group_t *group, xep_end_why_t why);

/**
 * Ends a group that this rank has made and will not return, as it does not know whether others do (group_grow.h). It
 * waits until they are told, for half a second at most.
 */
void xep_group_end_in_doubt(xep_group_t *group);

/** XEP_ERR_ABORTED, naming the rank, once any rank has ended the group so, else XEP_OK. */
xep_status_t xep_group_check_doubt(xep_group_t *group);

/** XEP_ERR_ABORTED, naming the rank and why, once any rank has aborted the group, else XEP_OK. Tells the others. */
xep_status_t xep_group_usable(xep_group_t *group);

/** Tells the ranks that are not mapped, unless that was done. Any thread; not in a signal handler. */
void xep_group_tell_end(xep_group_t *group);

#endif
