/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The waits are nested. With T the old group's timeout, members wait T for one another's words; so what a member does
 * before its word takes less: T/2 for all waits of the new group until it is made, T/4 for rank 0's waits for a
 * joiner.
 */
#include "group_grow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "group.h"
#include "group_abort.h"
#include "group_control.h"
#include "group_exchange.h"
#include "joiners.h"
#include "log.h"
#include "watch.h"

enum { LOOK_MS = 100 /* most time in which rank 0 says nothing to the others */, TEXT_BYTES = 224 };

/** Of one call of xep_group_grow(). */
typedef struct grow {
    xep_group_t *group; /* that grows */
    const xep_grow_args_t *args;
    xep_transport_open_fn open_transport;
    const xep_rendezvous_t *rendezvous; /* rank 0 alone */
    xep_joiners_t *joiners;             /* rank 0 alone */
    uint32_t count;                     /* of joiners */
    /* a member has failed, or all have settled: no more words. The same on all members, unless one of them has died */
    int over;
    int anew;            /* the last allgather has shown that rank 0 waits for joiners anew */
    int in_doubt;        /* this rank has made the group, and does not know whether all others know that all have */
    xep_status_t status; /* then */
    char text[TEXT_BYTES];
} grow_t;

/* ---- words ---- */

/** What a member says. Written by each, read by all. */
typedef struct word {
    uint32_t step;
    int32_t status;
    uint64_t number;
    char text[TEXT_BYTES];
} word_t;
_Static_assert(sizeof(word_t) == 16 + TEXT_BYTES, "exchanged as bytes: no padding");

static xep_status_t gather(grow_t *grow, const void *send, void *recv, size_t bytes)
{
    xep_status_t status = xep_group_gather(grow->group, send, recv, bytes);
    grow->anew = status == XEP_ERR_MISMATCH && xep_group_has_begun_anew(grow->group, 0);
    return status;
}

/* Members that cannot be heard any more notice it, too. */
static xep_status_t end(grow_t *grow, xep_status_t status, const char *text)
{
    grow->over = 1;
    grow->status = status;
    snprintf(grow->text, sizeof grow->text, "%.*s", TEXT_BYTES - 1, text);
    return status == XEP_OK ? XEP_OK : xep_fail(status, "%s", grow->text);
}

/* The lowest rank's error counts; other ranks name that rank, except for what rank 0 found out. */
static xep_status_t judge(grow_t *grow, const word_t *words, const word_t *mine)
{
    for (uint32_t r = 0; r < grow->group->nranks; r++) {
        const word_t *word = &words[r];
        char text[TEXT_BYTES + 32];
        if (word->status >= 0) continue;
        xep_status_t status = xep_status_told(word->status, XEP_ERR_PROTOCOL);
        if (r == 0 || r == grow->group->rank) snprintf(text, sizeof text, "%.*s", TEXT_BYTES - 1, word->text);
        else snprintf(text, sizeof text, "rank %u: %.*s", r, TEXT_BYTES - 1, word->text);
        return end(grow, status, text);
    }
    for (uint32_t r = 0; r < grow->group->nranks; r++)
        if (words[r].step != mine->step || (mine->step == XEP_GROW_EXCHANGE && words[r].number != mine->number)) {
            char text[TEXT_BYTES];
            snprintf(text, sizeof text,
                     "rank %u is at step %u with %" PRIu64 " bytes, this rank at step %u with %" PRIu64, r,
                     words[r].step, words[r].number, mine->step, mine->number);
            return end(grow, XEP_ERR_PROTOCOL, text);
        }
    /* all are well and at the same step: rank 0 alone sees the joiners, and so says how far these are */
    return words[0].status == XEP_OK ? XEP_OK : XEP_INPROGRESS;
}

/*
 * Tells the others how far this member is, and hears them. number: bytes, or the count. XEP_INPROGRESS: rank 0 says so.
 * An error of one member is the result of all, and over is set.
 */
