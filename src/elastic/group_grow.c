/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The waits are nested. With T the old group's timeout, members wait T for one another's words; so what a member does
 * before its word takes less: T/2 for all waits of the new group until it is made, T/4 for rank 0's waits for a
 * joiner.
 */
#include "group_grow.h"

#include <stdio.h>

#include "boot_grow.h"
#include "cpu.h"
#include "error.h"
#include "group.h"
#include "group_abort.h"
#include "log.h"
#include "watch.h"

enum { LOOK_MS = 100 /* most time in which rank 0 says nothing to the others */ };

static int32_t fraction_of(int32_t timeout_ms, int32_t parts)
{
    if (timeout_ms < 0) return timeout_ms;
    return timeout_ms / parts > 0 ? timeout_ms / parts : 1;
}

/* ---- 1: wait ---- */

static xep_status_t fail_late(const xep_grow_t *grow, const xep_grow_args_t *args, uint32_t count, int32_t timeout_ms)
{
    const char *name = grow->rendezvous->name;
    return xep_fail(XEP_ERR_TIMEOUT, "%u of %u joiners came in %d ms%s%.100s", count, args->joiners, timeout_ms,
                    name[0] == '\0' ? "" : " to ", name);
}

/*
 * On rank 0: looks for joiners for a while. XEP_INPROGRESS: not all are here. It does not wait for a word of the
 * group, and that joiners are missing is no error yet: so this is not xep_group_wait(). The next xep_grow_say(), at
 * most LOOK_MS later, notices an abort or a death.
 */
static xep_status_t look_out(xep_grow_t *grow, const xep_grow_args_t *args, int32_t timeout_ms, uint64_t deadline_ns)
{
    xep_backoff_t backoff;
    int32_t look_ms = fraction_of(grow->group->timeout_ms, 4);
    uint64_t until_ns = xep_deadline(look_ms > LOOK_MS || look_ms < 0 ? LOOK_MS : look_ms);
    if (deadline_ns < until_ns) until_ns = deadline_ns;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, until_ns);
    do {
        xep_group_progress(grow->group);
        if (xep_joiners_poll(grow->joiners) == args->joiners) return XEP_OK;
        if (xep_backoff_is_slow(&backoff) && xep_boot_interrupted(grow->group->boot))
            return xep_fail(XEP_ERR_ABORTED, "the caller stopped waiting for joiners");
    } while (xep_backoff_wait(&backoff, 0));
    if (xep_clock_ns() < deadline_ns) return XEP_INPROGRESS;
    return fail_late(grow, args, xep_joiners_poll(grow->joiners), timeout_ms);
}

/*
 * Closing may set errors of its own. The sentence is what xep_grow_say() will tell the others, so it is set again;
 * its status goes beside it.
 */
static void dismiss(xep_grow_t *grow)
{
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    xep_joiners_close(grow->joiners);
    grow->joiners = NULL;
    (void)xep_fail(XEP_ERR_PEER, "%s", reason);
}

typedef struct outlook {
    xep_grow_t *grow;
    const xep_grow_args_t *args;
} outlook_t;

static void explain(void *arg, char *text, size_t bytes)
{
    const outlook_t *outlook = arg;
    snprintf(text, bytes, "xep_group_grow: %u of %u joiners came", xep_joiners_poll(outlook->grow->joiners),
             outlook->args->joiners);
}

static xep_status_t await(xep_grow_t *grow, const xep_grow_args_t *args, xep_transport_open_fn open_transport,
                          xep_status_t status)
{
    int32_t timeout_ms = args->timeout_ms == 0 ? grow->group->timeout_ms : args->timeout_ms;
    uint64_t deadline_ns = xep_deadline(timeout_ms);
    int leads = grow->group->rank == 0;
    outlook_t outlook = {grow, args};
    xep_watch_t watch;
    if (status == XEP_OK && leads)
        status = xep_joiners_open(grow->group, args, grow->rendezvous, open_transport, &grow->joiners);
    xep_status_t said;
    xep_watch_begin(&watch, explain, &outlook, deadline_ns);
    do {
        if (status >= 0 && leads) status = look_out(grow, args, timeout_ms, deadline_ns);
        if (status == XEP_INPROGRESS) xep_watch_poll(&watch, xep_clock_ns());
        if (status < 0) dismiss(grow); /* the address is gone before anybody returns */
        said = xep_grow_say(grow, XEP_GROW_WAIT, status, args->joiners);
    } while (said == XEP_INPROGRESS);
    xep_watch_end(&watch);
    return said;
}

/* ---- 2: build ---- */

static xep_status_t build(xep_grow_t *grow, xep_transport_open_fn open_transport, xep_group_t **made_p)
{
    xep_boot_t *boot;
    int32_t timeout_ms = fraction_of(grow->group->timeout_ms, 2);
    xep_status_t status = grow->joiners == NULL ? XEP_OK : xep_joiners_welcome(grow->joiners);
    if (status == XEP_OK) status = xep_boot_grow_open(grow, timeout_ms, &boot);
    if (status == XEP_OK) status = xep_group_open(&grow->group->config, timeout_ms, boot, open_transport, made_p);
    return status;
}

/* ---- 3: settle ---- */

/* On rank 0. Errors of joiners count before its own: it may have failed because of them. */
static xep_status_t hear_joiners(xep_grow_t *grow, xep_status_t built)
{
    char reason[XEP_REASON_BYTES];
    xep_patience_t patience = xep_grow_patience(grow, grow->patience_ms);
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    if (built == XEP_OK || xep_joiners_have_failed(grow->joiners)) {
        xep_status_t status = xep_joiners_settle(grow->joiners, &patience);
        if (status != XEP_OK) return status;
    }
    return built == XEP_OK ? XEP_OK : xep_fail(built, "%s", reason);
}

static xep_status_t settle(xep_grow_t *grow, xep_status_t status)
{
    if (!grow->over && grow->joiners != NULL) status = hear_joiners(grow, status);
    status = xep_grow_say(grow, XEP_GROW_SETTLE, status, 0);
    if (grow->joiners != NULL) xep_joiners_tell(grow->joiners, status, grow->text);
    return status;
}

/* The wait may end with an error in the arguments of one member. */
xep_status_t xep_group_make_larger(xep_group_t *group, const xep_grow_args_t *args, const xep_rendezvous_t *rendezvous,
                                   xep_status_t status, xep_transport_open_fn open_transport, xep_group_t **group_p)
{
    xep_grow_t grow = {.group = group, .rendezvous = rendezvous, .patience_ms = fraction_of(group->timeout_ms, 4)};
    xep_group_t *made = NULL;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (xep_group_is_out(group, r))
            return xep_fail(XEP_ERR_PEER, "rank %u is out, but a group grows by all its ranks (shrink it first)", r);
    group->gathers_for = "xep_group_grow";
    status = await(&grow, args, open_transport, status);
    if (status == XEP_OK) {
        status = build(&grow, open_transport, &made);
        status = settle(&grow, status);
    }
    group->gathers_for = NULL;
    if (status == XEP_OK) {
        xep_boot_grow_end(made->boot);
        made->timeout_ms = group->timeout_ms;
        *group_p = made;
    } else {
        if (made != NULL && grow.in_doubt) xep_group_end_in_doubt(made);
        xep_group_drop(made);
        xep_log_rank((int)group->rank);
    }
    xep_joiners_close(grow.joiners);
    return status == XEP_OK ? XEP_OK : xep_fail(status, "%s", grow.text);
}
