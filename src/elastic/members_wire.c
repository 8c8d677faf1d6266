/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Some ranks do not map one another: all is told in messages, by a post in the heap of whoever it is for. One way for
 * all ranks of the buffer, also for those that do map one another.
 *
 * What a rank that is gone has sent to one rank it may not have sent to another, and nobody else has it. So:
 *
 *  1. An operation is with a rank that is gone if some survivor has already concluded from its word, and so may have
 *     told its caller. Else it is without that rank for all, whoever has its word.
 *  2. In an operation that is with it, a survivor that has the word has its rows, too: messages are taken in the order
 *     they were sent. One that lacks it does without these rows, and says so: its sums are its own, and depend on
 *     nothing that others have. What the others have concluded it takes over with their ballots (the ruling), so that
 *     an operation ends alike on all.
 *  3. From the decision on nothing of the rank is stored (heap_sever): what is still on its way changes nothing.
 *
 * So a tally counts as missing all operations in flight that have not concluded; ballot.h does the rest. There each
 * rank reads what the others say now, here what they have said: that is enough, as ballots only grow. When a rank has
 * all ballots that are the same as its own, each of these ranks has said so at some time, and of a suspect's tally
 * they have learned all that any of them could.
 *
 * Two parts of a group that cannot reach each other must not both go on. So a decision takes more than half of the
 * ranks that are not known to be dead; of two halves, the one with the lowest rank. Known is what the kernel says of a
 * process of the same host, or the launcher of any. That a connection is lost is no proof. One rank may know, and the
 * others not; or it has decided, with the word of a rank that dies before the others hear it, and then a decision
 * without that one, too, takes less than it did. So ballots say who is gone in either way, and the rule goes by the
 * ballot alone: ranks that say the same decide alike.
 *
 * A post is written by its rank alone. Its ballot carries a number, which is the signal behind it, and the next one
 * comes when the other has said that it has read this one: messages may overtake one another. A sum shows what is torn
 * all the same, as by a rank that died in the middle of it.
 */
#include "members.h"

#include <stdlib.h>

#include "ballot_words.h"
#include "buffer.h"
#include "error.h"
#include "group_out.h"
#include "log.h"
#include "request.h"

enum { LOOK_EVERY = 16 /* rounds to one look at the posts of all: a wait makes thousands in a second */ };

/** What one rank tells another, in the heap of that one. */
typedef struct post {
    _Atomic uint64_t said;     /* the number of its ballot, which follows this struct */
    _Atomic uint64_t question; /* it doubts the other: whoever sees a new number sends it back as answer */
    _Atomic uint64_t answer;
    _Atomic uint64_t begun; /* its operations, when it answered */
    _Atomic uint64_t heard; /* the number of the other's ballot that it has read */
    uint64_t reserved[3];
} post_t;
_Static_assert(sizeof(post_t) == 64, "a cache line before the ballot");

struct xep_members_posts {
    post_t *first; /* [R], stride bytes apart, in the own heap */
    uint64_t stride, capacity;
    uint64_t *mine, *scratch; /* [capacity] the own ballot, as it was sent; one that is read */
    uint64_t number, length;  /* of mine; 0: nothing was said */
    uint64_t *sent;           /* [R] number of the ballot that the rank was sent */
    uint64_t *read, *told;    /* [R] of its that was read here; of which it was told so */
    uint64_t question;        /* the last that was asked */
    uint64_t *answered;       /* [R] the last of its questions that was answered */
    xep_rulings_t rulings;    /* of any rank */
    uint32_t rounds;
    uint64_t begun; /* as it is sent */
    int is_waiting; /* something has been told, and has to leave */
};

/* ---- memory ---- */

static uint64_t post_bytes(uint32_t nranks, uint32_t most)
{
    return (sizeof(post_t) + xep_ballot_words(nranks, most) * sizeof(uint64_t) + 63) / 64 * 64;
}

static uint64_t bytes(uint32_t nranks, uint32_t most)
{
    return sizeof(xep_members_area_t) + nranks * post_bytes(nranks, most);
}

static xep_status_t open(xep_buffer_t *buffer)
{
    uint32_t nranks = buffer->shape.nranks;
    xep_members_posts_t *posts = buffer->members->posts = calloc(1, sizeof *posts);
    if (posts == NULL) return XEP_ERR_NO_MEMORY;
    posts->first = (post_t *)(void *)(buffer->members->own + 1);
    posts->stride = post_bytes(nranks, buffer->members->mine.most);
    posts->capacity = xep_ballot_words(nranks, buffer->members->mine.most);
    posts->mine = calloc(posts->capacity, sizeof(uint64_t));
    posts->scratch = calloc(posts->capacity, sizeof(uint64_t));
    posts->sent = calloc(nranks, sizeof *posts->sent);
    posts->read = calloc(nranks, sizeof *posts->read);
    posts->told = calloc(nranks, sizeof *posts->told);
    posts->answered = calloc(nranks, sizeof *posts->answered);
    posts->rulings.most = buffer->nrequests;
    posts->rulings.list = calloc(buffer->nrequests, sizeof *posts->rulings.list);
    if (posts->mine == NULL || posts->scratch == NULL || posts->sent == NULL || posts->read == NULL ||
        posts->told == NULL || posts->answered == NULL || posts->rulings.list == NULL)
        return XEP_ERR_NO_MEMORY;
    buffer->group->control->spares = 1;
    return XEP_OK;
}

