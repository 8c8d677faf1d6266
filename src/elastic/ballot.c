/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A suspect has a set of operations: all up to top but those missing. The union of two sets misses what both miss and,
 * of the operations that only one has begun, what that one misses: never more than the longer list.
 */
#include "ballot.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_WORDS = 4, DECISION_WORDS = 3, SUSPECT_WORDS = 4, GONE_BIT = 256 /* beside the reason */ };

static const xep_status_t due[] = {XEP_ERR_MISMATCH, XEP_ERR_OVERFLOW, XEP_ERR_INVALID};
enum { NDUE = sizeof due / sizeof due[0] };

/* One piece of memory for all lists, of the length that any of them can have: agreeing allocates nothing. */
int xep_ballot_open(xep_ballot_t *ballot, uint32_t nranks, uint32_t most)
{
    *ballot = (xep_ballot_t){.nranks = nranks,
                             .most = most,
                             .suspects = calloc(nranks, sizeof *ballot->suspects),
                             .epochs = calloc((size_t)nranks * most, sizeof *ballot->epochs),
                             .decisions = {.list = calloc(most, sizeof *ballot->decisions.list), .most = most}};
    if (ballot->suspects == NULL || ballot->epochs == NULL || ballot->decisions.list == NULL) {
        xep_ballot_close(ballot);
        return 0;
    }
    for (uint32_t r = 0; r < nranks; r++) ballot->suspects[r].missing = ballot->epochs + (size_t)r * most;
    return 1;
}

void xep_ballot_close(xep_ballot_t *ballot)
{
    free(ballot->decisions.list);
    free(ballot->suspects);
    free(ballot->epochs);
    *ballot = (xep_ballot_t){0};
}

uint32_t xep_ballot_count(const xep_ballot_t *ballot)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < ballot->nranks; r++) count += (uint32_t)xep_ballot_suspects(ballot, r);
    return count;
}

/* ---- adopted decisions ---- */

int xep_decision_is_due(xep_status_t status)
{
    for (int i = 0; i < NDUE; i++)
        if (due[i] == status) return 1;
    return 0;
}

const xep_decision_t *xep_decisions_find(const xep_decisions_t *decisions, uint64_t epoch)
{
    for (uint32_t i = 0; i < decisions->count; i++)
        if (decisions->list[i].epoch == epoch) return &decisions->list[i];
    return NULL;
}

/*
 * A rank that looks for an adopted decision that was forgotten has to know that it may have been there: so "forgotten"
 * is the latest epoch that was dropped, and nothing at or before it is taken any more.
 */
void xep_decisions_add(xep_decisions_t *decisions, xep_decision_t decision)
{
    if (xep_decisions_find(decisions, decision.epoch) != NULL || decision.epoch <= decisions->forgotten) return;
    if (decisions->count < decisions->most) {
        decisions->list[decisions->count++] = decision;
        return;
    }
    xep_decision_t *oldest = &decisions->list[0];
    for (uint32_t i = 1; i < decisions->count; i++)
        if (decisions->list[i].epoch < oldest->epoch) oldest = &decisions->list[i];
    if (decision.epoch < oldest->epoch) {
        decisions->forgotten = decision.epoch;
        return;
    }
    decisions->forgotten = oldest->epoch;
    *oldest = decision;
}

/* ---- suspects ---- */

/* Lists have as many entries as operations can be in flight, a handful: a loop is the fastest search. */
static int misses(const xep_suspect_t *suspect, uint64_t epoch)
{
    for (uint64_t i = 0; i < suspect->count; i++)
        if (suspect->missing[i] == epoch) return 1;
    return 0;
}

static int has(const xep_suspect_t *suspect, uint64_t epoch)
{
    return epoch <= suspect->top && !misses(suspect, epoch);
}

/* Ascending, so that two lists of the same operations are the same words. */
static void add_missing(xep_suspect_t *suspect, uint32_t most, uint64_t epoch)
{
    uint64_t i = suspect->count++;
    assert(suspect->count <= most);
    (void)most;
    for (; i > 0 && suspect->missing[i - 1] > epoch; i--) suspect->missing[i] = suspect->missing[i - 1];
    suspect->missing[i] = epoch;
}

