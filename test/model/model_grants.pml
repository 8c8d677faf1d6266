/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches of normal where ranks may be left out and do not map one another (plugins/normal/normal_grants.c):
 * records, rows and done of each rank, in messages, and the agreement of model_mask.pml as it is over the wire. A rank
 * that is gone takes part in an operation if some rank has a verdict from its records; a rank that lacks its done does
 * without it, and a rank without a verdict takes over that of the others.
 *
 * A rank that has the records of all ranks that were in when its operation began knows where its rows go; any other one
 * asks all ranks for room, and sends when all have granted it. Asserted: ranks that know have the same records, so rows
 * never overlap, whenever they come.
 *
 * One step of a rank is one of its phases, for all ranks; the messages of it arrive in order, as late as they like,
 * also from the dead; what has not arrived when the receiver has decided that the sender is out never does. One more
 * step is a ballot that arrives, one that is looked at, and an operation that ends.
 *
 * A message that has arrived and is not looked at changes nothing, so that when it arrives need not be tried: a rank
 * may look at all that was sent, whenever it makes a step, and when it decides that a rank is out, any part of what
 * that one has sent, and was not looked at, has come. Rows are stored without a look: that they may come is checked as
 * soon as they may, and whoever has granted room for them shows them to nobody before they are there, or never come.
 *
 * An operation uses the words and the slot of the one SLOTS before it again. What is written there is checked to be
 * read.
 *
 * Sizes, by -D: RANKS is 3; OPS, SLOTS (operations in flight at once), DEATHS (at most so many ranks die).
 * Choices:
 *   SLOW     one rank may be suspected although it lives, and goes on with what it was at
 *   BAD      one rank disagrees with the others in every operation: all end it as an error, or all without that rank
 *   DEFECT_* a deliberate defect: protocols.sh has the list
 */
#define RANKS 3
#ifndef OPS
#define OPS 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define ALL_RANKS ((1 << RANKS) - 1)
#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)

/* What a rank has sent last of an operation: with TAKEN it asks, if it must; its rows go with its done. */
#define RECORD 1
#define TAKEN 2
#define DONE 3

byte sent[RANKS * OPS];
byte come[RANKS * OPS];            /* ranks that are out whose done had come when that was decided */
byte begun[RANKS];                 /* how many operations */
byte taken[RANKS], failed[RANKS], ended[RANKS]; /* concluded; of these with an error; ended */
byte counts[RANKS * OPS];          /* whose records count, as the rank knows */
byte changed[RANKS];               /* operations that were begun and not concluded when the rank decided */
byte granted[RANKS * OPS];         /* to whom the rank has granted room */

/* A ballot: whom the rank suspects, of which operations some rank has concluded with these, and of which of them so. */
byte suspects[RANKS], ruled[RANKS];
byte held[RANKS * RANKS];
byte seen[RANKS * RANKS], seen_ruled[RANKS * RANKS]; /* [r][q]: the ballot of q as it came to r last */
byte seen_held[RANKS * RANKS * RANKS];

byte decided[RANKS];               /* suspects, as far as they are agreed on */
byte asked[RANKS];                 /* ranks whose ballot was found to be the same since ours changed last */
byte dead, out;                    /* out: ranks that were told that they are */
byte slow = RANKS, bad = RANKS;

