/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Ballots: two become one; what is written is read as it was, and words that are torn or cut are refused; what has
 * become of operations is kept as long as there is room. What ranks make of them together is played by
 * test/sim/sim_deaths.c, words of a rank that lies by test/fuzz/fuzz_ballot.c.
 */
#include <stdlib.h>
#include <string.h>

#include "ballot.h"
#include "unit.h"

enum { RANKS = 7, MOST = 6, ROUNDS = 20000, WORDS = 256, FLYING = 3 };

static uint64_t dice = 5;

static uint64_t below(uint64_t n)
{
    return unit_random(&dice) % n;
}

static void open_ballot(xep_ballot_t *ballot)
{
    assert_true(xep_ballot_open(ballot, RANKS, MOST));
}

/* Some suspects, each with some operations missing; some adopted decisions. */
static void fill(xep_ballot_t *ballot)
{
    static const xep_status_t due[] = {XEP_ERR_MISMATCH, XEP_ERR_OVERFLOW, XEP_ERR_INVALID};
    for (uint32_t r = 0; r < RANKS; r++) {
        uint64_t missing[MOST], top = 20 + below(5), count = below(MOST + 1);
        ballot->suspects[r].reason = 0;
        if (below(3) != 0 || r == RANKS - 1) continue;
        for (uint64_t i = 0; i < count; i++) missing[i] = top - 2 * i;
        xep_ballot_suspect(ballot, r, (xep_out_reason_t)(1 + below(3)), top, missing, (uint32_t)count);
        if (below(2)) assert_true(xep_ballot_set_gone(ballot, r));
    }
    ballot->decisions.count = 0;
    ballot->decisions.forgotten = below(3);
    for (uint64_t i = below(MOST + 1); i > 0; i--)
        xep_decisions_add(&ballot->decisions, (xep_decision_t){10 + i, due[below(3)], (uint32_t)below(100)});
}

TEST(what_is_written_is_read)
{
    xep_ballot_t one, other;
    uint64_t words[WORDS] = {0};
    open_ballot(&one);
    for (int round = 0; round < ROUNDS / 10; round++) {
        open_ballot(&other);
        fill(&one);
        uint64_t length = xep_ballot_write(&one, words, WORDS);
        assert_true(length != 0 && length <= xep_ballot_words(RANKS, MOST));
        assert_true(xep_ballot_write(&one, words, length) == length && xep_ballot_write(&one, words, length - 1) == 0);
        assert_true(xep_ballot_read(&other, words, WORDS));
        assert_true(xep_ballot_is_same(&one, &other));
        assert_int_equal(one.decisions.count, other.decisions.count);
        assert_int_equal(one.decisions.forgotten, other.decisions.forgotten);
        for (uint32_t i = 0; i < one.decisions.count; i++) {
            const xep_decision_t *same = xep_decisions_find(&other.decisions, one.decisions.list[i].epoch);
            assert_true(same != NULL && same->status == one.decisions.list[i].status &&
                        same->refused == one.decisions.list[i].refused);
        }
        xep_ballot_close(&other);
    }
    xep_ballot_close(&one);
}

/* The reader has exactly the words it may read, so that a sanitizer sees one too many. */
static int take_copy(xep_ballot_t *ballot, const uint64_t *words, uint64_t count)
{
    uint64_t *copy = malloc((count + 1) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, words, count * sizeof *copy);
    int taken = xep_ballot_read(ballot, copy, count);
    free(copy);
    return taken;
}

/* A word of another ballot, a bit, or the rest is missing. */
static void spoil(uint64_t *words, const uint64_t *before, uint64_t *count_p)
{
    uint64_t at = below(*count_p);
    switch (below(4)) {
    case 0: words[at] = before[at]; break;
    case 1: words[at] ^= UINT64_C(1) << below(64); break;
    case 2: words[at] = below(2) ? UINT64_MAX - below(3) : below(200); break;
    default: *count_p = at; break;
    }
}