void xep_ballot_suspect(xep_ballot_t *ballot, uint32_t rank, xep_out_reason_t reason, uint64_t top,
                        const uint64_t *missing, uint32_t count)
{
    xep_suspect_t *suspect = &ballot->suspects[rank];
    assert(suspect->reason == 0 && reason != 0);
    suspect->reason = reason;
    suspect->gone = 0;
    suspect->top = top;
    suspect->count = 0;
    for (uint32_t i = 0; i < count; i++) add_missing(suspect, ballot->most, missing[i]);
}

int xep_ballot_set_gone(xep_ballot_t *ballot, uint32_t rank)
{
    xep_suspect_t *suspect = &ballot->suspects[rank];
    assert(suspect->reason != 0);
    if (suspect->gone) return 0;
    suspect->gone = 1;
    return 1;
}

/*
 * In place: what is missing on both sides stays; what only theirs has begun is missing as they say. There is room: if
 * anything is added, all that stays is on their list, too.
 */
static int unite(xep_suspect_t *suspect, const xep_suspect_t *theirs, uint32_t most)
{
    uint64_t top = suspect->top, count = suspect->count, kept = 0;
    for (uint64_t i = 0; i < count; i++)
        if (!has(theirs, suspect->missing[i])) suspect->missing[kept++] = suspect->missing[i];
    suspect->count = kept;
    if (theirs->top > top) {
        suspect->top = theirs->top;
        for (uint64_t i = 0; i < theirs->count; i++)
            if (theirs->missing[i] > top) add_missing(suspect, most, theirs->missing[i]);
    }
    return kept != count || suspect->top != top;
}

/* The caller adds suspects that only the other ballot has, with what it knows of them itself. */
int xep_ballot_adopt(xep_ballot_t *ballot, const xep_ballot_t *theirs)
{
    int changed = 0;
    for (uint32_t r = 0; r < ballot->nranks; r++)
        if (xep_ballot_suspects(ballot, r) && xep_ballot_suspects(theirs, r)) {
            changed |= unite(&ballot->suspects[r], &theirs->suspects[r], ballot->most);
            if (theirs->suspects[r].gone) changed |= xep_ballot_set_gone(ballot, r);
        }
    for (uint32_t i = 0; i < theirs->decisions.count; i++)
        xep_decisions_add(&ballot->decisions, theirs->decisions.list[i]);
    if (theirs->decisions.forgotten > ballot->decisions.forgotten)
        ballot->decisions.forgotten = theirs->decisions.forgotten;
    return changed;
}

static int is_same_suspect(const xep_suspect_t *a, const xep_suspect_t *b)
{
    if (a->reason == 0 || b->reason == 0) return a->reason == b->reason;
    return a->gone == b->gone && a->top == b->top && a->count == b->count &&
           memcmp(a->missing, b->missing, a->count * sizeof *a->missing) == 0;
}

/* Why a rank is suspected may differ: one has seen it die, another has waited for it. */
int xep_ballot_is_same(const xep_ballot_t *a, const xep_ballot_t *b)
{
    for (uint32_t r = 0; r < a->nranks; r++)
        if (!is_same_suspect(&a->suspects[r], &b->suspects[r])) return 0;
    return 1;
}

int xep_ballot_is_with(const xep_ballot_t *ballot, uint32_t rank, uint64_t epoch)
{
    return has(&ballot->suspects[rank], epoch);
}

/* ---- words ---- */

uint64_t xep_ballot_words(uint32_t nranks, uint32_t most)
{
    return HEAD_WORDS + (uint64_t)most * DECISION_WORDS + (nranks - 1) * (SUSPECT_WORDS + (uint64_t)most);
}

static uint64_t length_of(const xep_ballot_t *ballot)
{
    uint64_t length = HEAD_WORDS + (uint64_t)ballot->decisions.count * DECISION_WORDS;
    for (uint32_t r = 0; r < ballot->nranks; r++)
        if (xep_ballot_suspects(ballot, r)) length += SUSPECT_WORDS + ballot->suspects[r].count;
    return length;
}

/*
 * The sum of all words but the first. It finds torn words, which the wire writes while they are read; it does not
 * protect against attacks.
 */
static uint64_t sum_of(const uint64_t *words, uint64_t count)
{
    uint64_t sum = count;
    for (uint64_t i = 1; i < count; i++) sum = (sum ^ words[i]) * UINT64_C(0x100000001b3) + (sum >> 29);
    return sum;
}