#define SENT(s, o) sent[(s) * OPS + (o)]
#define COME(r, o) come[(r) * OPS + (o)]
#define COUNTS(r, o) counts[(r) * OPS + (o)]
#define GRANTED(r, o) granted[(r) * OPS + (o)]
#ifdef DEFECT_GRANT /* places follow from the records, for all alike */
#define ASKS(r, o) false
#else
#define ASKS(r, o) (HAS(changed[r], o) && !HAS(failed[r], o))
#endif
#define KNOWS(r, o) (HAS(taken[r], o) && !HAS(failed[r], o) && !ASKS(r, o))
#define HELD(r, z) held[(r) * RANKS + (z)]
#define SEEN(r, q) seen[(r) * RANKS + (q)]
#define SEEN_RULED(r, q) seen_ruled[(r) * RANKS + (q)]
#define SEEN_HELD(r, q, z) seen_held[((r) * RANKS + (q)) * RANKS + (z)]
#define IS_OPEN(r) (suspects[r] != decided[r])
#define GONE(r) (HAS(dead, r) || HAS(out, r))
#ifdef DEFECT_SLOT /* an operation does not wait for the end of the one whose slot it has */
#define MAY_BEGIN(r) (begun[r] < OPS)
#else
#define MAY_BEGIN(r) (begun[r] < OPS && (begun[r] < SLOTS || HAS(ended[r], begun[r] - SLOTS)))
#endif

/* ---- messages ---- */

#ifdef DEFECT_PART
#define REFUSES(d, s) false
#else
#define REFUSES(d, s) HAS(decided[d], s)
#endif

/* Who is out when its record would be taken gets no grant, and nothing behind it. */
#define GETS(d, s, o) (HAS(failed[s], o) || HAS(COUNTS(s, o), d))
#define HAS_SENT(d, s, o, what) (SENT(s, o) >= (what) && ((what) == RECORD || GETS(d, s, o)))

/* Rows arrive where the receiver's slot is open, and before it shows them to anybody. */
#define HAS_PLACE(d, s, o) \
    (SENT(d, o) >= RECORD && (!HAS(taken[d], o) || HAS(COUNTS(d, o), s)) && (!ASKS(s, o) || HAS(GRANTED(d, o), s)))
#define MAY_COME(d, s, o) \
    (d == s || GONE(d) || REFUSES(d, s) || !GETS(d, s, o) || (HAS_PLACE(d, s, o) && !HAS(ended[d], o)))

/* Two ranks that know where their rows go know the same. */
#define ALIKE(r, q, o) (r == q || !KNOWS(q, o) || COUNTS(q, o) == COUNTS(r, o))

/* Of the operation whose words this one uses again: what a rank has sent, all who are not out have looked at. */
#define AGAIN(d, s, o, has_looked) (d == s || GONE(d) || REFUSES(d, s) || HAS(decided[s], d) || (has_looked))
#define AGAIN_BY_ALL(s, o, has_looked) (o < SLOTS || \
    (AGAIN(0, s, o, has_looked(0, o - SLOTS)) && AGAIN(1, s, o, has_looked(1, o - SLOTS)) && \
     AGAIN(2, s, o, has_looked(2, o - SLOTS))))
#define HAS_RECORDS(d, o) HAS(taken[d], o)
#define HAS_DONES(d, o) HAS(ended[d], o)

/* ---- ballots ---- */

#ifdef DEFECT_LATE /* what counts is that an operation has ended, though grants have gone out before */
#define CONCLUDED(r) ended[r]
#else
#define CONCLUDED(r) taken[r]
#endif

inline suspect(r_, z_)
{
    suspects[r_] = suspects[r_] | BIT(z_);
    HELD(r_, z_) = HELD(r_, z_) | CONCLUDED(r_)
#ifndef DEFECT_RULE
    ;
    ruled[r_] = ruled[r_] | failed[r_]
#endif
}

/* All that q says is said here, too, from now on. */
inline adopt(r_, q_)
{
    z = 0;
    do
    :: z < RANKS ->
        if
        :: HAS(SEEN(r_, q_), z) ->
            if
            :: !HAS(suspects[r_], z) -> suspect(r_, z)
            :: else -> skip
            fi;
            HELD(r_, z) = HELD(r_, z) | SEEN_HELD(r_, q_, z)
        :: else -> skip
        fi;
        z++
    :: else -> break
    od;
    ruled[r_] = ruled[r_] | SEEN_RULED(r_, q_)
}

