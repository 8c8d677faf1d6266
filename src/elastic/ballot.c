/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A tally is a set of operations: all up to top but those missing. The union of two of them misses what both miss, and
 * of the operations that only one has begun, what that one misses: never more than the longer list.
 */
#include "ballot.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/** Where others read it. The tallies follow, each as doubt, top, count and the epochs. */
typedef struct shared_ballot {
    _Atomic uint64_t version; /* odd while it is written */
    uint64_t reserved[7];
    _Atomic uint64_t words[];
} shared_ballot_t;
_Static_assert(sizeof(shared_ballot_t) == 64, "a cache line before the tallies");

enum { HEAD_WORDS = 3 };

/* One piece of memory for all lists, of the length that any of them can have: agreeing allocates nothing. */
int xep_ballot_open(xep_ballot_t *ballot, uint32_t nranks, uint32_t most)
{
    *ballot = (xep_ballot_t){.nranks = nranks,
                             .most = most,
                             .tallies = calloc(nranks, sizeof *ballot->tallies),
                             .epochs = calloc((size_t)nranks * most, sizeof *ballot->epochs)};
    if (ballot->tallies == NULL || ballot->epochs == NULL) {
        xep_ballot_close(ballot);
        return 0;
    }
    for (uint32_t r = 0; r < nranks; r++) ballot->tallies[r].missing = ballot->epochs + (size_t)r * most;
    return 1;
}

void xep_ballot_close(xep_ballot_t *ballot)
{
    free(ballot->tallies);
    free(ballot->epochs);
    *ballot = (xep_ballot_t){0};
}

static size_t tally_words(uint32_t most)
{
    return HEAD_WORDS + (size_t)most;
}

uint64_t xep_ballot_bytes(uint32_t nranks, uint32_t most)
{
    uint64_t bytes = sizeof(shared_ballot_t) + nranks * tally_words(most) * sizeof(uint64_t);
    return (bytes + 63) & ~(uint64_t)63;
}

/* ---- tallies ---- */

/* Lists have as many entries as operations can be in flight, a handful: a loop is the fastest search. */
static int misses(const xep_tally_t *tally, uint64_t epoch)
{
    for (uint64_t i = 0; i < tally->count; i++)
        if (tally->missing[i] == epoch) return 1;
    return 0;
}

static int has(const xep_tally_t *tally, uint64_t epoch)
{
    return epoch <= tally->top && !misses(tally, epoch);
}

/* Ascending, so that two tallies of the same operations are the same words. */
static void add_missing(xep_tally_t *tally, uint32_t most, uint64_t epoch)
{
    uint64_t i = tally->count++;
    assert(tally->count <= most);
    (void)most;
    for (; i > 0 && tally->missing[i - 1] > epoch; i--) tally->missing[i] = tally->missing[i - 1];
    tally->missing[i] = epoch;
}

void xep_ballot_suspect(xep_ballot_t *ballot, uint32_t rank, xep_doubt_t doubt, uint64_t top, const uint64_t *missing,
                        uint32_t count)
{
    xep_tally_t *tally = &ballot->tallies[rank];
    assert(tally->doubt == XEP_TRUSTED && doubt != XEP_TRUSTED);
    tally->doubt = doubt;
    tally->gone = 0;
    tally->top = top;
    tally->count = 0;
    for (uint32_t i = 0; i < count; i++) add_missing(tally, ballot->most, missing[i]);
}

int xep_ballot_set_gone(xep_ballot_t *ballot, uint32_t rank)
{
    xep_tally_t *tally = &ballot->tallies[rank];
    assert(tally->doubt != XEP_TRUSTED);
    if (tally->gone) return 0;
    tally->gone = 1;
    return 1;
}

enum { GONE_BIT = 256 /* beside the doubt */ };

uint64_t xep_tally_doubt_word(const xep_tally_t *tally)
{
    return tally->doubt | (tally->gone ? GONE_BIT : 0);
}

int xep_tally_take_doubt(xep_tally_t *tally, uint64_t word)
{
    tally->doubt = word & ~(uint64_t)GONE_BIT;
    tally->gone = (word & GONE_BIT) != 0;
    return tally->doubt <= XEP_DOUBT_ASKED && (tally->doubt != XEP_TRUSTED || !tally->gone);
}

/*
 * In place: what is missing on both sides stays; what only theirs has begun is missing as they say. There is room: if
 * anything is added, all that stays is on their list, too.
 */