static void close(xep_members_t *members)
{
    xep_members_posts_t *posts = members->posts;
    if (posts == NULL) return;
    free(posts->rulings.list);
    free(posts->answered);
    free(posts->told);
    free(posts->read);
    free(posts->sent);
    free(posts->scratch);
    free(posts->mine);
    free(posts);
}

/* ---- posts ---- */

static post_t *post_of(const xep_members_posts_t *posts, uint32_t rank)
{
    return (post_t *)(void *)((char *)posts->first + rank * posts->stride);
}

static uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* Of the own post, in any heap. */
static uint64_t offset_of(const xep_buffer_t *buffer, size_t within)
{
    return buffer->members->offset + sizeof(xep_members_area_t) + buffer->shape.rank * buffer->members->posts->stride +
           within;
}

/* A wire that takes nothing now is asked again by the next round. */
static int tell(xep_buffer_t *buffer, uint32_t rank, size_t at, const void *src, size_t length, size_t word,
                uint64_t value)
{
    xep_wire_t *wire = &buffer->heap->wire;
    buffer->members->posts->is_waiting = 1;
    return wire->ops->put_signal(wire, rank, offset_of(buffer, at), src, length, offset_of(buffer, word), value) ==
           XEP_OK;
}

static int is_asked(const xep_buffer_t *buffer, uint32_t rank)
{
    return rank != buffer->shape.rank && !xep_ballot_suspects(&buffer->members->mine, rank);
}

static void send_ballot(xep_buffer_t *buffer)
{
    xep_members_posts_t *posts = buffer->members->posts;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (is_asked(buffer, r) && posts->sent[r] != posts->number &&
            load(&post_of(posts, r)->heard) == posts->sent[r] &&
            tell(buffer, r, sizeof(post_t), posts->mine, posts->length * sizeof(uint64_t), offsetof(post_t, said),
                 posts->number))
            posts->sent[r] = posts->number;
}

static void answer(xep_buffer_t *buffer)
{
    xep_members_posts_t *posts = buffer->members->posts;
    posts->begun = buffer->epoch;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        uint64_t question = load(&post_of(posts, r)->question);
        if (question != posts->answered[r] && is_asked(buffer, r) &&
            tell(buffer, r, offsetof(post_t, begun), &posts->begun, sizeof posts->begun, offsetof(post_t, answer),
                 question))
            posts->answered[r] = question;
    }
}

static void tell_heard(xep_buffer_t *buffer)
{
    xep_members_posts_t *posts = buffer->members->posts;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (posts->told[r] != posts->read[r] && is_asked(buffer, r) &&
            tell(buffer, r, 0, NULL, 0, offsetof(post_t, heard), posts->read[r]))
            posts->told[r] = posts->read[r];
}

/* Between operations nobody else asks the wire, and while the ranks agree no operation does. */
static void push_out(xep_buffer_t *buffer)
{
    xep_wire_t *wire = &buffer->heap->wire;
    (void)wire->ops->progress(wire);
    buffer->members->posts->is_waiting = wire->ops->flush(wire) == XEP_INPROGRESS;
}

static int look(xep_buffer_t *buffer)
{
    xep_members_posts_t *posts = buffer->members->posts;
    int news = 0;
    if (!buffer->members->open && !posts->is_waiting && ++posts->rounds % LOOK_EVERY != 0) return 0;
    tell_heard(buffer);
    send_ballot(buffer);
    answer(buffer);
    if (buffer->members->open || posts->is_waiting) push_out(buffer);
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        news |= is_asked(buffer, r) && load(&post_of(posts, r)->said) != posts->read[r];
    return news;
}

/* ---- ballots ---- */

/* More suspects than a ballot has room for: this rank cannot agree any more, and is the one that goes. */
static void publish(xep_buffer_t *buffer)
{
    xep_members_t *members = buffer->members;
    xep_members_posts_t *posts = members->posts;
    posts->number++;
    posts->length = xep_ballot_write_words(&members->mine, &posts->rulings, posts->mine);
    if (posts->length != 0) {
        send_ballot(buffer);
        return;
    }
    xep_log(XEP_LOG_ERROR, "too many ranks are out (at most %d)", XEP_BALLOT_MOST_SUSPECTS);
    atomic_store(&members->own->left_out, buffer->shape.nranks + UINT64_C(1));
}