static uint64_t *write_suspect(uint64_t *to, uint32_t rank, const xep_suspect_t *suspect)
{
    *to++ = rank;
    *to++ = suspect->reason | (suspect->gone ? GONE_BIT : 0);
    *to++ = suspect->top;
    *to++ = suspect->count;
    memcpy(to, suspect->missing, suspect->count * sizeof *to);
    return to + suspect->count;
}

uint64_t xep_ballot_write(const xep_ballot_t *ballot, uint64_t *words, uint64_t capacity)
{
    const xep_decisions_t *decisions = &ballot->decisions;
    uint64_t length = length_of(ballot), *to = words + HEAD_WORDS;
    if (length > capacity) return 0;
    words[1] = xep_ballot_count(ballot);
    words[2] = decisions->count;
    words[3] = decisions->forgotten;
    for (uint32_t i = 0; i < decisions->count; i++) {
        *to++ = decisions->list[i].epoch;
        *to++ = (uint64_t)-decisions->list[i].status;
        *to++ = decisions->list[i].refused;
    }
    for (uint32_t r = 0; r < ballot->nranks; r++)
        if (xep_ballot_suspects(ballot, r)) to = write_suspect(to, r, &ballot->suspects[r]);
    words[0] = sum_of(words, length);
    return length;
}

/** What is left to read. */
typedef struct reader {
    const uint64_t *at;
    uint64_t left;
} reader_t;

static int take(reader_t *reader, uint64_t count, const uint64_t **words_p)
{
    if (count > reader->left) return 0;
    *words_p = reader->at;
    reader->at += count;
    reader->left -= count;
    return 1;
}

static int is_ascending(const xep_suspect_t *suspect)
{
    for (uint64_t i = 0; i < suspect->count; i++)
        if (suspect->missing[i] > suspect->top || (i > 0 && suspect->missing[i] <= suspect->missing[i - 1])) return 0;
    return 1;
}

static int take_suspect(reader_t *reader, xep_ballot_t *ballot)
{
    const uint64_t *head, *missing;
    /* nothing is copied before it is certain that this ballot has room for it, and that the words are there */
    if (!take(reader, SUSPECT_WORDS, &head) || head[0] >= ballot->nranks || head[3] > ballot->most ||
        !take(reader, head[3], &missing))
        return 0;
    xep_suspect_t *suspect = &ballot->suspects[head[0]];
    if (suspect->reason != 0) return 0; /* twice */
    suspect->reason = head[1] & ~(uint64_t)GONE_BIT;
    suspect->gone = (head[1] & GONE_BIT) != 0;
    if (suspect->reason == 0 || suspect->reason > XEP_OUT_ASKED) return 0;
    suspect->top = head[2];
    suspect->count = head[3];
    memcpy(suspect->missing, missing, suspect->count * sizeof *missing);
    return is_ascending(suspect);
}

static void take_decisions(xep_decisions_t *decisions, const uint64_t *words, uint64_t count, uint64_t forgotten)
{
    for (; count > 0; count--, words += DECISION_WORDS)
        for (int i = 0; i < NDUE; i++)
            if (words[1] == (uint64_t)-due[i])
                xep_decisions_add(decisions, (xep_decision_t){words[0], due[i], (uint32_t)words[2]});
    decisions->forgotten = forgotten;
}

/*
 * The number of words in the sum follows from the words themselves: so they are checked and taken before it is known
 * whether they are whole.
 */
int xep_ballot_read(xep_ballot_t *ballot, const uint64_t *words, uint64_t count)
{
    reader_t reader = {words, count};
    const uint64_t *head, *ruled;
    for (uint32_t r = 0; r < ballot->nranks; r++) ballot->suspects[r].reason = 0;
    ballot->decisions.count = 0;
    ballot->decisions.forgotten = 0;
    if (!take(&reader, HEAD_WORDS, &head) || head[1] > ballot->nranks || head[2] > ballot->decisions.most ||
        !take(&reader, head[2] * DECISION_WORDS, &ruled))
        return 0;
    for (uint64_t i = 0; i < head[1]; i++)
        if (!take_suspect(&reader, ballot)) return 0;
    take_decisions(&ballot->decisions, ruled, head[2], head[3]);
    return sum_of(words, count - reader.left) == head[0];
}