#define SAME_OF(r, q, z) (!HAS(suspects[r], z) || HELD(r, z) == SEEN_HELD(r, q, z))
#define SAME(r, q) (suspects[r] == SEEN(r, q) && SAME_OF(r, q, 0) && SAME_OF(r, q, 1) && SAME_OF(r, q, 2))
#define MORE_OF(r, q, z) (HAS(SEEN(r, q), z) && (SEEN_HELD(r, q, z) & ~HELD(r, z)) != 0)
#define MORE(r, q) ((SEEN(r, q) & ~suspects[r]) != 0 || MORE_OF(r, q, 0) || MORE_OF(r, q, 1) || MORE_OF(r, q, 2))

#define IS_NEWS(r, q) (SEEN(r, q) != suspects[q] || SEEN_HELD(r, q, 0) != HELD(q, 0) || \
    SEEN_HELD(r, q, 1) != HELD(q, 1) || SEEN_HELD(r, q, 2) != HELD(q, 2))

#define LISTENS(r, q) (!GONE(r) && !HAS(suspects[r], q))
#define BALLOT_OF(i) \
    :: d_step { r != i && LISTENS(r, i) && IS_NEWS(r, i) -> \
        SEEN(r, i) = suspects[i]; \
        SEEN_RULED(r, i) = ruled[i]; \
        SEEN_HELD(r, i, 0) = HELD(i, 0); \
        SEEN_HELD(r, i, 1) = HELD(i, 1); \
        SEEN_HELD(r, i, 2) = HELD(i, 2) }
#define LOOK_AT(i) \
    :: d_step { LISTENS(r, i) && MORE(r, i) -> \
        adopt(r, i); \
        asked[r] = 0; \
        out = out | (suspects[r] & BIT(r)); /* it reads that it is out itself */ \
        z = 0 } \
    :: d_step { LISTENS(r, i) && IS_OPEN(r) && !HAS(asked[r], i) && (r == i || SAME(r, i)) -> \
        asked[r] = asked[r] | BIT(i); \
        ruled[r] = ruled[r] | SEEN_RULED(r, i) }
#define DOUBT(i) \
    :: d_step { LISTENS(r, i) && r != i && ended[r] != BIT(OPS) - 1 && (HAS(dead, i) || slow == i) -> \
        suspect(r, i); \
        asked[r] = 0 }

#define HEARD_ALL(r) ((asked[r] | suspects[r]) == ALL_RANKS)
#define SIZE(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2))
#define LEFT(r) (ALL_RANKS & ~(suspects[r] & (dead | decided[r])))
#define LOWEST(r) (LEFT(r) & (256 - LEFT(r)))
#define HAS_MOST(r) (2 * SIZE(ALL_RANKS & ~suspects[r]) + ((LOWEST(r) & suspects[r]) == 0 -> 1 : 0) > SIZE(LEFT(r)))

/* ---- operations ---- */

/* With a rank that is out: some rank has concluded with it, and all that it brings is here. */
#define IS_HELD(r, o, z) (HAS(decided[r], z) && HAS(HELD(r, z), o))
#define IS_WITHOUT(r, o, z) (HAS(decided[r], z) && !(HAS(HELD(r, z), o) && HAS(COME(r, o), z)))
#define IS_RULED(r, o) (IS_HELD(r, o, 0) || IS_HELD(r, o, 1) || IS_HELD(r, o, 2))

/* Of a rank that is out all is here that is needed, or the operation is without it. */
#define HAS_GOT(r, o, z, what) (r == z || HAS(decided[r], z) || HAS_SENT(r, z, o, what))
#define HAS_ALL(r, o, what) (HAS_GOT(r, o, 0, what) && HAS_GOT(r, o, 1, what) && HAS_GOT(r, o, 2, what))

