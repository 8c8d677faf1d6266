/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The barrier and the allgather of a connected group, over the control heap.
 *
 * The heap has the doorbells (group_doorbell.h), then a line for each rank, which that rank alone writes, and behind
 * them two areas with a share of each. Then come the accounts (group_account.h). Every word only grows, so nothing is
 * ever cleared, and a late rank still finds what it looks for.
 *
 * barrier n: line[self].barriers = n at every rank; done when own line[r].barriers >= n for all r.
 *
 * allgather, in rounds of SHARE_BYTES from each rank; round n of all that the group has ever had, in the area n % 2:
 *  1. to every rank: the share, then  line[self].rounds = n.
 *  2. when own line[r].rounds >= n for all r: the shares are checked and copied out.
 *
 * Why a share is never overwritten before it is read: r writes that of round n + 2 once round n + 1 is complete there.
 * That took this rank's share of round n + 1, which it sends after it has copied those of round n out. The same holds
 * for the share as the source of puts. A rank that gives up in the middle of a round takes part in no other one before
 * that has ended: called again, it goes on with that round and its share, which others may have read by then, and waits
 * for what was missing.
 *
 * What can go wrong: ranks that make different calls meet in the same round. Each share names its allgather, the call
 * that this is within and how many bytes it gathers, so all ranks find out in that round: it is the last one of this
 * allgather, for all of them, and the next call works.
 *
 * A rank that has given up a round and makes another call then ends that round first. If there were to be more of them,
 * its share of the next one is of no call: all others find a difference there, and nobody waits for more. Why all ranks
 * are at the same round then: the last round of an allgather is the first one in which two shares differ, or the one
 * with its last bytes, and whoever ends a round sees the same shares. One who has left knows it by its own share, and
 * one who gave up in that round, and leaves later, finds the difference when it ends it.
 */

#include "group_control.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "error.h"
#include "group_abort.h"
#include "group_account.h"
#include "group_doorbell.h"
#include "group_out.h"
#include "group_signal.h"
#include "trace.h"

/** Of one rank; written by it at every rank. */
typedef struct line {
    uint64_t barriers, rounds; /* entered so far */
    uint64_t pad[6];
} line_t;
static_assert(sizeof(line_t) == 64, "one writer a cache line");

enum { SHARE_BYTES = 4072 };

/** What a rank gives in a round of an allgather; written by it, read by the others. */
typedef struct share {
    uint64_t call;   /* which allgather, from 1 */
    uint64_t bytes;  /* that each rank gives, in all rounds together */
    uint64_t within; /* index in calls[], and above that which allgather of the call it is */
    uint8_t data[SHARE_BYTES];
} share_t;
static_assert(sizeof(share_t) == 4096, "wire format");

/* what allgathers belong to, as users know it; the first: they are called for themselves */
static const char *const calls[] = {"xep_group_allgather", "xep_buffer_create",   "xep_buffer_follow", "xep_group_grow",
                                    "xep_weights_create",  "xep_weights_destroy", "xep_weights_reduce"};
enum { NCALLS = sizeof calls / sizeof calls[0], CALL_BITS = 8 };

static uint64_t find_call(const xep_group_t *group)
{
    uint64_t i = NCALLS - 1;
    while (i > 0 && (group->gathers_for == NULL || strcmp(calls[i], group->gathers_for) != 0)) i--;
    return (uint64_t)group->gathers_of << CALL_BITS | i;
}

static const char *name_call(uint64_t within)
{
    const uint64_t call = within % (1 << CALL_BITS);
    return call < NCALLS ? calls[call] : "another call";
}

/* The same in every rank's heap: a word of the line that rank writes. */
static uint64_t word_offset(const xep_group_t *group, uint32_t rank, size_t word)
{
    return xep_group_doorbells_bytes(group->nranks) + rank * sizeof(line_t) + word;
}

/* Two areas, used in turn. */
static uint64_t share_offset(const xep_group_t *group, uint64_t number, uint32_t rank)
{
    return word_offset(group, group->nranks, 0) + (number % 2 * group->nranks + rank) * sizeof(share_t);
}

static share_t *share_of(const xep_group_t *group, uint64_t number, uint32_t rank)
{
    return (share_t *)(void *)((char *)group->control->base + share_offset(group, number, rank));
}

/* Behind the shares. */
static uint64_t accounts_offset(const xep_group_t *group)
{
    return share_offset(group, 1, group->nranks);
}

xep_status_t xep_group_open_control(xep_group_t *group)
{
    uint64_t bytes = accounts_offset(group) + xep_group_accounts_bytes(group->nranks);
    xep_status_t status = group->transport->ops->heap_open(group->transport, bytes, &group->control);
    return status == XEP_OK ? xep_group_accounts_open(group, accounts_offset(group)) : status;
}

