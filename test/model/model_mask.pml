/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The agreement on who is out (src/elastic/ballot.h): which ranks take part in each operation, the same at
 * all survivors, whichever rank dies or is slow while they agree. One word stands for all that a rank sends to
 * another in an operation; what is in it, and when it may be overwritten, is in the models of the modes.
 *
 * One step of a rank is one word to one other rank, one ballot read, or one operation ended. A ballot is written and
 * read whole, as its version sees to it. A decision looks at the ballots one after the other, while they change.
 *
 * Sizes, by -D: RANKS (3 or 4), OPS, SLOTS (operations in flight at once), DEATHS (at most so many ranks die).
 * Choices:
 *   SLOW     one rank may be suspected although it lives, and goes on writing its words
 *   WIRE     ranks that do not map one another (src/elastic/members_wire.c): an operation is with a rank that is gone
 *            if some rank has ended it with that rank's word; ballots come in messages, late, and from the dead as
 *            well; a decision takes most of the ranks that are not known to be dead
 *   DEFECT_* a deliberate defect: protocols.sh has the list
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef OPS
#define OPS 3
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

byte words[RANKS * RANKS]; /* [d][s]: operations of which s's word is at d */
byte begun[RANKS], told[RANKS]; /* operations begun; ranks that have the word of the last one */
byte ended[RANKS];         /* operations that are */
byte with[RANKS * OPS];    /* ranks whose words are in the result */

/* A ballot: whom the rank suspects, and of which operations the word of each of these is at some rank. */
byte suspects[RANKS];
byte held[RANKS * RANKS];

byte decided[RANKS];       /* suspects, as far as they are agreed on */
byte asked[RANKS];         /* ranks whose ballot was found to be the same since ours changed last */
byte dead, out;            /* out: ranks that were told that they are */
byte slow = RANKS;

#ifdef WIRE
byte seen[RANKS * RANKS]; /* [r][q]: the ballot of q as it came to r last */
byte seen_held[RANKS * RANKS * RANKS];
#define SEEN(r, q) seen[(r) * RANKS + (q)]
#define SEEN_HELD(r, q, z) seen_held[((r) * RANKS + (q)) * RANKS + (z)]
#define COUNTS(r, z) ended[r]
#else
#define SEEN(r, q) suspects[q]
#define SEEN_HELD(r, q, z) HELD(q, z)
#define COUNTS(r, z) (WORDS(r, z) & (BIT(begun[r]) - 1))
#endif

#define WORDS(d, s) words[(d) * RANKS + (s)]
#define HELD(r, z) held[(r) * RANKS + (z)]
#define WITH(r, o) with[(r) * OPS + (o)]
#define IS_OPEN(r) (suspects[r] != decided[r])
#define GONE(r) (HAS(dead, r) || HAS(out, r))
#define MAY_BEGIN(r) (begun[r] < OPS && told[r] == ALL_RANKS && (begun[r] < SLOTS || HAS(ended[r], begun[r] - SLOTS)))

/* What was begun and whose word is here, and what has ended, which had it. */
inline suspect(r_, z_)
{
    suspects[r_] = suspects[r_] | BIT(z_);
    HELD(r_, z_) = HELD(r_, z_) | COUNTS(r_, z_)
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
#ifndef DEFECT_ADOPT
            HELD(r_, z) = HELD(r_, z) | SEEN_HELD(r_, q_, z)
#endif
        :: else -> skip
        fi;
        z++
    :: else -> break
    od
}

/* Whether the ballots of r and q say the same, and whether that of q says more. */
#ifdef DEFECT_SAME
#define SAME_OF(r, q, z) true
#else
#define SAME_OF(r, q, z) (!HAS(suspects[r], z) || HELD(r, z) == SEEN_HELD(r, q, z))
#endif
#define SAME(r, q) (suspects[r] == SEEN(r, q) && \
    SAME_OF(r, q, 0) && SAME_OF(r, q, 1) && SAME_OF(r, q, 2) && SAME_OF(r, q, RANKS - 1))