static xep_status_t tell(grow_t *grow, xep_grow_step_t step, xep_status_t status, uint64_t number)
{
    word_t mine = {.step = step, .status = status, .number = number},
           *words = calloc(grow->group->nranks, sizeof *words);
    if (grow->over) {
        free(words);
        return grow->status == XEP_OK ? XEP_OK : xep_fail(grow->status, "%s", grow->text);
    }
    if (status < 0) snprintf(mine.text, sizeof mine.text, "%.*s", TEXT_BYTES - 1, xep_last_error());
    if (words == NULL) return end(grow, XEP_ERR_NO_MEMORY, "no memory for the words of all ranks");
    if (step == XEP_GROW_WAIT) xep_group_gathers_for(grow->group, "xep_group_grow");
    xep_status_t said = gather(grow, &mine, words, sizeof mine);
    if (grow->anew && step == XEP_GROW_WAIT && status >= 0) {
        said = XEP_INPROGRESS;
    } else if (said != XEP_OK) {
        /* the others may have heard that this rank is well, and have taken the group */
        grow->in_doubt = step == XEP_GROW_SETTLE && status == XEP_OK;
        said = end(grow, said, xep_last_error());
    } else {
        said = judge(grow, words, &mine);
        if (said >= 0 && step == XEP_GROW_WAIT && words[0].number != 0) grow->count = (uint32_t)words[0].number;
        if (said == XEP_OK && step == XEP_GROW_SETTLE) said = end(grow, XEP_OK, "");
    }
    free(words);
    return said;
}

static int32_t fraction_of(int32_t timeout_ms, int32_t parts)
{
    if (timeout_ms < 0) return timeout_ms;
    return timeout_ms / parts > 0 ? timeout_ms / parts : 1;
}

/* ---- 1: wait ---- */

static xep_status_t fail_late(const grow_t *grow, int32_t timeout_ms)
{
    const char *name = grow->rendezvous->name;
    return xep_fail(XEP_ERR_TIMEOUT, "%u of %u joiners came in %d ms%s%.100s", xep_joiners_poll(grow->joiners),
                    grow->args->joiners, timeout_ms, name[0] == '\0' ? "" : " to ", name);
}

/*
 * On rank 0: looks for joiners for a while. XEP_INPROGRESS: not all are here. It does not wait for a word of the group,
 * and that joiners are missing is no error yet: so this is not xep_group_wait(). The next tell(), at most LOOK_MS
 * later, notices an abort or a death.
 */
static xep_status_t look_out(grow_t *grow, int32_t timeout_ms, uint64_t deadline_ns)
{
    xep_backoff_t backoff;
    int32_t look_ms = fraction_of(grow->group->timeout_ms, 4);
    uint64_t until_ns = xep_deadline(look_ms > LOOK_MS || look_ms < 0 ? LOOK_MS : look_ms);
    if (deadline_ns < until_ns) until_ns = deadline_ns;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, until_ns);
    do {
        xep_group_progress(grow->group);
        if (xep_joiners_poll(grow->joiners) == grow->args->joiners) return XEP_OK;
        if (xep_backoff_is_slow(&backoff) && xep_boot_interrupted(grow->group->boot))
            return xep_fail(XEP_ERR_ABORTED, "the caller stopped waiting for joiners");
    } while (xep_backoff_wait(&backoff, 0));
    if (xep_clock_ns() < deadline_ns) return XEP_INPROGRESS;
    return fail_late(grow, timeout_ms);
}

/*
 * Closing may set errors of its own. The sentence is what tell() will tell the others, so it is set again; its status
 * goes beside it.
 */
static void dismiss(grow_t *grow)
{
    char reason[XEP_REASON_BYTES];
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    xep_joiners_close(grow->joiners);
    grow->joiners = NULL;
    (void)xep_fail(XEP_ERR_PEER, "%s", reason);
}

