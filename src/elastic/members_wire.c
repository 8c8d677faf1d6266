/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Some ranks do not map one another: all is told by control message. One way for all ranks of the buffer, also for
 * those that do map one another.
 *
 * What a rank that is gone has sent to one rank it may not have sent to another, and nobody else has it. So:
 *
 *  1. An operation is with a rank that is gone if some survivor has already concluded from its word, and so may have
 *     told its caller. Else it is without that rank for all, whoever has its word.
 *  2. In an operation that is with it, a survivor that has the word has its rows, too: messages are taken in the order
 *     they were sent. One that lacks it does without these rows, and says so: its sums are its own, and depend on
 *     nothing that others have. What the others have concluded it takes over with their ballots (the adopted decision),
 *     so that an operation ends alike on all.
 *  3. From the decision on nothing of the rank is stored (heap_fence_off): what is still on its way changes nothing.
 *
 * So a ballot counts as missing all operations in flight that have not concluded; agreement.h does the rest.
 *
 * Two parts of a group that cannot reach each other must not both go on. So a decision takes more than half of the
 * ranks that are not known to be dead; on a tie the half with the lowest rank wins. A death counts when the kernel
 * reports it for a process of the same host, or the launcher for any. A lost connection is no proof. One rank may know,
 * and the others not; or it has decided, with the word of a rank that dies before the others hear it, and then a
 * decision without that one, too, takes less than it did. So ballots say who is gone in either way, and the rule goes
 * by the ballot alone: ranks that say the same decide alike.
 *
 * A control message has all that its rank says of the buffer to another one; control messages may overtake one another,
 * and the last one that was sent counts.
 */
#include "members.h"

#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "error.h"
#include "group_ctl.h"
#include "request.h"

enum { LOOK_EVERY = 16 /* rounds to one look at what all have said: a wait makes thousands in a second */ };

/** What one rank tells another, in a control message; the receiver checks it. */
typedef struct said {
    uint64_t sequence; /* xep_ctl_keep_last() */
    uint64_t question; /* it doubts the other: whoever sees a new number sends it back as answer */
    uint64_t answer;
    uint64_t begun;   /* its operations, when it was sent */
    uint64_t words[]; /* its ballot; none: it has suspected nobody yet */
} said_t;
_Static_assert(sizeof(said_t) == 32, "wire format");

/* Between this rank and another one. */
typedef struct heard {
    xep_msg_t *last;   /* of its control messages; NULL: none has come */
    uint64_t sent;     /* number of the ballot that it was sent */
    uint64_t answered; /* the last of its questions that was answered */
} heard_t;

struct xep_members_ctl {
    said_t *mine;    /* the control message that is sent */
    heard_t *of;     /* [R] */
    uint64_t number; /* of the own ballot; 0: nothing was said */
    uint32_t rounds;
    int is_waiting; /* something has been told, and has to leave */
};

/* ---- memory ---- */

static uint64_t words(uint32_t nranks, uint32_t most)
{
    uint64_t all = xep_ballot_words(nranks, most), fit = (XEP_CTL_BYTES - sizeof(said_t)) / sizeof(uint64_t);
    return all < fit ? all : fit;
}

static uint64_t bytes(uint32_t nranks, uint32_t most)
{
    (void)nranks;
    (void)most;
    return sizeof(xep_members_area_t);
}

static xep_status_t open(xep_buffer_t *buffer)
{
    uint32_t nranks = buffer->shape.nranks;
    xep_members_ctl_t *ctl = buffer->members->ctl = calloc(1, sizeof *ctl);
    if (ctl == NULL) return XEP_ERR_NO_MEMORY;
    ctl->mine = calloc(1, sizeof *ctl->mine + buffer->members->agreement.capacity * sizeof(uint64_t));
    ctl->of = calloc(nranks, sizeof *ctl->of);
    if (ctl->mine == NULL || ctl->of == NULL) return XEP_ERR_NO_MEMORY;
    buffer->group->control->spares = 1;
    return XEP_OK;
}

static void close(xep_members_t *members)
{
    xep_members_ctl_t *ctl = members->ctl;
    const xep_buffer_t *buffer = members->agreement.arg;
    if (ctl == NULL) return;
    xep_ctl_free(xep_ctl_take(buffer->group, XEP_CTL_BALLOT, buffer->number, buffer->number));
    for (uint32_t r = 0; ctl->of != NULL && r < members->agreement.mine.nranks; r++) free(ctl->of[r].last);
    free(ctl->of);
    free(ctl->mine);
    free(ctl);
}