inline take_records(r_, o_)
{
    z = 0;
    do
    :: z < RANKS ->
        if
        :: IS_WITHOUT(r_, o_, z) -> skip
        :: else -> COUNTS(r_, o_) = COUNTS(r_, o_) | BIT(z)
        fi;
        z++
    :: else -> break
    od;
    z = 0;
    if
    :: IS_RULED(r_, o_) -> failed[r_] = failed[r_] | (ruled[r_] & BIT(o_))
    :: !IS_RULED(r_, o_) && bad < RANKS && HAS(COUNTS(r_, o_), bad) -> failed[r_] = failed[r_] | BIT(o_)
    :: else -> skip
    fi;
    taken[r_] = taken[r_] | BIT(o_);
    assert(!KNOWS(r_, o_) || (ALIKE(r_, 0, o_) && ALIKE(r_, 1, o_) && ALIKE(r_, 2, o_)));
    SENT(r_, o_) = (HAS(failed[r_], o_) -> DONE : TAKEN) /* nobody waits for grants then */
}

#define HAS_GRANT(r, o, d) (HAS(decided[r], d) || HAS(GRANTED(d, o), r))
#define MAY_SEND(r, o) (!ASKS(r, o) || (HAS_GRANT(r, o, 0) && HAS_GRANT(r, o, 1) && HAS_GRANT(r, o, 2)))

/* Whoever knows all places may grant one; whoever does not has to know of all where they are, or that they ask. */
#define HAS_SAID(d, q, o) \
    (HAS(decided[d], q) || (ASKS(q, o) && HAS_SENT(d, q, o, TAKEN)) || HAS_SENT(d, q, o, DONE))
#ifdef DEFECT_ROOM
#define MAY_GRANT(d, o) true
#else
#define MAY_GRANT(d, o) \
    (KNOWS(d, o) || HAS(failed[d], o) || (HAS_SAID(d, 0, o) && HAS_SAID(d, 1, o) && HAS_SAID(d, 2, o)))
#endif

/* Of q's rows at d it is known where they are, or they are none, or come where d will have room for them. */
#define IS_PLACED(d, q, o) \
    (HAS(decided[d], q) || (HAS(taken[q], o) && (ASKS(q, o) || SENT(q, o) == DONE)) || (KNOWS(d, o) && ALIKE(d, q, o)))

#define GRANTS_TO(d, q, o) \
    :: d_step { STANDS(d) && HAS(taken[d], o) && !HAS(decided[d], q) && ASKS(q, o) && HAS_SENT(d, q, o, TAKEN) && \
            !HAS(GRANTED(d, o), q) && MAY_GRANT(d, o) -> \
        assert(!HAS(ended[d], o) && HAS(COUNTS(d, o), q)); \
        assert(HAS(failed[d], o) || (IS_PLACED(d, 0, o) && IS_PLACED(d, 1, o) && IS_PLACED(d, 2, o))); \
        GRANTED(d, o) = GRANTED(d, o) | BIT(q) }

#ifdef DEFECT_FROZEN
#define STANDS(r) (!GONE(r))
#else
#define STANDS(r) (!GONE(r) && !IS_OPEN(r))
#endif

#define OPERATION(o) \
    :: d_step { STANDS(r) && begun[r] > o && SENT(r, o) == RECORD && HAS_ALL(r, o, RECORD) -> take_records(r, o) } \
    :: d_step { STANDS(r) && SENT(r, o) == TAKEN && MAY_SEND(r, o) -> \
        assert(MAY_COME(0, r, o) && MAY_COME(1, r, o) && MAY_COME(2, r, o)); \
        assert(AGAIN_BY_ALL(r, o, HAS_DONES)); \
        SENT(r, o) = DONE } \
    :: d_step { STANDS(r) && SENT(r, o) == DONE && !HAS(ended[r], o) && HAS_ALL(r, o, DONE) -> \
        assert(HAS(failed[r], o) || (COUNTED(r, o, 0) && COUNTED(r, o, 1) && COUNTED(r, o, 2))); \
        assert(NONE_LATE(r, 0, o) && NONE_LATE(r, 1, o) && NONE_LATE(r, 2, o)); \
        ended[r] = ended[r] | BIT(o) } \
    GRANTS_TO(r, 0, o) \
    GRANTS_TO(r, 1, o) \
    GRANTS_TO(r, 2, o)

