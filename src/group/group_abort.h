/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The end of a group before its time: one rank gives up, and all others hear of it at once.
 *
 *  1. The rank remembers that (group->aborted, and who and why in group->ended), writes the same into its line in the
 *     control heap of every mapped rank, and then rings there. Only stores, as a signal handler may do this.
 *  2. It tells ranks that are not mapped by control message, when it is in the library the next time: in the call that
 *     the abort ends, in its progress thread, in the destroy calls.
 *  3. A rank that hears of it does the same, once, with the same word: so all hear of it even if the first one dies in
 *     the middle of this.
 *
 * A waiting rank checks its doorbell in every round. Words of a rank that is out do not count: the others have gone on
 * without it.
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
 * Ends a group that this rank has made but will not return, as it does not know whether others do (group_grow.h). Waits
 * until they are told, for half a second at most.
 */
void xep_group_end_in_doubt(xep_group_t *group);

/** XEP_ERR_ABORTED, naming the rank, once any rank has ended the group so, else XEP_OK. */
xep_status_t xep_group_check_doubt(xep_group_t *group);

/** XEP_ERR_ABORTED, naming the rank and why, once any rank has aborted the group, else XEP_OK. Tells the others. */
xep_status_t xep_group_usable(xep_group_t *group);

/** Tells the ranks that are not mapped, unless that was done. Any thread; not in a signal handler. */
void xep_group_tell_end(xep_group_t *group);

#endif
