/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The agreement on who is out, with the ballots of the library and ranks of this test: each begins operations, gets
 * words, ends operations, dies, doubts, reads ballots and decides, in random order. Whoever is left in the end must
 * have ended every operation with the same ranks. What every order of fewer steps does, test/model proves.
 */
#include <stdlib.h>
#include <string.h>

#include "ballot.h"
#include "unit.h"

enum { MOST_RANKS = 6, OPS = 7, FLYING = 3, WORDS = 128, ROUNDS = 20000, STEPS = 4000 };

typedef struct rank {
    int dead, slow;             /* slow: it lives, and is doubted all the same */
    uint32_t begun;             /* operations */
    uint32_t told;              /* ranks that have the word of the last one */
    uint32_t words[MOST_RANKS]; /* operations, as bits: whose words are here */
    uint32_t ended;             /* operations, as bits */
    uint32_t with[OPS];         /* ranks, as bits */
    uint32_t decided, asked;    /* ranks, as bits */
    xep_ballot_t ballot, theirs;
    uint64_t said[WORDS]; /* of its ballot, as others read it */
} rank_t;

static rank_t ranks[MOST_RANKS];
static uint32_t nranks;
static uint64_t dice;

static uint32_t below(uint32_t n)
{
    return unit_random(&dice) % n;
}

static uint32_t suspects(const rank_t *rank)
{
    uint32_t set = 0;
    for (uint32_t r = 0; r < nranks; r++) set |= (uint32_t)xep_ballot_suspects(&rank->ballot, r) << r;
    return set;
}

static int is_open(const rank_t *rank)
{
    return suspects(rank) != rank->decided;
}

/* Told by others that it is out, or dead. */
static int is_gone(uint32_t r)
{
    uint32_t told = 0;
    for (uint32_t q = 0; q < nranks; q++) told |= ranks[q].decided;
    return ranks[r].dead || (told >> r & 1);
}

/* ---- what a rank does ---- */

static void begin(uint32_t self)
{
    rank_t *me = &ranks[self];
    if (is_open(me) || me->told != (1u << nranks) - 1 || me->begun == OPS) return;
    if (me->begun >= FLYING && !(me->ended >> (me->begun - FLYING) & 1)) return;
    me->words[self] |= 1u << me->begun++;
    me->told = 1u << self;
}

static void tell(uint32_t self)
{
    uint32_t to = below(nranks);
    if (ranks[self].told >> to & 1) return;
    ranks[to].words[self] |= 1u << (ranks[self].begun - 1);
    ranks[self].told |= 1u << to;
}

/* The word of a suspect that an operation is with is fetched: somebody must have it, dead or alive. */
static int is_anywhere(uint32_t of, uint32_t op)
{
    for (uint32_t r = 0; r < nranks; r++)
        if (ranks[r].words[of] >> op & 1) return 1;
    return 0;
}

static void end(uint32_t self, uint32_t op)
{
    rank_t *me = &ranks[self];
    uint32_t members = 0;
    if (is_open(me) || op >= me->begun || (me->ended >> op & 1)) return;
    for (uint32_t r = 0; r < nranks; r++) {
        int doubted = me->decided >> r & 1;
        if (doubted && !xep_ballot_is_with(&me->ballot, r, op + 1)) continue;
        if (doubted) assert_true(is_anywhere(r, op));
        else if (!(me->words[r] >> op & 1)) return;
        members |= 1u << r;
    }
    me->ended |= 1u << op;
    me->with[op] = members;
}

static void suspect(uint32_t self, uint32_t other)
{
    rank_t *me = &ranks[self];
    uint64_t missing[FLYING];
    uint32_t count = 0;
    for (uint32_t op = me->begun; op-- > 0;)
        if (!(me->words[other] >> op & 1) && !(me->ended >> op & 1)) missing[count++] = op + 1;
    /* what has ended without it was decided before, and it is a suspect since then */
    xep_ballot_suspect(&me->ballot, other, XEP_OUT_DIED, me->begun, missing, count);
    xep_ballot_write(&me->ballot, me->said, WORDS);
    me->asked = 0;
}

