/* SPDX-License-Identifier: BSD-3-Clause */

/* The first word counts: all later calls of this rank give the same reason. */
#include "group_abort.h"

#include <xep/elastic.h>

#include "error.h"
#include "group_ctl.h"
#include "group_doorbell.h"
#include "log.h"

enum { LAST_WORD_MS = 500 };

/* who | why << 32; who: the rank that began it, plus 1. 0: nobody */
static uint64_t word_of(uint32_t rank, xep_end_why_t why)
{
    return ((uint64_t)rank + 1) | (uint64_t)why << 32;
}

static uint32_t who(uint64_t word)
{
    return (uint32_t)word - 1;
}

/*
 * Sets the word, then the flag that announces it; returns whether this call was the first. Later ones set the flag,
 * too, as the first may not have done so yet. Uses only atomics and stores: a signal handler may interrupt a call that
 * is in here.
 */
static int end_by(xep_group_t *group, uint64_t word)
{
    uint64_t nobody = 0;
    int first = atomic_compare_exchange_strong(&group->ended, &nobody, word);
    atomic_store_explicit(&group->aborted, 1, memory_order_release);
    if (!first) return 0;
    xep_group_ring(group, word);
    xep_group_wake_all(group);
    return 1;
}

void xep_group_end(xep_group_t *group, xep_end_why_t why)
{
    end_by(group, word_of(group->rank, why));
}

void xep_group_end_in_doubt(xep_group_t *group)
{
    xep_group_end(group, XEP_END_DOUBT);
    xep_group_tell_end(group);
    xep_ctl_leave(group, LAST_WORD_MS);
}

/* An invalid word counts as an abort by the rank that sent it. */
static void take_end(xep_group_t *group, uint32_t from, uint64_t word)
{
    if (from >= group->nranks || xep_group_is_out(group, from)) return;
    if (who(word) >= group->nranks || word >> 32 < XEP_END_ASKED || word >> 32 > XEP_END_LAST)
        word = word_of(from, XEP_END_ASKED);
    /* counts also where this rank has begun to shrink the group for another reason */
    if (word >> 32 == XEP_END_DOUBT) atomic_store(&group->doubted, word);
    if (end_by(group, word)) xep_log(XEP_LOG_INFO, "rank %u says that rank %u has aborted the group", from, who(word));
}

/*
 * Looks whether another rank has ended the group, and then ends it here. By the doorbells of ranks that are mapped, and
 * by the control messages of others, whose word stays: after the end only a doubt is news. Who sent it is there before
 * the word is (group_ctl.c).
 */
static void hear(xep_group_t *group)
{
    uint32_t from;
    uint64_t word = xep_group_listen(group, &from);
    if (word != 0) take_end(group, from, word);
    word = atomic_load_explicit(&group->ctl_end, memory_order_acquire);
    int known = atomic_load_explicit(&group->aborted, memory_order_relaxed) != 0;
    if (word == 0 || (known && word >> 32 != XEP_END_DOUBT)) return;
    take_end(group, atomic_load_explicit(&group->ctl_by, memory_order_relaxed), word);
}

/* Best effort: a rank that cannot be reached is gone, or hears it from another rank. */
void xep_group_tell_end(xep_group_t *group)
{
    if (!group->connected || atomic_exchange_explicit(&group->told_end, 1, memory_order_relaxed)) return;
    uint64_t word = atomic_load(&group->ended);
    for (uint32_t r = 0; word != 0 && r < group->nranks; r++)
        if (!group->peers[r].mapped && !xep_group_is_out(group, r))
            (void)xep_ctl_send(group, r, XEP_CTL_END, 0, &word, sizeof word);
}

xep_status_t xep_group_check_doubt(xep_group_t *group)
{
    hear(group);
    uint64_t word = atomic_load(&group->doubted);
    if (word == 0) return XEP_OK;
    return xep_fail(XEP_ERR_ABORTED,
                    "rank %u does not know whether all ranks have this group, so it gave it up (go on with the old "
                    "group)",
                    who(word));
}

static const char *why_text(uint64_t word)
{
    switch (word >> 32) {
    case XEP_END_DOUBT: return "it does not know whether all ranks have it; go on with the old group";
    case XEP_END_INTERRUPTED: return "its caller stopped waiting";
    case XEP_END_SHRINK: return "it called xep_group_shrink()";
    default: return "it called xep_group_abort()";
    }
}

xep_status_t xep_group_usable(xep_group_t *group)
{
    hear(group);
    if (atomic_load_explicit(&group->aborted, memory_order_acquire) == 0) return XEP_OK;
    xep_group_tell_end(group);
    uint64_t word = atomic_load(&group->ended);
    if (word == 0) return xep_fail(XEP_ERR_ABORTED, "the group was given up while it was created");
    if (who(word) == group->rank)
        return xep_fail(XEP_ERR_ABORTED, "the group was aborted by this rank, %u: %s", who(word), why_text(word));
    return xep_fail(XEP_ERR_ABORTED, "the group was aborted by rank %u: %s", who(word), why_text(word));
}
