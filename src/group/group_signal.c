/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A rank signals itself, too: the waiting loop then needs no exception for it. What was missing is told with the error,
 * since a deadline that only says that it has passed helps nobody.
 */
#include "group_signal.h"

#include <stdio.h>

#include "backoff.h"
#include "error.h"
#include "group_account.h"
#include "group_out.h"
#include "group_wait.h"

/* For so long news of a death may be later than a connection that breaks: launchers tell within half a second. */
enum { NEWS_NS = 600 * 1000 * 1000 };

static xep_status_t look_for_dead(void *group)
{
    return xep_group_check_ended(group, 1) == XEP_OK ? XEP_INPROGRESS : XEP_ERR_PEER;
}

/* A rank that cannot be reached may have left since another has died: then the dead one is the reason. */
static void blame_dead(xep_group_t *group)
{
    char why[400];
    xep_wait_t wait = {.look = look_for_dead, .arg = group, .deadline_ns = xep_clock_ns() + NEWS_NS, .local = 1};
    snprintf(why, sizeof why, "%s", xep_last_error());
    if (xep_group_wait(group, &wait) != XEP_ERR_PEER) (void)xep_fail(XEP_ERR_PEER, "%s", why);
}

static xep_status_t explain(xep_group_t *group, const xep_wait_t *wait, xep_status_t status)
{
    if (status == XEP_ERR_PEER && !group->left_out) blame_dead(group);
    return xep_group_explain(wait, status);
}

/* ---- sending ---- */

typedef struct sending {
    xep_heap_wire_t *heap;
    const xep_group_signal_t *signal;
    uint32_t rank;
    size_t bytes;
} sending_t;

/* XEP_INPROGRESS from the wire is what a look says when it has to be made again. */
static xep_status_t try_signal(void *arg)
{
    const sending_t *sending = arg;
    const xep_group_signal_t *signal = sending->signal;
    return xep_heap_tell(sending->heap, sending->rank, signal->offset, sending->bytes, signal->word, signal->value);
}

/* Said at half the deadline and by XEP_EXPLAIN, while the wait goes on. */
static void explain_sending(void *arg, char *text, size_t bytes)
{
    const sending_t *sending = arg;
    snprintf(text, bytes, "%s: rank %u takes no signal", sending->signal->what, sending->rank);
}

xep_status_t xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                  uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < group->nranks; i++) {
        sending_t sending = {.heap = heap, .signal = signal, .rank = (group->rank + i) % group->nranks};
        xep_wait_t wait = {.look = try_signal,
                           .arg = &sending,
                           .deadline_ns = deadline_ns,
                           .spares = 1,
                           .explain = explain_sending};
        if (xep_group_is_out(group, sending.rank)) continue;
        sending.bytes = sending.rank == group->rank ? 0 : signal->bytes; /* ours are there already */
        xep_status_t status = xep_group_wait(group, &wait);
        if (status != XEP_OK) return explain(group, &wait, status);
    }
    return XEP_OK;
}

typedef struct flushing {
    xep_wire_t *wire;
    const char *what;
} flushing_t;

static xep_status_t try_flush(void *arg)
{
    xep_wire_t *wire = ((const flushing_t *)arg)->wire;
    return wire->ops->flush(wire);
}

static void explain_flushing(void *arg, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s: bytes to peers have not left", ((const flushing_t *)arg)->what);
}

/* A flush has no rank to name: the transport knows only that something has not left. */
xep_status_t xep_group_flush(xep_group_t *group, xep_heap_wire_t *heap, uint64_t deadline_ns, const char *what)
{
    flushing_t flushing = {.wire = &heap->wire, .what = what};
    xep_wait_t wait = {.look = try_flush, .arg = &flushing, .deadline_ns = deadline_ns, .explain = explain_flushing};
    return explain(group, &wait, xep_group_wait(group, &wait));
}

/* ---- receiving ---- */