/* No rows of it can still come. */
#define NONE_LATE(d, s, o) \
    (d == s || REFUSES(d, s) || !HAS(decided[d], s) || !HAS_SENT(d, s, o, DONE) || HAS(COME(d, o), s))

/* Its rows are shown. */
#define COUNTED(r, o, z) (IS_WITHOUT(r, o, z) || HAS(COUNTS(r, o), z))

/* What is looked at has come; of the rest, as it happens. */
inline see_what_came(r_, o_)
{
    z = 0;
    do
    :: z < RANKS ->
        if
        :: !HAS(suspects[r_] & ~decided[r_], z) || !HAS_SENT(r_, z, o_, DONE) -> skip
        :: HAS(suspects[r_] & ~decided[r_], z) && HAS_SENT(r_, z, o_, DONE) -> COME(r_, o_) = COME(r_, o_) | BIT(z)
        :: HAS(suspects[r_] & ~decided[r_], z) && HAS_SENT(r_, z, o_, DONE) && !HAS(ended[r_], o_) -> skip
        fi;
        z++
    :: else -> break
    od;
    z = 0
}

proctype rank(byte r)
{
    byte z;
end:
    do
    :: d_step { STANDS(r) && MAY_BEGIN(r) ->
        assert(AGAIN_BY_ALL(r, begun[r], HAS_RECORDS));
        SENT(r, begun[r]) = RECORD;
        begun[r] = begun[r] + 1 }
    OPERATION(0)
#if OPS > 1
    OPERATION(1)
#endif
#if OPS > 2
    OPERATION(2)
#endif
    DOUBT(0)
    DOUBT(1)
    DOUBT(2)
    LOOK_AT(0)
    LOOK_AT(1)
    LOOK_AT(2)
    BALLOT_OF(0)
    BALLOT_OF(1)
    BALLOT_OF(2)
    /* decided: who is out is told so first, and a rank that was told itself decides nothing */
    :: atomic { !GONE(r) && IS_OPEN(r) && HEARD_ALL(r) && HAS_MOST(r) ->
        see_what_came(r, 0);
#if OPS > 1
        see_what_came(r, 1);
#endif
#if OPS > 2
        see_what_came(r, 2);
#endif
        out = out | (suspects[r] & ~dead);
        changed[r] = changed[r] | ((BIT(begun[r]) - 1) & ~taken[r]);
        decided[r] = suspects[r] }
    /* cut off, for as long as it waits */
    :: d_step { !GONE(r) && IS_OPEN(r) && HEARD_ALL(r) && !HAS_MOST(r) -> out = out | BIT(r) }
    od
}

#define DEATH(i) \
    :: d_step { deaths < DEATHS && !HAS(dead, i) -> dead = dead | BIT(i); deaths++ }

/* At any step, as long as one rank is left. */
proctype death()
{
    byte deaths = 0;
end:
    do
    DEATH(0)
    DEATH(1)
    DEATH(2)
#ifdef SLOW
    :: d_step { slow == RANKS -> slow = 0 }
    :: d_step { slow == RANKS -> slow = 1 }
#endif
    od
}

/* What all survivors end alike. */
#define AGREE(a, b) (GONE(a) || GONE(b) || failed[a] == failed[b])
#define FINISHED(r) (GONE(r) || ended[r] == BIT(OPS) - 1)

/* Nothing can happen any more: survivors have ended all operations, each as the others. */
active proctype monitor()
{
    timeout ->
    d_step {
        assert(FINISHED(0) && FINISHED(1) && FINISHED(2));
        assert(AGREE(0, 1) && AGREE(0, 2) && AGREE(1, 2))
    }
}

init {
    atomic {
        byte r = 0;
#ifdef BAD
        bad = 0;
#endif
        do
        :: r < RANKS -> run rank(r); r++
        :: else -> break
        od;
        run death()
    }
}