TEST(what_is_spoiled_is_refused)
{
    xep_ballot_t one, other;
    uint64_t words[WORDS] = {0}, before[WORDS] = {0};
    open_ballot(&one);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t whole[WORDS];
        open_ballot(&other);
        fill(&one);
        memcpy(before, words, sizeof before);
        uint64_t length = xep_ballot_write(&one, words, WORDS), count = length;
        memcpy(whole, words, sizeof whole);
        for (uint64_t n = 1 + below(3); n > 0 && count > 0; n--) spoil(words, before, &count);
        int taken = take_copy(&other, words, count);
        assert_int_equal(taken, count >= length && memcmp(words, whole, length * sizeof *words) == 0);
        xep_ballot_close(&other);
    }
    xep_ballot_close(&one);
}

/* What may be missing is said, and never what is there. */
TEST(the_oldest_is_forgotten)
{
    xep_ballot_t side;
    open_ballot(&side);
    for (int round = 0; round < ROUNDS / 10; round++) {
        uint64_t given[64] = {0}, from = 0;
        side.decisions.count = 0;
        side.decisions.forgotten = 0;
        for (int i = 0; i < 20; i++) {
            uint64_t epoch = 1 + (uint64_t)i + below(5);
            xep_decisions_add(&side.decisions, (xep_decision_t){epoch, XEP_ERR_MISMATCH, (uint32_t)epoch});
            given[epoch] = 1;
        }
        for (uint64_t epoch = 1; epoch < 64; epoch++) {
            const xep_decision_t *found = xep_decisions_find(&side.decisions, epoch);
            if (epoch > side.decisions.forgotten) assert_int_equal(found != NULL, given[epoch]);
            from += found != NULL;
        }
        assert_int_equal(from, MOST);
    }
    xep_ballot_close(&side);
}

/* ---- suspects ---- */

static xep_ballot_t make(uint64_t top, uint32_t count, uint64_t a, uint64_t b)
{
    xep_ballot_t ballot;
    uint64_t missing[] = {a, b};
    assert_true(xep_ballot_open(&ballot, 2, FLYING));
    xep_ballot_suspect(&ballot, 1, XEP_OUT_LATE, top, missing, count);
    return ballot;
}

TEST(a_union_misses_what_both_miss)
{
    xep_ballot_t short_one = make(5, 2, 5, 3), long_one = make(9, 2, 8, 3);
    assert_true(xep_ballot_adopt(&short_one, &long_one));
    assert_false(xep_ballot_adopt(&short_one, &long_one));
    for (uint64_t epoch = 1; epoch < 12; epoch++)
        assert_int_equal(xep_ballot_is_with(&short_one, 1, epoch), epoch != 3 && epoch != 8 && epoch <= 9);
    assert_true(xep_ballot_adopt(&long_one, &short_one) == 0 && xep_ballot_is_same(&short_one, &long_one));
    xep_ballot_close(&short_one);
    xep_ballot_close(&long_one);
}

/* Lists of honest ranks never come to more than the longer one. Of others only what there is room for is taken. */
TEST(a_list_that_is_too_long_together)
{
    static const uint64_t mine[] = {2, 3}, theirs[] = {8, 9};
    xep_ballot_t a, b;
    assert_true(xep_ballot_open(&a, 2, 2) && xep_ballot_open(&b, 2, 2));
    a.suspects[1].missing = a.epochs; /* of rank 1, so that what is behind it is seen */
    a.epochs[2] = UINT64_MAX;
    xep_ballot_suspect(&a, 1, XEP_OUT_LATE, 3, mine, 2);
    xep_ballot_suspect(&b, 1, XEP_OUT_LATE, 9, theirs, 2);
    assert_true(xep_ballot_adopt(&a, &b));
    assert_int_equal(a.suspects[1].count, 2);
    assert_true(a.epochs[2] == UINT64_MAX);
    xep_ballot_close(&a);
    xep_ballot_close(&b);
}