static int unite(xep_tally_t *tally, const xep_tally_t *theirs, uint32_t most)
{
    uint64_t top = tally->top, count = tally->count, kept = 0;
    for (uint64_t i = 0; i < count; i++)
        if (!has(theirs, tally->missing[i])) tally->missing[kept++] = tally->missing[i];
    tally->count = kept;
    if (theirs->top > top) {
        tally->top = theirs->top;
        for (uint64_t i = 0; i < theirs->count; i++)
            if (theirs->missing[i] > top) add_missing(tally, most, theirs->missing[i]);
    }
    return kept != count || tally->top != top;
}

/* Suspects that only the other one has are the caller's business: it adds what it knows of them itself (members.c). */
int xep_ballot_adopt(xep_ballot_t *ballot, const xep_ballot_t *theirs)
{
    int changed = 0;
    for (uint32_t r = 0; r < ballot->nranks; r++)
        if (xep_ballot_suspects(ballot, r) && xep_ballot_suspects(theirs, r)) {
            changed |= unite(&ballot->tallies[r], &theirs->tallies[r], ballot->most);
            if (theirs->tallies[r].gone) changed |= xep_ballot_set_gone(ballot, r);
        }
    return changed;
}

static int is_same_tally(const xep_tally_t *a, const xep_tally_t *b)
{
    if (a->doubt == XEP_TRUSTED || b->doubt == XEP_TRUSTED) return a->doubt == b->doubt;
    return a->gone == b->gone && a->top == b->top && a->count == b->count &&
           memcmp(a->missing, b->missing, a->count * sizeof *a->missing) == 0;
}

/* Why a rank is suspected may differ: one has seen it die, another has waited for it. */
int xep_ballot_is_same(const xep_ballot_t *a, const xep_ballot_t *b)
{
    for (uint32_t r = 0; r < a->nranks; r++)
        if (!is_same_tally(&a->tallies[r], &b->tallies[r])) return 0;
    return 1;
}

int xep_ballot_is_with(const xep_ballot_t *ballot, uint32_t rank, uint64_t epoch)
{
    return has(&ballot->tallies[rank], epoch);
}

/* ---- shared ---- */

/* Relaxed atomics: a reader may look in the middle of it, which version then tells; no order is needed between them. */
static void store(_Atomic uint64_t *to, uint64_t value)
{
    atomic_store_explicit(to, value, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

/* Odd before the first word, even after the last: a reader that has seen one of ours sees that the version moved. */
void xep_ballot_publish(const xep_ballot_t *ballot, void *opaque)
{
    shared_ballot_t *shared = opaque;
    uint64_t version = load(&shared->version);
    store(&shared->version, version + 1);
    atomic_thread_fence(memory_order_release);
    for (uint32_t r = 0; r < ballot->nranks; r++) {
        const xep_tally_t *tally = &ballot->tallies[r];
        _Atomic uint64_t *words = shared->words + r * tally_words(ballot->most);
        store(&words[0], xep_tally_doubt_word(tally));
        store(&words[1], tally->top);
        store(&words[2], tally->count);
        for (uint64_t i = 0; i < tally->count; i++) store(&words[HEAD_WORDS + i], tally->missing[i]);
    }
    atomic_store_explicit(&shared->version, version + 2, memory_order_release);
}

/* Another process wrote it: a list that is too long, or not ascending, would be used as an index or loop for ever. */
static int copy_tally(xep_tally_t *tally, const _Atomic uint64_t *words, uint32_t most)
{
    int sane = xep_tally_take_doubt(tally, load(&words[0]));
    tally->top = load(&words[1]);
    tally->count = load(&words[2]);
    if (!sane || tally->count > most) return 0;
    for (uint64_t i = 0; i < tally->count; i++) {
        tally->missing[i] = load(&words[HEAD_WORDS + i]);
        if (tally->missing[i] > tally->top || (i > 0 && tally->missing[i] <= tally->missing[i - 1])) return 0;
    }
    return 1;
}

/*
 * The same version before and behind the words, and even: they are of one ballot. The acquire fence keeps the loads
 * of words from coming behind the second look at the version.
 */
int xep_ballot_read(xep_ballot_t *ballot, const void *opaque)
{
    const shared_ballot_t *shared = opaque;
    uint64_t version = atomic_load_explicit(&shared->version, memory_order_acquire);
    int sane = version % 2 == 0;
    for (uint32_t r = 0; r < ballot->nranks && sane; r++)
        sane = copy_tally(&ballot->tallies[r], shared->words + r * tally_words(ballot->most), ballot->most);
    atomic_thread_fence(memory_order_acquire);
    return sane && load(&shared->version) == version;
}