typedef struct receiving {
    const xep_group_t *group;
    const xep_group_signal_t *signal;
    const char *words; /* of all ranks, here */
    uint32_t missing;  /* ranks before this one are here */
} receiving_t;

/* acquire: what its writer stored before the word is here with it. */
static uint64_t word_of(const receiving_t *receiving, uint32_t rank)
{
    const char *at = receiving->words + rank * receiving->signal->stride;
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)at, memory_order_acquire);
}

/* the first rank at or after from whose word is too small, or nranks */
static uint32_t find_missing(const receiving_t *receiving, uint32_t from)
{
    while (from < receiving->group->nranks &&
           (word_of(receiving, from) >= receiving->signal->value || xep_group_is_out(receiving->group, from)))
        from++;
    return from;
}

static xep_status_t look_for_words(void *arg)
{
    receiving_t *receiving = arg;
    receiving->missing = find_missing(receiving, receiving->missing);
    return receiving->missing == receiving->group->nranks ? XEP_OK : XEP_INPROGRESS;
}

/* "barrier: still missing: rank 1 5" */
static void explain_words(void *arg, char *text, size_t bytes)
{
    const receiving_t *receiving = arg;
    uint32_t nranks = receiving->group->nranks, r = receiving->missing;
    size_t used = (size_t)snprintf(text, bytes, "%s: still missing: rank", receiving->signal->what);
    for (; r < nranks && used + 24 < bytes; r = find_missing(receiving, r + 1))
        used += (size_t)snprintf(text + used, bytes - used, " %u", r);
    if (r < nranks) snprintf(text + used, bytes - used, " ...");
}

static void account_for_words(void *arg, xep_account_t *account)
{
    const receiving_t *receiving = arg;
    const xep_group_signal_t *signal = receiving->signal;
    uint32_t nranks = receiving->group->nranks;
    *account = (xep_account_t){.kind = signal->kind,
                               .number = signal->value,
                               .buffer = signal->buffer,
                               .opens = XEP_OPENS_DIRECTLY};
    if (signal->call != NULL) snprintf(account->mode, sizeof account->mode, "%s", signal->call);
    for (uint32_t r = receiving->missing; r < nranks; r = find_missing(receiving, r + 1))
        xep_account_add_late(account, r);
}

static xep_status_t hope_for_words(void *arg)
{
    const xep_hope_t *hope = &((const receiving_t *)arg)->signal->hope;
    return hope->ask == NULL ? XEP_INPROGRESS : hope->ask(hope->arg);
}

/* A group that goes on without ranks knows what to do: whoever is late is out. */
static void ask_ranks(xep_group_t *group, receiving_t *receiving, uint64_t begin_ns, uint64_t deadline_ns)
{
    xep_account_t account;
    if (group->goes_on || receiving->signal->kind == XEP_WAITS_END) return;
    account_for_words(receiving, &account);
    uint64_t ms = (deadline_ns - begin_ns) / 1000000;
    (void)xep_group_ask(group, &account, ms < INT32_MAX ? (int32_t)ms : INT32_MAX, XEP_ERR_TIMEOUT);
}

/* Ranks are looked at in order and not again: words only grow. */
xep_status_t xep_group_wait_words(xep_group_t *group, const xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                  uint64_t deadline_ns)
{
    receiving_t receiving = {.group = group,
                             .signal = signal,
                             .words = (const char *)heap->base + signal->word - group->rank * signal->stride};
    xep_wait_t wait = {.look = look_for_words,
                       .arg = &receiving,
                       .deadline_ns = deadline_ns,
                       .spares = 1,
                       .explain = explain_words,
                       .account = account_for_words,
                       .hope = hope_for_words};
    uint64_t begin_ns = xep_clock_ns();
    xep_status_t status = xep_group_wait(group, &wait);
    if (status == XEP_ERR_TIMEOUT) ask_ranks(group, &receiving, begin_ns, deadline_ns);
    return explain(group, &wait, status);
}
