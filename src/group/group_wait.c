/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A rank may have sent everything before it died: so a death ends the wait only if the words are still missing at a
 * second look, a slow round later.
 */
#include "group_wait.h"

#include "backoff.h"
#include "error.h"
#include "group_abort.h"
#include "group_doorbell.h"

/*
 * Questions are answered every 5 ms. A first sleep takes at most 250 us, and after three without news 2 ms: for so long
 * a rank may not notice a death or the deadline.
 */
enum { ANSWER_NS = 5 * 1000 * 1000, YIELDS = 12, SLEEP_NS = 250 * 1000, SLEEP_DOUBLES = 3 };

/*
 * XEP_INPROGRESS, or why there is no point in waiting longer. An abort counts first: its caller does not want to hear
 * of a deadline. Deaths come last, as they cost a system call for each rank of the host; and words of a rank can be
 * seen after its death, so it counts as dead only if a whole interval has brought nothing more.
 */
static xep_status_t check_hope(xep_group_t *group, xep_backoff_t *backoff, int spares, int in_time, int *dead_p)
{
    xep_status_t status = xep_group_usable(group);
    if (status != XEP_OK) return status;
    if (!in_time) return xep_fail(XEP_ERR_TIMEOUT, "deadline passed");
    if (!xep_backoff_is_slow(backoff)) return XEP_INPROGRESS;
    if (xep_boot_interrupted(group->boot)) {
        xep_group_end(group, XEP_END_INTERRUPTED);
        return xep_group_usable(group);
    }
    if (spares && group->left_out) return xep_group_fail_out(XEP_OUT_BY_OTHERS);
    int dead_before = *dead_p;
    status = xep_group_check_peers(group, spares);
    *dead_p = status != XEP_OK;
    return *dead_p && dead_before ? status : XEP_INPROGRESS;
}

/*
 * Explains the wait when half of its time has passed (once it sleeps, the clock is read in every round), or when the
 * process is asked.
 */
static void watch_round(xep_watch_t *watch, const xep_backoff_t *backoff)
{
    if (xep_watch_is_asked(watch)) xep_watch_poll(watch, xep_clock_ns());
    else if (!watch->warned && backoff->now_ns != 0) xep_watch_poll(watch, backoff->now_ns);
}

/*
 * Answers ranks whose waits have timed out, while this wait reads the clock in every round, and before it ends because
 * of them.
 */
static xep_status_t answer_round(xep_group_t *group, const xep_wait_t *wait, const xep_backoff_t *backoff,
                                 uint64_t *last_p)
{
    const int first = *last_p == 0;
    if (backoff->now_ns - *last_p < ANSWER_NS) return XEP_INPROGRESS;
    *last_p = backoff->now_ns;
    if (first) return XEP_INPROGRESS;
    if (wait->account != NULL) xep_group_answer(group, wait->account, wait->arg);
    return wait->hope == NULL ? XEP_INPROGRESS : wait->hope(wait->arg);
}

/** How a wait has rested so far, where ranks sleep. */
typedef struct rested {
    uint64_t since_ns; /* its first round; 0: none yet */
    uint32_t slept;    /* in a row, with nobody to end it */
} rested_t;

/*
 * The rank to sleep for; XEP_NO_RANK: no sleep yet. It takes a number of rounds and a time: a yield may return at once,
 * or when another rank has used up its time slice.
 */
static uint32_t sleeps_for(const xep_group_t *group, const xep_wait_t *wait, const xep_backoff_t *backoff,
                           rested_t *rested)
{
    if (wait->late == NULL || !xep_group_sleeps(group)) return XEP_NO_RANK;
    uint64_t now = xep_clock_ns();
    if (rested->since_ns == 0) rested->since_ns = now;
    return backoff->rounds < YIELDS || now - rested->since_ns < group->awake_ns ? XEP_NO_RANK : wait->late(wait->arg);
}

/*
 * Backs off for one round. If ranks sleep, it yields at first, as others may need but a moment; then it sleeps until
 * the late rank wakes it. News may also come from elsewhere, such as a death: so sleeps are short, and each one without
 * news is followed by a longer one.
 */
static int back_off_or_sleep(xep_group_t *group, const xep_wait_t *wait, xep_backoff_t *backoff, rested_t *rested)
{
    uint32_t rank = sleeps_for(group, wait, backoff, rested);
    uint64_t most = (uint64_t)SLEEP_NS << (rested->slept < SLEEP_DOUBLES ? rested->slept : SLEEP_DOUBLES);
    if (rank == XEP_NO_RANK || !xep_group_prepare_wait(group, rank)) return xep_group_backoff(group, backoff);
    rested->slept++;
    if (wait->look(wait->arg) != XEP_INPROGRESS || wait->late(wait->arg) != rank || xep_group_sleep(group, rank, most))
        rested->slept = 0;
    xep_group_finish_wait(group);
    return xep_backoff_slept(backoff);
}

/* A wait that has found nothing at its first look. */
static xep_status_t keep_looking(xep_group_t *group, const xep_wait_t *wait, xep_watch_t *watch)
{
    uint32_t every = wait->progress_every == 0 ? 1 : wait->progress_every;
    rested_t rested = {0};
    uint64_t answered_ns = 0;
    int dead = 0;
    xep_backoff_t backoff;
    xep_status_t status = XEP_INPROGRESS;
    xep_backoff_begin(&backoff, group->backoff, wait->deadline_ns);
    while (status == XEP_INPROGRESS) {
        if ((backoff.rounds + 1) % every == 0) xep_group_progress(group);
        int in_time = back_off_or_sleep(group, wait, &backoff, &rested);
        status = wait->look(wait->arg);
        if (status != XEP_INPROGRESS) break;
        watch_round(watch, &backoff);
        status = answer_round(group, wait, &backoff, &answered_ns);
        if (status != XEP_INPROGRESS) break;
        if (!wait->local) status = check_hope(group, &backoff, wait->spares, in_time, &dead);
        else if (!in_time) status = xep_fail(XEP_ERR_TIMEOUT, "deadline passed");
    }
    return status;
}

/* Looks first and last: what is there already is found before the clock, a death or the deadline is checked. */
xep_status_t xep_group_wait(xep_group_t *group, const xep_wait_t *wait)
{
    xep_watch_t watch;
    xep_status_t status = wait->look(wait->arg);
    if (status != XEP_INPROGRESS) return status;
    xep_watch_begin(&watch, wait->explain, wait->arg, wait->deadline_ns);
    status = keep_looking(group, wait, &watch);
    xep_watch_end(&watch);
    return status;
}

xep_status_t xep_group_explain(const xep_wait_t *wait, xep_status_t status)
{
    char what[400];
    if (status == XEP_OK || status == XEP_ERR_ABORTED || status == XEP_ERR_INVALID) return status;
    wait->explain(wait->arg, what, sizeof what);
    return xep_fail(status, "%.600s; %s", xep_last_error(), what);
}
