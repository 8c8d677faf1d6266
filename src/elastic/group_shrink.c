/* SPDX-License-Identifier: BSD-3-Clause */

#include "group_shrink.h"

#include <stdio.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "group_abort.h"
#include "group_doorbell.h"
#include "group_out.h"
#include "log.h"
#include "watch.h"

enum {
    LOOK_NS = 100 * 1000 * 1000,    /* between two looks at who is alive */
    FLUSH_MS = 500,                 /* most time until the last words are on their way */
    REASON_NS = 1000 * 1000 * 1000, /* most time for finding out who has spoilt an attempt */
    LIST_BYTES = 200
};

typedef enum step { AGREE, BUILD, READY } step_t;

typedef struct work {
    xep_shrink_t shrink; /* first */
    xep_group_t *old, *made;
    const xep_shrink_args_t *args;
    xep_transport_open_fn open_transport;
    int32_t timeout_ms;
    step_t step;
    uint64_t deadline_ns, look_ns; /* of the step; when the ranks were looked at last */
    xep_watch_t watch;             /* of the step */
} work_t;

/* ---- waiting ---- */

/*
 * What a rank has sent before its end is still on its way, so only the second look counts; of one that has not said
 * anything yet, nothing is waited for.
 */
static void bury(work_t *work)
{
    xep_shrink_t *shrink = &work->shrink;
    for (uint32_t r = 0; r < shrink->nranks; r++) {
        xep_shrink_rank_t *of = &shrink->of[r];
        if (r == work->old->rank || (of->gone && xep_shrink_suspects(shrink, r))) continue;
        int gone = xep_group_has_died(work->old, r);
        if (gone && (of->gone || of->said == NULL)) xep_shrink_suspect(shrink, r, XEP_OUT_DIED);
        of->gone = (uint8_t)gone;
    }
}

static int is_late(const work_t *work, uint32_t rank)
{
    const xep_shrink_t *shrink = &work->shrink;
    uint64_t since;
    if (rank == work->old->rank || xep_shrink_suspects(shrink, rank)) return 0;
    switch (work->step) {
    case AGREE: return xep_agreement_waits_for(&shrink->agreement, rank, &since);
    case BUILD: return shrink->of[rank].late;
    case READY: return !xep_shrink_is_ready(shrink, rank);
    }
    return 0;
}

/* "3 5 7" */
static void list_late(const work_t *work, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < work->shrink.nranks && used + 16 < bytes; r++)
        if (is_late(work, r)) used += (size_t)snprintf(text + used, bytes - used, "%s%u", used == 0 ? "" : " ", r);
}

static void explain(void *arg, char *text, size_t bytes)
{
    static const char *const steps[] = {
        [AGREE] = "agreeing on who is left", [BUILD] = "making the group of these", [READY] = "until all have made it"};
    const work_t *work = arg;
    char list[LIST_BYTES];
    list_late(work, list, sizeof list);
    snprintf(text, bytes, "xep_group_shrink, %s: %s%s", steps[work->step],
             list[0] == '\0' ? "all have been heard" : "still missing: rank ", list);
}

/* While the ranks agree nothing is tried, and nothing is decided while they try. */
static void begin_step(work_t *work, step_t step)
{
    xep_watch_end(&work->watch); /* of the step before */
    work->step = step;
    work->shrink.builds = step != AGREE;
    work->deadline_ns = xep_deadline(work->timeout_ms);
    xep_watch_begin(&work->watch, explain, work, work->deadline_ns);
}

/* While the ranks agree each has its own time, from when it was asked: it may not have heard what this one knows. */
static int is_over(const work_t *work, uint32_t rank, uint64_t now)
{
    uint64_t since = 0;
    if (!is_late(work, rank)) return 0;
    if (work->step == AGREE) (void)xep_agreement_waits_for(&work->shrink.agreement, rank, &since);
    return now >= xep_deadline_from(since, work->timeout_ms);
}

/* Whoever is waited for is out, and the others get as long again. */
static void suspect_late(work_t *work, uint64_t now)
{
    for (uint32_t r = 0; r < work->shrink.nranks; r++)
        if (is_over(work, r, now)) xep_shrink_suspect(&work->shrink, r, XEP_OUT_LATE);
    begin_step(work, work->step);
}

/*
 * Each round of any wait of a shrink. These are not xep_group_wait(), which gives up at once on a group that has ended,
 * as the old one has, and at the first death. They look at whether this rank is out, at doubt, at what the others say
 * of their phases, at the caller, at the dead, and at the deadline, which ends a rank's part and not the wait.
 * XEP_INPROGRESS: nothing has ended it.
 */