#ifdef DEFECT_ADOPT
#define MORE_OF(r, q, z) false
#else
#define MORE_OF(r, q, z) (HAS(SEEN(r, q), z) && (SEEN_HELD(r, q, z) & ~HELD(r, z)) != 0)
#endif
#define MORE(r, q) ((SEEN(r, q) & ~suspects[r]) != 0 || \
    MORE_OF(r, q, 0) || MORE_OF(r, q, 1) || MORE_OF(r, q, 2) || MORE_OF(r, q, RANKS - 1))

#ifdef WIRE
#define HAD(q, o, s) (HAS(ended[q], o) && HAS(WORDS(q, s), o))
#else
#define HAD(q, o, s) HAS(WORDS(q, s), o)
#endif
#define IS_THERE(o, s) (HAD(0, o, s) || HAD(1, o, s) || HAD(2, o, s) || HAD(RANKS - 1, o, s))

/* While the ranks agree nothing ends: what they have said is here stays all that is here. */
#ifdef DEFECT_FROZEN
#define MAY_END(r) true
#else
#define MAY_END(r) !IS_OPEN(r)
#endif

/* The ranks that operation o is with: all but those that were decided to be out of it. */
inline find_members(r_, o_)
{
    members = 0;
    ready = true;
    z = 0;
    do
    :: z < RANKS ->
        if
        :: HAS(decided[r_], z) && !HAS(HELD(r_, z), o_) -> skip
        :: HAS(decided[r_], z) && HAS(HELD(r_, z), o_) ->
            assert(IS_THERE(o_, z)); /* it is fetched from whoever has it; over the wire, that rank's verdict is */
            members = members | BIT(z)
        :: else ->
            ready = ready && HAS(WORDS(r_, z), o_);
            members = members | BIT(z)
        fi;
        z++
    :: else -> break
    od
}

#define LISTENS(r, q) (!GONE(r) && told[r] == ALL_RANKS && !HAS(suspects[r], q))
#define LOOK_AT(i) \
    :: d_step { LISTENS(r, i) && MORE(r, i) -> \
        adopt(r, i); \
        asked[r] = 0; \
        out = out | (suspects[r] & BIT(r)); /* it reads that it is out itself */ \
        z = 0 } \
    :: d_step { LISTENS(r, i) && IS_OPEN(r) && !HAS(asked[r], i) && (r == i || SAME(r, i)) -> \
        asked[r] = asked[r] | BIT(i) }

#define DOUBT(i) \
    :: d_step { LISTENS(r, i) && r != i && ended[r] != BIT(OPS) - 1 && (HAS(dead, i) || slow == i) -> \
        suspect(r, i); \
        asked[r] = 0 }

#define HEARD_ALL(r) ((asked[r] | suspects[r]) == ALL_RANKS)

#ifdef WIRE
#define IS_NEWS(r, q) (SEEN(r, q) != suspects[q] || SEEN_HELD(r, q, 0) != HELD(q, 0) || \
    SEEN_HELD(r, q, 1) != HELD(q, 1) || SEEN_HELD(r, q, 2) != HELD(q, 2) || \
    SEEN_HELD(r, q, RANKS - 1) != HELD(q, RANKS - 1))
#define BALLOT_OF(i) \
    :: d_step { r != i && !GONE(r) && !HAS(suspects[r], i) && IS_NEWS(r, i) -> \
        SEEN(r, i) = suspects[i]; \
        SEEN_HELD(r, i, 0) = HELD(i, 0); \
        SEEN_HELD(r, i, 1) = HELD(i, 1); \
        SEEN_HELD(r, i, 2) = HELD(i, 2); \
        SEEN_HELD(r, i, RANKS - 1) = HELD(i, RANKS - 1) }
#define SIZE(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2) + HAS(set, 3))
#define LEFT(r) (ALL_RANKS & ~(suspects[r] & (dead | decided[r])))
#define LOWEST(r) (LEFT(r) & (256 - LEFT(r)))
#define HAS_MOST(r) (2 * SIZE(ALL_RANKS & ~suspects[r]) + ((LOWEST(r) & suspects[r]) == 0 -> 1 : 0) > SIZE(LEFT(r)))
#else
#define BALLOT_OF(i)
#define HAS_MOST(r) true
#endif

