/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An allgather of the new group, by the members:
 *  1. rank 0 takes what the joiners give.
 *  2. all say that they are here, how many bytes they give, and whether all is well.
 *  3. an allgather of the members' bytes, and one of the joiners', which rank 0 alone has.
 *  4. rank 0 gives all of it to the joiners.
 *
 * A member that has failed says so in place of 2, where the others wait for it.
 */
#include "boot_grow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "group_control.h"

/** What a member says. Written by each, read by all. */
typedef struct word {
    uint32_t step;
    int32_t status;
    uint64_t number;
    char text[XEP_GROW_TEXT];
} word_t;
_Static_assert(sizeof(word_t) == 16 + XEP_GROW_TEXT, "exchanged as bytes: no padding");

typedef struct grow_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_grow_t *grow;
    uint32_t number; /* of the last allgather */
} grow_boot_t;

/* ---- words ---- */

static xep_status_t end(xep_grow_t *grow, xep_status_t status, const char *text)
{
    grow->over = 1;
    grow->status = status;
    snprintf(grow->text, sizeof grow->text, "%.*s", XEP_GROW_TEXT - 1, text);
    return status == XEP_OK ? XEP_OK : xep_fail(status, "%s", grow->text);
}

/* Ends with the last error: the members cannot be heard any more, and notice that, too. */
static xep_status_t end_here(xep_grow_t *grow, xep_status_t status)
{
    char text[XEP_GROW_TEXT];
    snprintf(text, sizeof text, "%.*s", XEP_GROW_TEXT - 1, xep_last_error());
    return end(grow, status, text);
}

/* The lowest rank's error counts; other ranks name that rank, except for what rank 0 found out. */
static xep_status_t judge(xep_grow_t *grow, const word_t *words, const word_t *mine)
{
    for (uint32_t r = 0; r < grow->group->nranks; r++) {
        const word_t *word = &words[r];
        char text[XEP_GROW_TEXT + 32];
        if (word->status >= 0) continue;
        xep_status_t status = word->status >= XEP_ERR_BROKEN ? (xep_status_t)word->status : XEP_ERR_PROTOCOL;
        if (r == 0 || r == grow->group->rank) snprintf(text, sizeof text, "%.*s", XEP_GROW_TEXT - 1, word->text);
        else snprintf(text, sizeof text, "rank %u: %.*s", r, XEP_GROW_TEXT - 1, word->text);
        return end(grow, status, text);
    }
    for (uint32_t r = 0; r < grow->group->nranks; r++)
        if (words[r].step != mine->step || (mine->step == XEP_GROW_EXCHANGE && words[r].number != mine->number)) {
            char text[XEP_GROW_TEXT];
            snprintf(text, sizeof text,
                     "rank %u is at step %u with %" PRIu64 " bytes, this rank at step %u with %" PRIu64, r,
                     words[r].step, words[r].number, mine->step, mine->number);
            return end(grow, XEP_ERR_PROTOCOL, text);
        }
    /* all are well and at the same step: rank 0 alone sees the joiners, and so says how far these are */
    return (xep_status_t)words[0].status;
}

xep_status_t xep_grow_say(xep_grow_t *grow, xep_grow_step_t step, xep_status_t status, uint64_t number)
{
    word_t mine = {.step = step, .status = status, .number = number},
           *words = calloc(grow->group->nranks, sizeof *words);
    if (grow->over) {
        free(words);
        return grow->status == XEP_OK ? XEP_OK : xep_fail(grow->status, "%s", grow->text);
    }
    if (status < 0) snprintf(mine.text, sizeof mine.text, "%.*s", XEP_GROW_TEXT - 1, xep_last_error());
    if (words == NULL) return end(grow, XEP_ERR_NO_MEMORY, "no memory for the words of all ranks");
    xep_status_t said = xep_group_gather(grow->group, &mine, words, sizeof mine);
    if (said != XEP_OK) {
        /* the others may have heard that this rank is well, and have taken the group */
        grow->in_doubt = step == XEP_GROW_SETTLE && status == XEP_OK;
        said = end_here(grow, said);
    } else {
        said = judge(grow, words, &mine);
        if (said >= 0 && step == XEP_GROW_WAIT && words[0].number != 0) grow->count = (uint32_t)words[0].number;
        if (said == XEP_OK && step == XEP_GROW_SETTLE) said = end(grow, XEP_OK, "");
    }
    free(words);
    return said;
}