static xep_status_t look(work_t *work)
{
    uint64_t now = xep_clock_ns();
    (void)work->old->transport->ops->progress(work->old->transport);
    if (xep_group_is_rung_out(work->old)) {
        work->shrink.left_out = 1;
        return xep_group_fail_out(XEP_OUT_BY_OTHERS);
    }
    xep_status_t status = xep_group_check_doubt(work->old);
    if (status == XEP_OK) status = xep_shrink_hear(&work->shrink);
    if (status != XEP_INPROGRESS) return status;
    if (now - work->look_ns >= LOOK_NS) {
        work->look_ns = now;
        if (xep_boot_interrupted(work->old->boot))
            return xep_fail(XEP_ERR_ABORTED, "the caller stopped waiting for a smaller group");
        bury(work);
    }
    xep_watch_poll(&work->watch, now);
    if (now >= work->deadline_ns) suspect_late(work, now);
    xep_shrink_say(&work->shrink);
    return XEP_INPROGRESS;
}

static xep_status_t wait_until(work_t *work, step_t step, int (*reached)(const work_t *work))
{
    xep_backoff_t backoff;
    xep_status_t status = XEP_INPROGRESS;
    begin_step(work, step);
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, UINT64_MAX);
    while ((status = look(work)) == XEP_INPROGRESS && !reached(work))
        (void)xep_backoff_wait(&backoff, atomic_load(&work->old->transport->moves));
    return status;
}

/* ---- 1: agree ---- */

static int is_agreed(const work_t *work)
{
    return !work->shrink.agreement.open;
}

/* ---- 2: build ---- */

/* Of an attempt without those that are suspected now. */
static uint64_t number_of(const work_t *work)
{
    return xep_ballot_count(&work->shrink.agreement.mine) + UINT64_C(1);
}

static int is_spoilt(const work_t *work)
{
    return work->shrink.tried != number_of(work);
}

/*
 * Of the waits inside an attempt: as soon as one more rank is suspected, the group that is being made is the wrong
 * one. XEP_OK of a look says that others are done with a group, which cannot be the one that this rank still makes.
 */
static xep_status_t patience(void *arg)
{
    work_t *work = arg;
    xep_status_t status = look(work);
    if (status == XEP_OK || (status == XEP_INPROGRESS && is_spoilt(work)))
        return xep_fail(XEP_ERR_PEER, "one more rank is suspected: the group is made anew without it");
    return status == XEP_INPROGRESS ? XEP_OK : status;
}

static xep_status_t build(work_t *work)
{
    xep_boot_t *boot;
    work->shrink.tried = number_of(work);
    work->shrink.built = 0;
    begin_step(work, BUILD);
    xep_status_t status = xep_boot_ctl_open(&work->shrink, work->timeout_ms, patience, work, &boot);
    if (status == XEP_OK)
        status = xep_group_open(&work->old->config, work->timeout_ms, boot, work->open_transport, &work->made);
    if (status == XEP_OK) xep_boot_follow(boot, work->old->boot);
    return status;
}

static void drop(work_t *work)
{
    xep_group_drop(work->made);
    work->made = NULL;
}

/*
 * An attempt has failed: because somebody has died, which is known a little later, or for a reason of this rank. To run
 * out of time is no error here.
 */
static xep_status_t find_spoiler(work_t *work, xep_status_t failed)
{
    xep_backoff_t backoff;
    char reason[XEP_SHRINK_TEXT];
    uint64_t until = xep_clock_ns() + REASON_NS;
    xep_status_t status = XEP_INPROGRESS;
    snprintf(reason, sizeof reason, "%.*s", XEP_SHRINK_TEXT - 1, xep_last_error());
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, UINT64_MAX);
    while (xep_clock_ns() < until && !is_spoilt(work) && (status = look(work)) == XEP_INPROGRESS)
        (void)xep_backoff_wait(&backoff, atomic_load(&work->old->transport->moves));
    if (is_spoilt(work)) return XEP_OK;
    return status == XEP_INPROGRESS || status == XEP_OK ? xep_fail(failed, "%s", reason) : status;
}

/* ---- 3: ready ---- */

/*
 * All others are ready for the group that this rank has made: those that are left, and those that are gone since. Of
 * whoever was gone before, nobody says anything of this attempt; and nobody has begun a later one.
 */
static int is_decided(const work_t *work)
{
    const xep_shrink_t *shrink = &work->shrink;
    if (work->made == NULL || shrink->built == 0) return 0;
    for (uint32_t r = 0; r < shrink->nranks; r++) {
        const xep_suspect_t *suspect = &shrink->agreement.mine.suspects[r];
        if (r == work->old->rank) continue;
        if (!xep_shrink_suspects(shrink, r)) {
            if (!xep_shrink_is_ready(shrink, r)) return 0;
        } else if (suspect->top > shrink->built || (suspect->top == shrink->built && suspect->count != 0)) {
            return 0;
        }
    }
    return 1;
}