static void explain(void *arg, char *text, size_t bytes)
{
    const grow_t *grow = arg;
    snprintf(text, bytes, "xep_group_grow: %u of %u joiners came", xep_joiners_poll(grow->joiners),
             grow->args->joiners);
}

static xep_status_t await(grow_t *grow, xep_status_t status)
{
    const xep_grow_args_t *args = grow->args;
    int32_t timeout_ms = args->timeout_ms == 0 ? grow->group->timeout_ms : args->timeout_ms;
    uint64_t deadline_ns = xep_deadline(timeout_ms);
    int leads = grow->group->rank == 0;
    xep_watch_t watch;
    if (status == XEP_OK && leads)
        status = xep_joiners_open(grow->group, args, grow->rendezvous, grow->open_transport, &grow->joiners);
    xep_status_t said;
    xep_watch_begin(&watch, explain, grow, deadline_ns);
    do {
        if (status >= 0 && leads) status = look_out(grow, timeout_ms, deadline_ns);
        if (status == XEP_INPROGRESS) xep_watch_poll(&watch, xep_clock_ns());
        if (status < 0) dismiss(grow); /* the address is gone before anybody returns */
        said = tell(grow, XEP_GROW_WAIT, status, args->joiners);
    } while (said == XEP_INPROGRESS);
    xep_watch_end(&watch);
    return said;
}

/* ---- 2: build ---- */

/*
 * An allgather of the new group, by the members:
 *  1. rank 0 takes what the joiners give.
 *  2. all say that they are here, how many bytes they give, and whether all is well.
 *  3. an allgather in which each gives its own bytes and those of joiners, which rank 0 alone has.
 *  4. rank 0 gives all of it to the joiners.
 *
 * A member that has failed says so in place of 2, where the others wait for it.
 */

typedef struct grow_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    grow_t *grow;
    uint32_t number; /* of the last allgather */
} grow_boot_t;

/* Between looks at what joiners say. */
static xep_status_t look(void *arg)
{
    grow_t *grow = arg;
    xep_group_progress(grow->group);
    if (xep_boot_interrupted(grow->group->boot))
        return xep_fail(XEP_ERR_ABORTED, "the caller stopped waiting for joiners");
    return XEP_OK;
}

/* For what a joiner is to say. */
static xep_patience_t patience_of(grow_t *grow)
{
    return (xep_patience_t){.deadline_ns = xep_deadline(fraction_of(grow->group->timeout_ms, 4)),
                            .look = look,
                            .arg = grow};
}

/* given: this member's bytes, and those of joiners behind, as it has them. */
static xep_status_t share(grow_t *grow, const char *given, char *recv, size_t bytes)
{
    const xep_group_t *group = grow->group;
    size_t stride = (grow->count + UINT64_C(1)) * bytes;
    char *all = malloc(group->nranks * stride);
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    xep_status_t status = gather(grow, given, all, stride);
    for (uint32_t r = 0; status == XEP_OK && r < group->nranks; r++) memcpy(recv + r * bytes, all + r * stride, bytes);
    if (status == XEP_OK)
        memcpy(recv + group->nranks * bytes, all + bytes, grow->count * bytes); /* as rank 0 has them */
    free(all);
    return status;
}

static xep_status_t grow_allgather(xep_boot_t *base, const void *send, void *recv, size_t bytes)
{
    grow_boot_t *boot = (grow_boot_t *)base;
    grow_t *grow = boot->grow;
    xep_status_t status = XEP_OK;
    boot->number++;
    char *given = calloc(grow->count + UINT64_C(1), bytes);
    if (given == NULL) status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u joiners", grow->count);
    else memcpy(given, send, bytes);
    xep_patience_t patience = patience_of(grow);
    if (status == XEP_OK && grow->joiners != NULL)
        status = xep_joiners_take(grow->joiners, boot->number, given + bytes, bytes, &patience);
    status = tell(grow, XEP_GROW_EXCHANGE, status, bytes);
    if (status == XEP_OK) {
        status = share(grow, given, recv, bytes);
        if (status != XEP_OK) status = end(grow, status, xep_last_error());
    }
    free(given);
    if (status != XEP_OK || grow->joiners == NULL) return status;
    return xep_joiners_give(grow->joiners, boot->number, recv, base->nranks * bytes);
}