/* ---- control messages ---- */

static const said_t *said_by(const xep_members_ctl_t *ctl, uint32_t rank)
{
    static const said_t nothing = {0};
    return ctl->of[rank].last == NULL ? &nothing : (const said_t *)(const void *)ctl->of[rank].last->data;
}

static int is_asked(const xep_buffer_t *buffer, uint32_t rank)
{
    return rank != buffer->shape.rank && !xep_ballot_suspects(&buffer->members->agreement.mine, rank);
}

/* A rank that cannot be reached now is sent it again in the next round. */
static void tell(xep_buffer_t *buffer, uint32_t rank)
{
    xep_members_ctl_t *ctl = buffer->members->ctl;
    const xep_agreement_t *agreement = &buffer->members->agreement;
    size_t length = agreement->length * sizeof(uint64_t);
    ctl->is_waiting = 1;
    ctl->mine->sequence++;
    ctl->mine->answer = said_by(ctl, rank)->question;
    ctl->mine->begun = buffer->epoch;
    if (length != 0) memcpy(ctl->mine->words, agreement->said, length);
    if (xep_ctl_send(buffer->group, rank, XEP_CTL_BALLOT, buffer->number, ctl->mine, sizeof *ctl->mine + length) !=
        XEP_OK)
        return;
    ctl->of[rank].sent = ctl->number;
    ctl->of[rank].answered = ctl->mine->answer;
}

static void tell_who_lacks(xep_buffer_t *buffer)
{
    const xep_members_ctl_t *ctl = buffer->members->ctl;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (is_asked(buffer, r) && (ctl->of[r].sent != ctl->number || ctl->of[r].answered != said_by(ctl, r)->question))
            tell(buffer, r);
}

/* Whether some rank says more than it did before. */
static int take_msgs(xep_buffer_t *buffer)
{
    int news = 0;
    xep_msg_t *msg = xep_ctl_take(buffer->group, XEP_CTL_BALLOT, buffer->number, buffer->number), *next;
    for (; msg != NULL; msg = next) {
        next = msg->next;
        if (msg->bytes < sizeof(said_t) || !is_asked(buffer, msg->from)) free(msg);
        else news |= xep_ctl_keep_last(&buffer->members->ctl->of[msg->from].last, msg);
    }
    return news;
}

/* Between operations nobody else asks the wire, and while the ranks agree no operation does. */
static void push_out(xep_buffer_t *buffer)
{
    xep_wire_t *wire = &buffer->heap->wire;
    (void)wire->ops->progress(wire);
    buffer->members->ctl->is_waiting = !buffer->group->transport->ops->ctl_has_left(buffer->group->transport);
}

static int look(xep_buffer_t *buffer)
{
    xep_members_ctl_t *ctl = buffer->members->ctl;
    int open = buffer->members->agreement.open;
    if (!open && !ctl->is_waiting && ++ctl->rounds % LOOK_EVERY != 0) return 0;
    int news = take_msgs(buffer);
    tell_who_lacks(buffer);
    if (open || ctl->is_waiting) push_out(buffer);
    return news;
}

/* ---- ballots ---- */

static void publish(void *arg)
{
    xep_buffer_t *buffer = arg;
    buffer->members->ctl->number++;
    tell_who_lacks(buffer);
}

static int read(void *arg, uint32_t rank)
{
    xep_members_t *members = ((xep_buffer_t *)arg)->members;
    const xep_msg_t *msg = members->ctl->of[rank].last;
    return msg != NULL && xep_ballot_read(&members->agreement.theirs, said_by(members->ctl, rank)->words,
                                          (msg->bytes - sizeof(said_t)) / sizeof(uint64_t));
}

/* Errors that all ranks get; after any other one the buffer takes no operation. */
void xep_members_note_decision(xep_buffer_t *buffer, const xep_op_t *op, xep_status_t status)
{
    if (buffer->members->ctl == NULL || !xep_decision_is_due(status)) return;
    xep_decisions_add(&buffer->members->agreement.mine.decisions, (xep_decision_t){op->epoch, status, op->refused});
}

/* ---- decisions ---- */

/*
 * Who is gone cannot go on elsewhere: it is known to be dead, or most have decided against it. All of this is in the
 * ballot, so all that say the same come to the same.
 */
static int has_most(const xep_buffer_t *buffer)
{
    const xep_ballot_t *mine = &buffer->members->agreement.mine;
    uint32_t all = 0, with = 0, lowest = 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        uint32_t here = !xep_ballot_suspects(mine, r);
        if (!here && mine->suspects[r].gone) continue;
        if (all++ == 0) lowest = here;
        with += here;
    }
    return 2 * with + lowest > all;
}

