/* SPDX-License-Identifier: BSD-3-Clause */

/** The one loop in which a rank waits for others. */
#ifndef XEP_GROUP_WAIT_H
#define XEP_GROUP_WAIT_H

#include "group.h"
#include "group_account.h"
#include "watch.h"

typedef struct xep_wait {
    xep_status_t (*look)(void *arg); /* XEP_INPROGRESS: not yet; all else ends the wait and is its result */
    void *arg;
    uint64_t deadline_ns;
    uint32_t progress_every;     /* rounds to one progress of the group; 0: each round. For a look that makes its own */
    uint32_t (*late)(void *arg); /* a rank that it waits for, XEP_NO_RANK: unknown; NULL: no rank tells this one when */
    int spares;                  /* ranks that are out are not waited for: their death does not matter */
    int local;              /* for threads of this process: neither an abort nor a death can keep them from coming */
    xep_account_fn account; /* the account for ranks that ask; NULL: does not answer */
    /* called after look, every few ms: XEP_INPROGRESS, or why there is no point in waiting longer; NULL: not called */
    xep_status_t (*hope)(void *arg);
    xep_watch_fn explain; /* says what it still waits for, at half of its time and when the process is asked */
} xep_wait_t;

/**
 * Calls look until it returns something other than XEP_INPROGRESS. In between the group makes progress, and this thread
 * backs off. Other ends, each after one more look:
 *   XEP_ERR_ABORTED xep_group_abort(), by whatever thread; or the caller's params.interrupted, which aborts the group
 *   XEP_ERR_TIMEOUT the deadline XEP_ERR_PEER a rank has died, and its last words have not ended the wait within 100 ms
 * The reason says only that.
 */
xep_status_t xep_group_wait(xep_group_t *group, const xep_wait_t *wait);

/**
 * For the caller of a wait that has ended with status: adds to this thread's reason what was waited for. An abort is
 * nobody's fault, and what is invalid has been said.
 */
xep_status_t xep_group_explain(const xep_wait_t *wait, xep_status_t status);

#endif