/*
 * Sends this rank's word to all and waits for theirs. Its last signals should be on their way before it stops making
 * progress; a peer that has them all may be gone by now, so an error of that is ignored.
 */
static xep_status_t signal_and_wait(xep_group_t *group, const xep_group_signal_t *signal)
{
    uint64_t deadline_ns = xep_deadline(group->timeout_ms);
    xep_status_t status = xep_group_signal_all(group, group->control, signal, deadline_ns);
    if (status == XEP_OK) status = xep_group_wait_words(group, group->control, signal, deadline_ns);
    if (status == XEP_OK) (void)xep_group_flush(group, group->control, deadline_ns, signal->what);
    return status;
}

/* Puts out the ranks that are missing in the barrier: dead, or later than the deadline. */
static int put_out_missing(xep_group_t *group, xep_status_t status, uint64_t barrier)
{
    uint32_t found = 0;
    if (!group->goes_on || group->left_out) return 0;
    if (status == XEP_ERR_PEER) return xep_group_put_out_dead(group) != 0;
    for (uint32_t r = 0; status == XEP_ERR_TIMEOUT && r < group->nranks; r++) {
        const char *line = (const char *)group->control->base + word_offset(group, r, offsetof(line_t, barriers));
        if (atomic_load_explicit((const _Atomic uint64_t *)(const void *)line, memory_order_acquire) < barrier)
            found += (uint32_t)xep_group_put_out(group, r, XEP_OUT_LATE);
    }
    return found != 0;
}

/* The number goes up first: this rank does not enter a barrier again that it has given up. */
xep_status_t xep_group_run_barrier(xep_group_t *group)
{
    xep_status_t status = xep_group_usable(group);
    if (status != XEP_OK) return status;
    /* a rank without a quorum has given all others up, and would wait for none */
    if (group->left_out) return xep_group_fail_out(XEP_OUT_BY_OTHERS);
    xep_group_signal_t signal = {.word = word_offset(group, group->rank, offsetof(line_t, barriers)),
                                 .stride = sizeof(line_t),
                                 .value = ++group->barriers,
                                 .what = "barrier",
                                 .kind = XEP_WAITS_BARRIER};
    uint64_t begin_ns = xep_trace_now();
    do status = signal_and_wait(group, &signal);
    while (status != XEP_OK && put_out_missing(group, status, signal.value));
    if (begin_ns == 0 || status != XEP_OK) return status;
    if (group->syncs_trace) xep_trace_sync(signal.value, begin_ns);
    xep_trace_write_call(XEP_TRACE_CALL, "barrier", signal.value, begin_ns);
    return XEP_OK;
}

xep_status_t xep_group_sync_clocks(xep_group_t *group)
{
    xep_status_t status = xep_group_run_barrier(group);
    for (int i = 1; group->traced && i < XEP_TRACE_SYNCS && status == XEP_OK; i++)
        status = xep_group_run_barrier(group);
    return status;
}

/* Distinguishes a rank that is in another call from one that gives another number of bytes. */
static xep_status_t check_share(const xep_group_t *group, uint32_t rank, const share_t *share)
{
    const xep_gather_t *gather = &group->gather;
    const int is_same_call = share->within % (1 << CALL_BITS) == gather->within % (1 << CALL_BITS);
    if (share->call != group->gathers)
        return xep_fail(XEP_ERR_PROTOCOL, "rank %u is in allgather %" PRIu64 ", this rank in %" PRIu64, rank,
                        share->call, group->gathers);
    if (share->within != gather->within)
        return xep_fail(XEP_ERR_MISMATCH,
                        "rank %u is in %s, this rank in %s%s (all ranks call the same, in the same order)", rank,
                        name_call(share->within), is_same_call ? "another " : "", name_call(gather->within));
    if (share->bytes != gather->bytes)
        return xep_fail(XEP_ERR_MISMATCH,
                        "rank %u gave %" PRIu64 " bytes to an allgather of %zu (all ranks give the same number)", rank,
                        share->bytes, gather->bytes);
    return XEP_OK;
}

/* Bytes of this round. */
static size_t count_bytes(const xep_gather_t *gather)
{
    const size_t left = gather->bytes - gather->done;
    return left < SHARE_BYTES ? left : SHARE_BYTES;
}

/* Each share is there if its word is; it stays until the round after the next. recv NULL: they are only checked. */
static xep_status_t take_shares(const xep_group_t *group, uint8_t *recv)
{
    const xep_gather_t *gather = &group->gather;
    for (uint32_t r = 0; r < group->nranks; r++) {
        const share_t *share = share_of(group, group->rounds, r);
        xep_status_t status = check_share(group, r, share);
        if (status != XEP_OK) return status;
        if (recv != NULL) memcpy(recv + r * gather->bytes + gather->done, share->data, count_bytes(gather));
    }
    return XEP_OK;
}