static int read(xep_buffer_t *buffer, uint32_t rank)
{
    xep_members_t *members = buffer->members;
    xep_members_posts_t *posts = members->posts;
    const post_t *post = post_of(posts, rank);
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)(const void *)(post + 1);
    uint64_t said = load(&post->said);
    if (said == 0) return 0;
    for (uint64_t i = 0; i < posts->capacity; i++)
        posts->scratch[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    if (!xep_ballot_take_words(&members->theirs, &posts->rulings, posts->scratch, posts->capacity)) return 0;
    posts->read[rank] = said;
    return 1;
}

/* Errors that all ranks get; after any other one the buffer takes no operation. */
void xep_members_note_ruling(xep_buffer_t *buffer, const xep_op_t *op, xep_status_t status)
{
    if (buffer->members->posts == NULL || !xep_ruling_is_due(status)) return;
    xep_rulings_add(&buffer->members->posts->rulings, (xep_ruling_t){op->epoch, status, op->refused});
}

/* ---- decisions ---- */

/*
 * Who is gone cannot go on elsewhere: it is known to be dead, or most have decided against it. All of this is in the
 * ballot, so all that say the same come to the same.
 */
static int has_most(const xep_buffer_t *buffer)
{
    const xep_ballot_t *mine = &buffer->members->mine;
    uint32_t all = 0, with = 0, lowest = 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        uint32_t here = !xep_ballot_suspects(mine, r);
        if (!here && mine->tallies[r].gone) continue;
        if (all++ == 0) lowest = here;
        with += here;
    }
    return 2 * with + lowest > all;
}

/* Asking costs a system call for each rank of the same host, so only whoever has not most asks. */
static int learn(xep_buffer_t *buffer)
{
    xep_ballot_t *mine = &buffer->members->mine;
    int changed = 0;
    if (has_most(buffer)) return 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (xep_ballot_suspects(mine, r) && !mine->tallies[r].gone && xep_group_has_ended(buffer->group, r))
            changed |= xep_ballot_set_gone(mine, r);
    return changed;
}

static int is_cut_off(const xep_buffer_t *buffer)
{
    return !has_most(buffer);
}

/* Others wait for this rank's ballot, and it may be in no call of the library for a while once it has decided. */
static int may_decide(const xep_buffer_t *buffer)
{
    const xep_members_posts_t *posts = buffer->members->posts;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (is_asked(buffer, r) && posts->sent[r] != posts->number) return 0;
    return has_most(buffer);
}

/* The message may wait where the rank does not take it; then it finds that nobody answers. */
static void tell_out(xep_buffer_t *buffer, uint32_t rank)
{
    xep_wire_t *wire = &buffer->heap->wire;
    uint64_t word = buffer->members->offset + offsetof(xep_members_area_t, left_out);
    (void)wire->ops->put_signal(wire, rank, 0, NULL, 0, word, buffer->shape.rank + UINT64_C(1));
    (void)wire->ops->flush(wire);
    buffer->group->transport->ops->heap_sever(buffer->heap, rank);
}

/* ---- operations ---- */

static xep_holds_t holds(xep_request_t *req, uint32_t rank)
{
    xep_buffer_t *buffer = req->buffer;
    xep_status_t verdict = buffer->plugin.plugin->masks->verdict(buffer->mode, &req->op);
    (void)rank;
    if (verdict == XEP_INPROGRESS) return XEP_HOLDS_NOTHING;
    xep_members_note_ruling(buffer, &req->op, verdict);
    return XEP_HOLDS_ALL;
}

/* What others have concluded holds for all that have not, also where the word is here. */
static xep_status_t rule(xep_request_t *req)
{
    const xep_members_posts_t *posts = req->buffer->members->posts;
    const xep_ruling_t *ruling = xep_rulings_find(&posts->rulings, req->op.epoch);
    if (ruling == NULL && req->op.epoch <= posts->rulings.forgotten)
        return xep_fail(XEP_ERR_PEER, "nobody knows any more how the others have ended operation %llu",
                        (unsigned long long)req->op.epoch);
    req->op.is_ruled = 1;
    req->op.ruling = ruling == NULL ? XEP_OK : ruling->status;
    if (ruling != NULL) req->op.refused = ruling->refused;
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
    xep_members_posts_t *posts = buffer->members->posts;
    posts->question++;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (is_asked(buffer, r)) (void)tell(buffer, r, 0, NULL, 0, offsetof(post_t, question), posts->question);
    push_out(buffer);
}

static int makes_rounds(const xep_buffer_t *buffer, uint32_t rank)
{
    const xep_members_posts_t *posts = buffer->members->posts;
    return load(&post_of(posts, rank)->answer) == posts->question;
}

/* As it said when it was asked. */
static int has_begun(const xep_buffer_t *buffer, uint32_t rank, uint64_t epoch)
{
    const post_t *post = post_of(buffer->members->posts, rank);
    return makes_rounds(buffer, rank) && load(&post->begun) >= epoch;
}

const xep_members_ways_t xep_members_wire = {
    XEP_MEMBERS_WAYS, .least_grace_ms = 200, /* for a question and its answer, on a machine that is busy */
};
