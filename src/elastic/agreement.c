/* SPDX-License-Identifier: BSD-3-Clause */

#include "agreement.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "backoff.h"
#include "group_out.h"
#include "log.h"

int xep_agreement_open(xep_agreement_t *agreement, uint32_t rank, uint32_t nranks, uint32_t most, uint64_t capacity)
{
    agreement->rank = rank;
    agreement->capacity = capacity;
    agreement->out = calloc(nranks, 1);
    agreement->asked_ns = calloc(nranks, sizeof *agreement->asked_ns);
    agreement->said = calloc(agreement->capacity, sizeof *agreement->said);
    return agreement->out != NULL && agreement->asked_ns != NULL && agreement->said != NULL &&
           xep_ballot_open(&agreement->mine, nranks, most) && xep_ballot_open(&agreement->theirs, nranks, most);
}

void xep_agreement_close(xep_agreement_t *agreement)
{
    xep_ballot_close(&agreement->mine);
    xep_ballot_close(&agreement->theirs);
    free(agreement->said);
    free(agreement->asked_ns);
    free(agreement->out);
}

/* agreement->theirs has the ballot of from. A rank that finds itself suspected there treats that as exclusion. */
static int adopt(xep_agreement_t *agreement, uint32_t from)
{
    const xep_ballot_t *theirs = &agreement->theirs;
    int changed = 0;
    if (xep_ballot_suspects(theirs, agreement->rank)) {
        agreement->out_by = from + 1;
        return 0;
    }
    for (uint32_t r = 0; r < theirs->nranks; r++) {
        if (!xep_ballot_suspects(theirs, r) || xep_ballot_suspects(&agreement->mine, r)) continue;
        agreement->suspect(agreement->arg, r, (xep_out_reason_t)theirs->suspects[r].reason);
        changed = 1;
    }
    return xep_ballot_adopt(&agreement->mine, theirs) || changed;
}

/*
 * Whether this rank's ballot has changed: then it must be published before any other is compared with it, and the
 * remaining ones are read in the next round.
 */
int xep_agreement_listen(xep_agreement_t *agreement)
{
    int changed = 0;
    for (uint32_t r = 0; r < agreement->mine.nranks && !changed && agreement->out_by == 0; r++) {
        if (r == agreement->rank || xep_ballot_suspects(&agreement->mine, r)) continue;
        if (!agreement->ops->read(agreement->arg, r)) continue;
        changed = adopt(agreement, r);
        if (changed || xep_ballot_is_same(&agreement->mine, &agreement->theirs)) agreement->asked_ns[r] = 0;
    }
    return changed;
}

/*
 * All ranks must now say the same. For a rank that had answered before, the time counts from now, so that the rank that
 * brought the change, or has just been asked, does not count as silent all the time.
 */
void xep_agreement_publish(xep_agreement_t *agreement)
{
    agreement->open = 1;
    agreement->said_ns = xep_clock_ns();
    for (uint32_t r = 0; r < agreement->mine.nranks; r++)
        if (agreement->asked_ns[r] == 0) agreement->asked_ns[r] = agreement->said_ns;
    agreement->length = xep_ballot_write(&agreement->mine, agreement->said, agreement->capacity);
    agreement->is_full = agreement->length == 0;
    if (!agreement->is_full) agreement->ops->publish(agreement->arg);
}

/* Whether every survivor says the same as this rank: then no other decision is possible. */
static int all_heard(const xep_agreement_t *agreement)
{
    uint64_t since;
    for (uint32_t r = 0; r < agreement->mine.nranks; r++)
        if (xep_agreement_waits_for(agreement, r, &since)) return 0;
    return 1;
}

/* The others first hear that they are out, then this rank looks whether it is, then it goes on. */
int xep_agreement_decide(xep_agreement_t *agreement)
{
    if (!agreement->open || !all_heard(agreement) || !agreement->ops->may_decide(agreement->arg)) return 0;
    for (uint32_t r = 0; r < agreement->mine.nranks; r++) {
        if (!xep_ballot_suspects(&agreement->mine, r) || agreement->out[r]) continue;
        agreement->ops->tell_out(agreement->arg, r);
        agreement->out[r] = 1;
        (void)xep_ballot_set_gone(&agreement->mine, r);
        xep_log(XEP_LOG_WARN, "rank %u is out: %s", r,
                xep_out_reason_text((xep_out_reason_t)agreement->mine.suspects[r].reason));
    }
    /* between the words to others and the check of one's own: without it two ranks could both go on (members.h) */
    atomic_thread_fence(memory_order_seq_cst);
    agreement->open = 0;
    return 1;
}