static void doubt(uint32_t self)
{
    uint32_t other = below(nranks);
    if (other == self || xep_ballot_suspects(&ranks[self].ballot, other)) return;
    if (ranks[other].dead || ranks[other].slow) suspect(self, other);
}

static void listen(uint32_t self, uint32_t other)
{
    rank_t *me = &ranks[self];
    if (other == self || xep_ballot_suspects(&me->ballot, other)) return;
    assert_true(xep_ballot_read(&me->theirs, ranks[other].said, WORDS));
    for (uint32_t r = 0; r < nranks; r++)
        if (r != self && xep_ballot_suspects(&me->theirs, r) && !xep_ballot_suspects(&me->ballot, r)) suspect(self, r);
    if (xep_ballot_adopt(&me->ballot, &me->theirs)) {
        xep_ballot_write(&me->ballot, me->said, WORDS);
        me->asked = 0;
    }
    if (xep_ballot_is_same(&me->ballot, &me->theirs)) me->asked |= 1u << other;
}

static void decide(uint32_t self)
{
    rank_t *me = &ranks[self];
    if (is_open(me) && (me->asked | suspects(me) | 1u << self) == (1u << nranks) - 1) me->decided = suspects(me);
}

static void step(uint32_t self)
{
    if (is_gone(self)) return;
    if (ranks[self].told != (1u << nranks) - 1) {
        tell(self);
        return;
    }
    switch (below(6)) {
    case 0: begin(self); break;
    case 1: doubt(self); break;
    case 2:
    case 3: listen(self, below(nranks)); break;
    case 4: decide(self); break;
    default: end(self, below(OPS));
    }
}

/* ---- a round ---- */

static void set_up(uint32_t n)
{
    nranks = n;
    for (uint32_t r = 0; r < n; r++) {
        memset(&ranks[r], 0, sizeof ranks[r]);
        ranks[r].told = (1u << n) - 1;
        assert_true(xep_ballot_words(n, FLYING) <= WORDS);
        assert_true(xep_ballot_open(&ranks[r].ballot, n, FLYING) && xep_ballot_open(&ranks[r].theirs, n, FLYING));
        xep_ballot_write(&ranks[r].ballot, ranks[r].said, WORDS);
    }
}

static void tear_down(void)
{
    for (uint32_t r = 0; r < nranks; r++) {
        xep_ballot_close(&ranks[r].ballot);
        xep_ballot_close(&ranks[r].theirs);
    }
}

static int is_finished(void)
{
    for (uint32_t r = 0; r < nranks; r++)
        if (!is_gone(r) && ranks[r].ended != (1u << OPS) - 1) return 0;
    return 1;
}

/* Up to all but one die, each at any step; the last that is doubted may be alive. */
static void play(void)
{
    uint32_t deaths = below(nranks), slow = below(2);
    for (uint32_t i = 0; i < STEPS * nranks && !is_finished(); i++) {
        uint32_t r = below(nranks);
        if (deaths > slow && below(40) == 0 && !ranks[r].slow && !ranks[r].dead) ranks[r].dead = 1, deaths--;
        else if (deaths == 1 && slow && below(40) == 0 && !ranks[r].dead) ranks[r].slow = 1, slow = deaths = 0;
        step(r);
    }
}

TEST(survivors_agree)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        int first = -1;
        dice = round;
        set_up(2 + round % (MOST_RANKS - 1));
        play();
        if (!is_finished()) fail_msg("round %u: some rank still waits", round);
        for (uint32_t r = 0; r < nranks; r++) {
            if (is_gone(r)) continue;
            if (first >= 0 && memcmp(ranks[first].with, ranks[r].with, sizeof ranks[r].with) != 0)
                fail_msg("round %u: ranks %d and %u ended an operation with other ranks", round, first, r);
            first = (int)r;
        }
        tear_down();
    }
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
