/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A rank that died may have sent everything before: so a death ends the wait only when a second look, a slow turn
 * later, finds that what was waited for is still not there.
 */
#include "group_wait.h"

#include "error.h"
#include "log.h"

/*
 * XEP_INPROGRESS, or why there is no point in waiting longer. An abort counts first: who called it does not want to
 * hear of a deadline. Deaths last, as that costs a system call for each rank of the host; and what a rank has written
 * is seen even after its death, so it is believed dead only when a whole interval has brought nothing more.
 */
static xep_status_t check_hope(xep_group_t *group, xep_rest_t *rest, int spares, int in_time, int *dead_p)
{
    xep_status_t status = xep_group_usable(group);
    if (status != XEP_OK) return status;
    if (!in_time) return xep_fail(XEP_ERR_TIMEOUT, "deadline passed");
    if (!xep_rest_is_slow(rest)) return XEP_INPROGRESS;
    if (xep_boot_interrupted(group->boot)) {
        atomic_store(&group->aborted, 1);
        return xep_group_usable(group);
    }
    int dead_before = *dead_p;
    status = xep_group_check_peers(group, spares);
    *dead_p = status != XEP_OK;
    return *dead_p && dead_before ? status : XEP_INPROGRESS;
}

/* A wait that is going to fail says so while there is time to look at the processes. */
static void warn_late(const xep_wait_t *wait, uint64_t begin_ns, uint64_t now_ns)
{
    char text[512] = "";
    wait->explain(wait->arg, text, sizeof text);
    xep_log(XEP_LOG_WARN, "half of the deadline has passed, after %.1f s: %s", (double)(now_ns - begin_ns) / 1e9, text);
}

/* When half of it has passed. The clock is looked at here first where a wait is slow enough to look at it anyway. */
static int is_half_over(const xep_wait_t *wait, const xep_rest_t *rest, uint64_t *begin_p)
{
    if (wait->explain == NULL || wait->deadline_ns == UINT64_MAX || rest->now_ns == 0) return 0;
    if (*begin_p == 0) *begin_p = rest->now_ns;
    return rest->now_ns - *begin_p > wait->deadline_ns - rest->now_ns && rest->now_ns < wait->deadline_ns;
}

/* The look comes first and last: what is there already is found before the clock, a death or the deadline is asked. */
xep_status_t xep_group_wait(xep_group_t *group, const xep_wait_t *wait)
{
    uint64_t begin_ns = 0;
    int warned = 0;
    uint32_t every = wait->progress_every == 0 ? 1 : wait->progress_every;
    int dead = 0;
    xep_rest_t rest;
    xep_status_t status = wait->look(wait->arg);
    xep_rest_begin(&rest, group->spins, wait->deadline_ns);
    while (status == XEP_INPROGRESS) {
        if ((rest.turns + 1) % every == 0) xep_group_progress(group);
        int in_time = xep_group_rest(group, &rest);
        status = wait->look(wait->arg);
        if (status != XEP_INPROGRESS) break;
        if (!warned && is_half_over(wait, &rest, &begin_ns)) {
            warn_late(wait, begin_ns, rest.now_ns);
            warned = 1;
        }
        if (!wait->local) status = check_hope(group, &rest, wait->spares, in_time, &dead);
        else if (!in_time) status = xep_fail(XEP_ERR_TIMEOUT, "deadline passed");
    }
    return status;
}