/* The own share lies in the own heap, as those of the others do; signal_all sends it from there. */
static void begin_round(xep_group_t *group, const uint8_t *send)
{
    const xep_gather_t *gather = &group->gather;
    share_t *mine = share_of(group, ++group->rounds, group->rank);
    mine->call = group->gathers;
    mine->bytes = gather->bytes;
    mine->within = gather->within;
    memcpy(mine->data, send + gather->done, count_bytes(gather));
}

/* One that was given up before, too: others may have read this rank's share. */
static xep_status_t end_round(xep_group_t *group, uint8_t *recv)
{
    xep_group_signal_t signal = {.word = word_offset(group, group->rank, offsetof(line_t, rounds)),
                                 .stride = sizeof(line_t),
                                 .value = group->rounds,
                                 .offset = share_offset(group, group->rounds, group->rank),
                                 .bytes = offsetof(share_t, data) + count_bytes(&group->gather),
                                 .what = group->gathers_for == NULL ? "allgather" : group->gathers_for,
                                 .kind = XEP_WAITS_ALLGATHER,
                                 .call = group->gathers_for};
    xep_status_t status = signal_and_wait(group, &signal);
    return status == XEP_OK ? take_shares(group, recv) : status;
}

/* It is over for all ranks: none is left in it, and none of its rounds. */
static xep_status_t end_gather(xep_group_t *group, xep_status_t status)
{
    if (status == XEP_OK || status == XEP_ERR_MISMATCH) group->gather.bytes = 0;
    return status;
}

/*
 * Ends an allgather in which this rank has given up a round, and which it does not call again: what that brings nobody
 * asks for any more. The share that says so is like no other one.
 */
static xep_status_t leave_gather(xep_group_t *group)
{
    static const uint8_t none[1];
    const int is_last = count_bytes(&group->gather) == group->gather.bytes - group->gather.done;
    group->gather.recv = NULL; /* for good: the caller may have other bytes there when it is called again */
    xep_status_t status = end_round(group, NULL);
    if (status == XEP_OK && !is_last) {
        group->gather = (xep_gather_t){.bytes = sizeof none, .within = NCALLS};
        begin_round(group, none);
        status = end_round(group, NULL);
    }
    status = end_gather(group, status);
    return status == XEP_ERR_MISMATCH ? XEP_OK : status;
}

xep_status_t xep_group_leave_gather(xep_group_t *group)
{
    if (group->gather.bytes == 0) return XEP_OK;
    const xep_status_t status = xep_group_usable(group);
    return status == XEP_OK ? leave_gather(group) : status;
}

int xep_group_has_begun_anew(const xep_group_t *group, uint32_t rank)
{
    const uint64_t first = group->gather.within % (1 << CALL_BITS); /* allgather of this call */
    for (uint32_t r = 0; r < group->nranks; r++)
        if (share_of(group, group->rounds, r)->within % (1 << CALL_BITS) != first) return 0;
    return share_of(group, group->rounds, rank)->within == first;
}

/*
 * Whether this may be the call that this rank gave up: then the results of its first rounds are in recv. Within another
 * call it gives what it gave before: else the others would have that, and this rank would go on with something else.
 */
static int is_same(const xep_group_t *group, uint64_t within, const void *send, const void *recv, size_t bytes)
{
    const xep_gather_t *gather = &group->gather;
    if (gather->bytes != bytes || gather->within != within) return 0;
    if (group->gathers_for == NULL) return gather->done == 0 || gather->recv == recv;
    const share_t *mine = share_of(group, group->rounds, group->rank);
    return gather->done == 0 && memcmp(mine->data, send, count_bytes(gather)) == 0;
}

xep_status_t xep_group_gather(xep_group_t *group, const void *send, void *recv, size_t bytes)
{
    xep_gather_t *gather = &group->gather;
    const uint64_t within = find_call(group);
    int again = is_same(group, within, send, recv, bytes);
    xep_status_t status = xep_group_usable(group);
    if (status == XEP_OK && !again) status = xep_group_leave_gather(group);
    if (status != XEP_OK) return status;
    group->gathers_of += group->gathers_for != NULL; /* one that goes on, too: to the others it is the same one */
    if (!again) {
        group->gathers++;
        *gather = (xep_gather_t){.bytes = bytes, .within = within, .recv = recv};
    }
    for (; status == XEP_OK && gather->done < bytes; again = 0) {
        if (!again) begin_round(group, send);
        status = end_round(group, recv);
        if (status == XEP_OK) gather->done += count_bytes(gather);
    }
    return end_gather(group, status);
}
