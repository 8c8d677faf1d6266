/* SPDX-License-Identifier: BSD-3-Clause */

/* All that a rank says fits into one control message, so that nobody ever sees half of it. */
#include "group_shrink.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

enum { MOST_WORDS = (XEP_CTL_BYTES - sizeof(xep_state_t)) / sizeof(uint64_t) };

/* ---- agreement ---- */

/* What counts is whether a rank was ready for the last attempt of this one: nobody returns an earlier one. */
static void suspect(void *arg, uint32_t rank, xep_out_reason_t reason)
{
    xep_shrink_t *shrink = arg;
    xep_ballot_suspect(&shrink->agreement.mine, rank, reason, shrink->tried, &shrink->tried,
                       !xep_shrink_is_ready(shrink, rank));
}

static const xep_state_t *state_of(const xep_shrink_t *shrink, uint32_t rank)
{
    const xep_msg_t *said = shrink->of[rank].said;
    return said == NULL ? NULL : (const xep_state_t *)(const void *)said->data;
}

static int read(void *arg, uint32_t rank)
{
    xep_shrink_t *shrink = arg;
    const xep_state_t *state = state_of(shrink, rank);
    return state != NULL && xep_ballot_read(&shrink->agreement.theirs, state->words,
                                            (shrink->of[rank].said->bytes - sizeof *state) / sizeof(uint64_t));
}

static void publish(void *arg)
{
    ((xep_shrink_t *)arg)->changed = 1;
}

static int may_decide(const void *arg)
{
    return !((const xep_shrink_t *)arg)->builds;
}

/* Not before this rank returns a group without it (xep_group_ring_out()). It reads the ballots of all. */
static void tell_out(void *arg, uint32_t rank)
{
    (void)arg;
    (void)rank;
}

static const xep_agreement_ops_t ops = {.read = read,
                                        .publish = publish,
                                        .may_decide = may_decide,
                                        .tell_out = tell_out};

/* ---- memory ---- */

xep_status_t xep_shrink_open(xep_shrink_t *shrink, xep_group_t *group)
{
    xep_agreement_t *agreement = &shrink->agreement;
    uint32_t nranks = group->nranks;
    uint64_t words = xep_ballot_words(nranks, 1);
    *shrink =
        (xep_shrink_t){.group = group, .nranks = nranks, .agreement = {.ops = &ops, .suspect = suspect, .arg = shrink}};
    shrink->of = calloc(nranks, sizeof *shrink->of);
    int opened = xep_agreement_open(agreement, group->rank, nranks, 1, words < MOST_WORDS ? words : MOST_WORDS);
    shrink->mine = calloc(1, sizeof *shrink->mine + agreement->capacity * sizeof(uint64_t));
    if (shrink->of != NULL && opened && shrink->mine != NULL) {
        shrink->mine->phase = XEP_SHRINK_GOES_ON;
        xep_agreement_publish(agreement);
        return XEP_OK;
    }
    xep_shrink_close(shrink);
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory to shrink a group of %u ranks", nranks);
}

void xep_shrink_close(xep_shrink_t *shrink)
{
    for (uint32_t r = 0; shrink->of != NULL && r < shrink->nranks; r++) free(shrink->of[r].said);
    xep_agreement_close(&shrink->agreement);
    free(shrink->mine);
    free(shrink->of);
}

/* ---- what this rank says ---- */

void xep_shrink_suspect(xep_shrink_t *shrink, uint32_t rank, xep_out_reason_t reason)
{
    if (xep_shrink_suspects(shrink, rank)) return;
    suspect(shrink, rank, reason);
    xep_agreement_publish(&shrink->agreement);
}

/* Suspects hear it too where they may live, so that they know that they are out. */
void xep_shrink_say(xep_shrink_t *shrink)
{
    xep_state_t *mine = shrink->mine;
    size_t bytes = shrink->agreement.length * sizeof(uint64_t);
    if (!shrink->changed) return;
    shrink->changed = 0;
    mine->sequence++;
    mine->built = shrink->built;
    memcpy(mine->words, shrink->agreement.said, bytes);
    for (uint32_t r = 0; r < shrink->nranks; r++)
        if (r != shrink->group->rank && !shrink->of[r].gone)
            (void)xep_ctl_send(shrink->group, r, XEP_CTL_STATE, 0, mine, sizeof *mine + bytes);
}

/* ---- what others say ---- */

int xep_shrink_is_ready(const xep_shrink_t *shrink, uint32_t rank)
{
    const xep_state_t *state = state_of(shrink, rank);
    return shrink->tried != 0 && state != NULL && state->built == shrink->tried;
}

/* What ends the waiting. A DONE counts only if this rank has made the same group. */
static xep_status_t check_phase(const xep_shrink_t *shrink, uint32_t rank, const xep_state_t *theirs)
{
    if (theirs->phase == XEP_SHRINK_FAILED)
        return xep_fail(xep_status_told(theirs->status, XEP_ERR_PEER),
                        "rank %u has given up making a smaller group: %.*s", rank, XEP_SHRINK_TEXT - 1, theirs->text);
    if (theirs->phase == XEP_SHRINK_DONE && shrink->built != 0 && theirs->built == shrink->built) return XEP_OK;
    return XEP_INPROGRESS;
}

/* What a ballot says is checked when it is read. */
static void take_msgs(xep_shrink_t *shrink)
{
    xep_msg_t *msg = xep_ctl_take(shrink->group, XEP_CTL_STATE, 0, 0), *next;
    for (; msg != NULL; msg = next) {
        next = msg->next;
        if (msg->bytes < sizeof(xep_state_t) || xep_shrink_suspects(shrink, msg->from)) free(msg);
        else (void)xep_ctl_keep_last(&shrink->of[msg->from].said, msg);
    }
}

/* That this rank is out comes first: what else those say who go on without it does not concern it any more. */
xep_status_t xep_shrink_hear(xep_shrink_t *shrink)
{
    xep_agreement_t *agreement = &shrink->agreement;
    take_msgs(shrink);
    int changed = xep_agreement_listen(agreement);
    if (agreement->out_by != 0) {
        shrink->left_out = 1;
        return xep_group_fail_out(agreement->out_by - 1);
    }
    if (changed) xep_agreement_publish(agreement);
    if (agreement->is_full)
        return xep_fail(XEP_ERR_UNSUPPORTED, "too many ranks are out: %u, more than control messages can name",
                        xep_ballot_count(&agreement->mine));
    if (changed) return XEP_INPROGRESS; /* some have not been read */
    xep_status_t status = XEP_INPROGRESS;
    for (uint32_t r = 0; r < shrink->nranks && status == XEP_INPROGRESS; r++)
        if (shrink->of[r].said != NULL && !xep_shrink_suspects(shrink, r))
            status = check_phase(shrink, r, state_of(shrink, r));
    if (status == XEP_INPROGRESS) (void)xep_agreement_decide(agreement);
    return status;
}