static int is_ready_or_spoilt(const work_t *work)
{
    return is_spoilt(work) || is_decided(work);
}

/* ---- all ---- */

/* The last words: peers may hear them when this rank is in no call on the old group any more. */
static void say_last(work_t *work, xep_shrink_phase_t phase, xep_status_t status, const char *text)
{
    xep_state_t *mine = work->shrink.mine;
    mine->phase = phase;
    mine->status = status;
    snprintf(mine->text, sizeof mine->text, "%.*s", XEP_SHRINK_TEXT - 1, text);
    work->shrink.changed = 1;
    xep_shrink_say(&work->shrink);
    xep_ctl_leave(work->old, FLUSH_MS);
}

static xep_status_t check_least(const work_t *work)
{
    uint32_t left = work->shrink.nranks - xep_ballot_count(&work->shrink.agreement.mine);
    if (left >= work->args->least) return XEP_OK;
    return xep_fail(XEP_ERR_PEER, "%u of %u ranks are left (at least %u)", left, work->shrink.nranks,
                    work->args->least);
}

/* One time round. XEP_INPROGRESS: somebody has died, once more. */
static xep_status_t attempt(work_t *work)
{
    xep_status_t status = wait_until(work, AGREE, is_agreed);
    if (status != XEP_INPROGRESS) return status;
    if (is_decided(work)) return XEP_OK;
    drop(work);
    if ((status = check_least(work)) != XEP_OK) return status;
    if ((status = build(work)) != XEP_OK) {
        status = find_spoiler(work, status);
        return status == XEP_OK ? XEP_INPROGRESS : status;
    }
    if (is_spoilt(work)) return XEP_INPROGRESS; /* too late to be ready */
    work->shrink.built = work->shrink.tried;
    work->shrink.changed = 1;
    status = wait_until(work, READY, is_ready_or_spoilt);
    /* spoilt: the next time round is without one rank more, so there are no more of them than ranks */
    return status == XEP_INPROGRESS && !is_spoilt(work) ? XEP_OK : status;
}

/* The new group's ranks, by their numbers in the old one; and the old one knows who was left out. */
static void tell_origins(const work_t *work)
{
    const xep_boot_t *boot = work->made->boot;
    for (uint32_t r = 0; r < work->shrink.nranks; r++)
        if (xep_shrink_suspects(&work->shrink, r)) {
            (void)xep_group_put_out(work->old, r, xep_group_has_died(work->old, r) ? XEP_OUT_DIED : XEP_OUT_LATE);
            xep_group_ring_out(work->old, r);
        }
    for (uint32_t r = 0; work->args->origins != NULL && r < boot->nranks; r++)
        work->args->origins[r] = xep_boot_ctl_old(boot, r);
}

static xep_status_t run(work_t *work)
{
    xep_status_t status = XEP_INPROGRESS;
    for (uint32_t r = 0; r < work->shrink.nranks; r++)
        if (xep_group_is_out(work->old, r))
            xep_shrink_suspect(&work->shrink, r, (xep_out_reason_t)atomic_load(&work->old->out[r].reason));
    while (status == XEP_INPROGRESS) status = attempt(work);
    if (status == XEP_OK) {
        say_last(work, XEP_SHRINK_DONE, XEP_OK, "");
        tell_origins(work);
        return XEP_OK;
    }
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    if (!work->shrink.left_out) say_last(work, XEP_SHRINK_FAILED, status, reason);
    drop(work);
    return xep_fail(status, "%s", reason);
}

xep_status_t xep_group_make_smaller(xep_group_t *group, const xep_shrink_args_t *args,
                                    xep_transport_open_fn open_transport, xep_group_t **group_p)
{
    work_t work = {.old = group,
                   .args = args,
                   .open_transport = open_transport,
                   .timeout_ms = args->timeout_ms == 0 ? group->timeout_ms : args->timeout_ms};
    if (group->left_out) return xep_group_fail_out(XEP_OUT_BY_OTHERS);
    xep_status_t status = xep_group_check_doubt(group);
    if (status != XEP_OK) return status;
    if (atomic_exchange(&group->shrunk, 1))
        return xep_fail(XEP_ERR_INVALID, "the group was shrunk before (shrink the group that it became)");
    xep_group_end(group, XEP_END_SHRINK); /* others may wait for this rank in an operation */
    xep_group_tell_end(group);
    status = xep_shrink_open(&work.shrink, group);
    if (status == XEP_OK) status = run(&work);
    if (status == XEP_OK) *group_p = work.made;
    xep_watch_end(&work.watch);
    xep_shrink_close(&work.shrink);
    return status;
}