/* ---- allgathers ---- */

/* Between looks at what joiners say. */
static xep_status_t look(void *arg)
{
    xep_grow_t *grow = arg;
    xep_group_progress(grow->group);
    if (xep_boot_interrupted(grow->group->boot))
        return xep_fail(XEP_ERR_ABORTED, "the caller stopped waiting for joiners");
    return XEP_OK;
}

xep_patience_t xep_grow_patience(xep_grow_t *grow, int32_t timeout_ms)
{
    return (xep_patience_t){.deadline_ns = xep_deadline(timeout_ms), .look = look, .arg = grow};
}

/* recv has the members' bytes in front, where they belong; what rank 0 has of joiners goes behind them. */
static xep_status_t share(const grow_boot_t *boot, const void *send, char *recv, const char *given, size_t bytes)
{
    xep_group_t *group = boot->grow->group;
    size_t behind = boot->grow->count * bytes;
    xep_status_t status = xep_group_gather(group, send, recv, bytes);
    if (status != XEP_OK) return status;
    char *all = malloc(group->nranks * behind);
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    status = xep_group_gather(group, given, all, behind);
    if (status == XEP_OK) memcpy(recv + group->nranks * bytes, all, behind); /* rank 0's are the first */
    free(all);
    return status;
}

static xep_status_t grow_allgather(xep_boot_t *base, const void *send, void *recv, size_t bytes)
{
    grow_boot_t *boot = (grow_boot_t *)base;
    xep_grow_t *grow = boot->grow;
    xep_status_t status = XEP_OK;
    boot->number++;
    char *given = calloc(grow->count, bytes);
    if (given == NULL) status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u joiners", grow->count);
    xep_patience_t patience = xep_grow_patience(grow, grow->patience_ms);
    if (status == XEP_OK && grow->joiners != NULL)
        status = xep_joiners_take(grow->joiners, boot->number, given, bytes, &patience);
    status = xep_grow_say(grow, XEP_GROW_EXCHANGE, status, bytes);
    if (status == XEP_OK) {
        status = share(boot, send, recv, given, bytes);
        if (status != XEP_OK) status = end_here(grow, status);
    }
    free(given);
    if (status != XEP_OK || grow->joiners == NULL) return status;
    return xep_joiners_give(grow->joiners, boot->number, recv, base->nranks * bytes);
}

static const xep_boot_ops_t grow_ops = {.name = "grow",
                                        .allgather = grow_allgather,
                                        .dead_rank = xep_boot_knows_no_dead,
                                        .close = xep_boot_free};

/* Interrupts waits over the new group's own connections, during which rank 0 does not listen to joiners. */
static int interrupted(void *ctx)
{
    const xep_grow_t *grow = ((const grow_boot_t *)ctx)->grow;
    return (grow->joiners != NULL && xep_joiners_have_failed(grow->joiners)) || xep_boot_interrupted(grow->group->boot);
}

xep_status_t xep_boot_grow_open(xep_grow_t *grow, int32_t timeout_ms, xep_boot_t **boot_p)
{
    const xep_group_t *group = grow->group;
    grow_boot_t *boot = xep_boot_new(sizeof *boot, &grow_ops, group->rank, group->nranks + grow->count, timeout_ms);
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->boot.interrupted = interrupted;
    boot->boot.interrupted_ctx = boot;
    boot->grow = grow;
    *boot_p = &boot->boot;
    return XEP_OK;
}

void xep_boot_grow_end(xep_boot_t *base)
{
    grow_boot_t *boot = (grow_boot_t *)base;
    base->interrupted = boot->grow->group->boot->interrupted;
    base->interrupted_ctx = boot->grow->group->boot->interrupted_ctx;
    boot->grow = NULL;
}