/* Interrupts waits over the new group's own connections, during which rank 0 does not listen to joiners. */
static int interrupted(void *ctx)
{
    const grow_t *grow = ctx;
    return (grow->joiners != NULL && xep_joiners_have_failed(grow->joiners)) || xep_boot_interrupted(grow->group->boot);
}

static xep_status_t build(grow_t *grow, xep_group_t **made_p)
{
    const xep_group_t *group = grow->group;
    int32_t timeout_ms = fraction_of(group->timeout_ms, 2);
    xep_status_t status = grow->joiners == NULL ? XEP_OK : xep_joiners_welcome(grow->joiners);
    if (status != XEP_OK) return status;
    grow_boot_t *boot = xep_boot_new(sizeof *boot, (xep_boot_t){.name = "grow",
                                                                .allgather = grow_allgather,
                                                                .rank = group->rank,
                                                                .nranks = group->nranks + grow->count,
                                                                .timeout_ms = timeout_ms,
                                                                .interrupted = interrupted,
                                                                .interrupted_ctx = grow});
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->grow = grow;
    return xep_group_open(&group->config, timeout_ms, &boot->boot, grow->open_transport, made_p);
}

/* ---- 3: settle ---- */

/* On rank 0. Errors of joiners count before its own: it may have failed because of them. */
static xep_status_t hear_joiners(grow_t *grow, xep_status_t built)
{
    char reason[XEP_REASON_BYTES];
    xep_patience_t patience = patience_of(grow);
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    if (built == XEP_OK || xep_joiners_have_failed(grow->joiners)) {
        xep_status_t status = xep_joiners_settle(grow->joiners, &patience);
        if (status != XEP_OK) return status;
    }
    return built == XEP_OK ? XEP_OK : xep_fail(built, "%s", reason);
}

static xep_status_t settle(grow_t *grow, xep_status_t status)
{
    if (!grow->over && grow->joiners != NULL) status = hear_joiners(grow, status);
    status = tell(grow, XEP_GROW_SETTLE, status, 0);
    if (grow->joiners != NULL) xep_joiners_tell(grow->joiners, status, grow->text);
    return status;
}

/* Steps 2 and 3, again and again where rank 0 turns out to wait for joiners anew. */
static xep_status_t make(grow_t *grow, xep_group_t **made_p)
{
    xep_status_t status = XEP_OK;
    while (status == XEP_OK) {
        status = build(grow, made_p);
        status = settle(grow, status);
        if (!grow->anew || grow->in_doubt) break;
        xep_group_drop(*made_p);
        *made_p = NULL;
        grow->over = 0;
        status = await(grow, XEP_OK);
    }
    return status;
}

/* The wait may end with an error in the arguments of one member. */
xep_status_t xep_group_make_larger(xep_group_t *group, const xep_grow_args_t *args, const xep_rendezvous_t *rendezvous,
                                   xep_status_t status, xep_transport_open_fn open_transport, xep_group_t **group_p)
{
    grow_t grow = {.group = group, .args = args, .open_transport = open_transport, .rendezvous = rendezvous};
    xep_group_t *made = NULL;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (xep_group_is_out(group, r))
            return xep_fail(XEP_ERR_PEER, "rank %u is out, but a group grows by all its ranks (shrink it first)", r);
    status = await(&grow, status);
    if (status == XEP_OK) status = make(&grow, &made);
    xep_group_gathers_for(group, NULL);
    if (status == XEP_OK) {
        xep_boot_follow(made->boot, group->boot);
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