proctype rank(byte r)
{
    byte o, z, members;
    bool ready;
end:
    do
    :: d_step { !GONE(r) && !IS_OPEN(r) && MAY_BEGIN(r) ->
        WORDS(r, r) = WORDS(r, r) | BIT(begun[r]);
        begun[r] = begun[r] + 1;
        told[r] = BIT(r) }
    /* the words of the operation that was begun last, one by one */
    :: d_step { !GONE(r) && !HAS(told[r], 0) -> WORDS(0, r) = WORDS(0, r) | BIT(begun[r] - 1); told[r] = told[r] | 1 }
    :: d_step { !GONE(r) && !HAS(told[r], 1) -> WORDS(1, r) = WORDS(1, r) | BIT(begun[r] - 1); told[r] = told[r] | 2 }
    :: d_step { !GONE(r) && !HAS(told[r], 2) -> WORDS(2, r) = WORDS(2, r) | BIT(begun[r] - 1); told[r] = told[r] | 4 }
#if RANKS > 3
    :: d_step { !GONE(r) && !HAS(told[r], 3) -> WORDS(3, r) = WORDS(3, r) | BIT(begun[r] - 1); told[r] = told[r] | 8 }
#endif
    /* any operation in flight whose words are here ends */
    :: d_step { !GONE(r) && told[r] == ALL_RANKS && MAY_END(r) && ended[r] != BIT(begun[r]) - 1 ->
        o = 0;
        do
        :: o < begun[r] ->
            if
            :: !HAS(ended[r], o) ->
                find_members(r, o);
                if
                :: ready -> ended[r] = ended[r] | BIT(o); WITH(r, o) = members; o = OPS
                :: else -> o++
                fi
            :: else -> o++
            fi
        :: else -> break
        od;
        o = 0; z = 0; members = 0; ready = false }
    /* a rank that died, or is late; a rank waits for it with a word that has not come, or in the agreement */
    DOUBT(0)
    DOUBT(1)
    DOUBT(2)
#if RANKS > 3
    DOUBT(3)
#endif
    /* the ballots, one at a time: what is new is adopted, what is the same is counted, what is behind is waited for */
    LOOK_AT(0)
    LOOK_AT(1)
    LOOK_AT(2)
    BALLOT_OF(0)
    BALLOT_OF(1)
    BALLOT_OF(2)
#if RANKS > 3
    LOOK_AT(3)
    BALLOT_OF(3)
#endif
    /* decided: who is out is told so first, and a rank that was told itself decides nothing */
    :: d_step { !GONE(r) && IS_OPEN(r) && HEARD_ALL(r) && HAS_MOST(r) ->
        out = out | (suspects[r] & ~dead);
        decided[r] = suspects[r] }
    /* cut off, for as long as it waits */
    :: d_step { !GONE(r) && IS_OPEN(r) && HEARD_ALL(r) && !HAS_MOST(r) -> out = out | BIT(r) }
    od
}

/* At any step, as long as one rank is left. */
proctype death()
{
    byte deaths = 0;
end:
    do
    :: d_step { deaths < DEATHS && dead == 0 -> dead = dead | 1; deaths++ }
    :: d_step { deaths < DEATHS && !HAS(dead, 1) -> dead = dead | 2; deaths++ }
    :: d_step { deaths < DEATHS && !HAS(dead, 2) -> dead = dead | 4; deaths++ }
#ifdef SLOW
    :: d_step { slow == RANKS -> slow = 0 }
    :: d_step { slow == RANKS -> slow = 1 }
#endif
    od
}

#define AGREE(a, b, o) (GONE(a) || GONE(b) || WITH(a, o) == WITH(b, o))
#define FINISHED(r) (GONE(r) || ended[r] == BIT(OPS) - 1)

/* Nothing can happen any more: survivors have ended all operations, each with the same ranks. */
active proctype monitor()
{
    byte o;
    timeout ->
    d_step {
        assert(FINISHED(0) && FINISHED(1) && FINISHED(2) && FINISHED(RANKS - 1));
        for (o : 0 .. OPS - 1) {
            assert(AGREE(0, 1, o) && AGREE(0, 2, o) && AGREE(1, 2, o));
            assert(AGREE(0, RANKS - 1, o) && AGREE(1, RANKS - 1, o))
        }
    }
}

init {
    atomic {
        byte r = 0;
        do
        :: r < RANKS -> told[r] = ALL_RANKS; run rank(r); r++
        :: else -> break
        od;
        run death()
    }
}