int xep_members_has_lost_quorum(const xep_buffer_t *buffer)
{
    return buffer->members->ctl != NULL && !has_most(buffer);
}

/* Asking costs a system call for each rank of the same host, so only whoever has not most asks. */
int xep_members_learn_gone(xep_buffer_t *buffer)
{
    xep_ballot_t *mine = &buffer->members->agreement.mine;
    int changed = 0;
    if (!xep_members_has_lost_quorum(buffer)) return 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (xep_ballot_suspects(mine, r) && !mine->suspects[r].gone && xep_group_has_ended(buffer->group, r))
            changed |= xep_ballot_set_gone(mine, r);
    return changed;
}

/* Others wait for this rank's ballot, and it may be in no call of the library for a while once it has decided. */
static int may_decide(const void *arg)
{
    const xep_buffer_t *buffer = arg;
    const xep_members_ctl_t *ctl = buffer->members->ctl;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (is_asked(buffer, r) && ctl->of[r].sent != ctl->number) return 0;
    return has_most(buffer);
}

/* The message may wait where the rank does not take it; then it finds that nobody answers. */
static void tell_out(void *arg, uint32_t rank)
{
    xep_buffer_t *buffer = arg;
    uint64_t word = buffer->areas.members + offsetof(xep_members_area_t, left_out);
    (void)xep_heap_tell(buffer->heap, rank, 0, 0, word, buffer->shape.rank + UINT64_C(1));
    buffer->group->transport->ops->heap_fence_off(buffer->heap, rank);
}

/* ---- operations ---- */

static xep_holds_t holds(xep_request_t *req, uint32_t rank)
{
    xep_buffer_t *buffer = req->buffer;
    xep_status_t verdict = buffer->plugin.plugin->masks->verdict(buffer->mode, &req->op);
    (void)rank;
    if (verdict == XEP_INPROGRESS) return XEP_HOLDS_NOTHING;
    xep_members_note_decision(buffer, &req->op, verdict);
    return XEP_HOLDS_ALL;
}

/* What others have concluded holds for all that have not, also where the word is here. */
static xep_status_t rule(xep_request_t *req)
{
    const xep_decisions_t *decisions = &req->buffer->members->agreement.mine.decisions;
    const xep_decision_t *decision = xep_decisions_find(decisions, req->op.epoch);
    if (decision == NULL && req->op.epoch <= decisions->forgotten)
        return xep_fail(XEP_ERR_PEER, "no rank left knows how the others ended operation %llu",
                        (unsigned long long)req->op.epoch);
    req->op.is_ruled = 1;
    req->op.decision = decision == NULL ? XEP_OK : decision->status;
    if (decision != NULL) req->op.refused = decision->refused;
    return XEP_OK;
}

static xep_status_t settle(xep_request_t *req, uint32_t rank, uint8_t *without_p)
{
    const xep_buffer_t *buffer = req->buffer;
    const xep_mask_ops_t *masks = buffer->plugin.plugin->masks;
    if (masks->holds(buffer->mode, &req->op, rank) != XEP_HOLDS_ALL) *without_p = XEP_OUT_SILENT;
    return masks->verdict(buffer->mode, &req->op) == XEP_INPROGRESS ? rule(req) : XEP_OK;
}

/* ---- doubts ---- */

static void ask(xep_buffer_t *buffer)
{
    buffer->members->ctl->mine->question++;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (is_asked(buffer, r)) tell(buffer, r);
    push_out(buffer);
}

static int makes_rounds(const xep_buffer_t *buffer, uint32_t rank)
{
    const xep_members_ctl_t *ctl = buffer->members->ctl;
    return said_by(ctl, rank)->answer == ctl->mine->question;
}

/* As it said with its answer, or behind it. */
static int has_begun(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch)
{
    return makes_rounds(buffer, rank) && said_by(buffer->members->ctl, rank)->begun >= epoch;
}

const xep_members_ways_t xep_members_wire = {
    .bytes = bytes,
    .words = words,
    .open = open,
    .close = close,
    .look = look,
    .agreement = {.read = read, .publish = publish, .may_decide = may_decide, .tell_out = tell_out},
    .holds = holds,
    .settle = settle,
    .ask = ask,
    .makes_rounds = makes_rounds,
    .has_begun = has_begun,
    .least_grace_ms = 200, /* for a question and its answer, on a machine that is busy */
};
