/* SPDX-License-Identifier: BSD-3-Clause */

/* Words: sum, suspects, rulings, forgotten; each ruling as epoch, status, refused; each tally as rank, doubt, top,
 * count and the epochs. */
#include "ballot_words.h"

#include <string.h>

enum { HEAD_WORDS = 4, RULING_WORDS = 3, TALLY_WORDS = 4 };

static const xep_status_t due[] = {XEP_ERR_MISMATCH, XEP_ERR_OVERFLOW, XEP_ERR_INVALID};
enum { NDUE = sizeof due / sizeof due[0] };

/* ---- rulings ---- */

int xep_ruling_is_due(xep_status_t status)
{
    for (int i = 0; i < NDUE; i++)
        if (due[i] == status) return 1;
    return 0;
}

const xep_ruling_t *xep_rulings_find(const xep_rulings_t *rulings, uint64_t epoch)
{
    for (uint32_t i = 0; i < rulings->count; i++)
        if (rulings->list[i].epoch == epoch) return &rulings->list[i];
    return NULL;
}

/*
 * A rank that looks for a ruling that was forgotten has to know that it may have been there: so "forgotten" is the
 * latest epoch that was dropped, and nothing at or before it is taken any more.
 */
void xep_rulings_add(xep_rulings_t *rulings, xep_ruling_t ruling)
{
    if (xep_rulings_find(rulings, ruling.epoch) != NULL || ruling.epoch <= rulings->forgotten) return;
    if (rulings->count < rulings->most) {
        rulings->list[rulings->count++] = ruling;
        return;
    }
    xep_ruling_t *oldest = &rulings->list[0];
    for (uint32_t i = 1; i < rulings->count; i++)
        if (rulings->list[i].epoch < oldest->epoch) oldest = &rulings->list[i];
    if (ruling.epoch < oldest->epoch) {
        rulings->forgotten = ruling.epoch;
        return;
    }
    rulings->forgotten = oldest->epoch;
    *oldest = ruling;
}

/* ---- writing ---- */

uint64_t xep_ballot_words(uint32_t nranks, uint32_t most)
{
    uint64_t suspects = nranks - 1 < XEP_BALLOT_MOST_SUSPECTS ? nranks - 1 : XEP_BALLOT_MOST_SUSPECTS;
    return HEAD_WORDS + (uint64_t)most * RULING_WORDS + suspects * (TALLY_WORDS + (uint64_t)most);
}

/*
 * Of all behind the first. It finds words that are torn, as the wire may be writing them while they are read; it is
 * no protection against a rank that means ill.
 */
static uint64_t sum_of(const uint64_t *words, uint64_t count)
{
    uint64_t sum = count;
    for (uint64_t i = 1; i < count; i++) sum = (sum ^ words[i]) * UINT64_C(0x100000001b3) + (sum >> 29);
    return sum;
}

static uint64_t *write_tally(uint64_t *to, uint32_t rank, const xep_tally_t *tally)
{
    *to++ = rank;
    *to++ = xep_tally_doubt_word(tally);
    *to++ = tally->top;
    *to++ = tally->count;
    memcpy(to, tally->missing, tally->count * sizeof *to);
    return to + tally->count;
}

uint64_t xep_ballot_write_words(const xep_ballot_t *ballot, const xep_rulings_t *rulings, uint64_t *words)
{
    uint64_t suspects = 0, *to = words + HEAD_WORDS;
    for (uint32_t r = 0; r < ballot->nranks; r++) suspects += (uint64_t)xep_ballot_suspects(ballot, r);
    if (suspects > XEP_BALLOT_MOST_SUSPECTS) return 0;
    words[1] = suspects;
    words[2] = rulings->count;
    words[3] = rulings->forgotten;
    for (uint32_t i = 0; i < rulings->count; i++) {
        *to++ = rulings->list[i].epoch;
        *to++ = (uint64_t)-rulings->list[i].status;
        *to++ = rulings->list[i].refused;
    }
    for (uint32_t r = 0; r < ballot->nranks; r++)
        if (xep_ballot_suspects(ballot, r)) to = write_tally(to, r, &ballot->tallies[r]);
    words[0] = sum_of(words, (uint64_t)(to - words));
    return (uint64_t)(to - words);
}

/* ---- reading ---- */

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

static int is_ascending(const xep_tally_t *tally)
{
    for (uint64_t i = 0; i < tally->count; i++)
        if (tally->missing[i] > tally->top || (i > 0 && tally->missing[i] <= tally->missing[i - 1])) return 0;
    return 1;
}

static int take_tally(reader_t *reader, xep_ballot_t *ballot)
{
    const uint64_t *head, *missing;
    /* nothing is copied before it is certain that this ballot has room for it, and that the words are there */
    if (!take(reader, TALLY_WORDS, &head) || head[0] >= ballot->nranks || head[3] > ballot->most ||
        !take(reader, head[3], &missing))
        return 0;
    xep_tally_t *tally = &ballot->tallies[head[0]];
    if (tally->doubt != XEP_TRUSTED) return 0; /* twice */
    if (!xep_tally_take_doubt(tally, head[1]) || tally->doubt == XEP_TRUSTED) return 0;
    tally->top = head[2];
    tally->count = head[3];
    memcpy(tally->missing, missing, tally->count * sizeof *missing);
    return is_ascending(tally);
}

static void take_rulings(xep_rulings_t *rulings, const uint64_t *words, uint64_t count, uint64_t forgotten)
{
    for (; count > 0; count--, words += RULING_WORDS)
        for (int i = 0; i < NDUE; i++)
            if (words[1] == (uint64_t)-due[i])
                xep_rulings_add(rulings, (xep_ruling_t){words[0], due[i], (uint32_t)words[2]});
    if (forgotten > rulings->forgotten) rulings->forgotten = forgotten;
}

/*
 * How many words the sum is of follows from the words themselves: so tallies are checked, and taken, before it is
 * known whether the words are whole. They go into the caller's scratch. Rulings stay for good, and so come last.
 */
int xep_ballot_take_words(xep_ballot_t *ballot, xep_rulings_t *rulings, const uint64_t *words, uint64_t count)
{
    reader_t reader = {words, count};
    const uint64_t *head, *ruled;
    for (uint32_t r = 0; r < ballot->nranks; r++) ballot->tallies[r].doubt = XEP_TRUSTED;
    if (!take(&reader, HEAD_WORDS, &head) || head[1] > XEP_BALLOT_MOST_SUSPECTS || head[2] > rulings->most ||
        !take(&reader, head[2] * RULING_WORDS, &ruled))
        return 0;
    for (uint64_t i = 0; i < head[1]; i++)
        if (!take_tally(&reader, ballot)) return 0;
    if (sum_of(words, count - reader.left) != head[0]) return 0;
    take_rulings(rulings, ruled, head[2], head[3]);
    return 1;
}
