/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A group that shrinks (src/elastic/group_shrink.h): 3 ranks, all of which call it or die before, come to the same
 * group without the dead, wherever one dies, also a second one while they do.
 *
 * One step of a rank is one control message of another that comes, one that is looked at, one suspicion, or one step of
 * the protocol. A control message has all that its writer says; one that has not come when the next is written is never
 * seen, one that has come is looked at later. What was written before a death may come after it, or never, as nobody
 * listens to whom it suspects. The bootstrap of an attempt is one step: it ends at any time after all of the attempt
 * have begun.
 *
 * Choices, by -D:
 *   DEATHS   so many ranks die (1)
 *   SLOW     one rank may be suspected although it lives
 *   DEFECT_* a deliberate defect: protocols.sh has the list
 */
#ifndef DEATHS
#define DEATHS 1
#endif

#define RANKS 3
#define ALL_RANKS 7
#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)
#define SIZE(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2))

/* Phases, as others see them. 0: it has said nothing yet. */
#define SAYS_GOES_ON 1
#define SAYS_DONE 3

/* What a rank does. */
#define CALLS 0
#define AGREES 1
#define BUILDS 2
#define IS_READY 3
#define RETURNED 4
#define LEFT_OUT 5

/* Attempts have numbers, those of their suspects plus 1; 0: none. For the monitor, with which ranks it was. */
#define NUMBER(set) (SIZE(set) + 1)

/*
 * What is said of a suspect q: the last attempt that somebody knew of who said it, and whether q was ready for that.
 * Two bits each and one; all three of a rank in one number.
 */
#define TOP(tally, q) (((tally) >> ((q) * 3)) & 3)
#define WAS_READY(tally, q) (((tally) >> ((q) * 3 + 2)) & 1)
#define ENTRY(tally, q) (((tally) >> ((q) * 3)) & 7)
#define SET(q, top, ready) (((top) | ((ready) << 2)) << ((q) * 3))

byte step[RANKS], suspects[RANKS], tried[RANKS], built[RANKS], phase[RANKS];
byte with[RANKS];    /* the ranks of the group that was built last */
byte entered[RANKS]; /* attempts whose bootstrap it has begun, by their suspects */
short tally[RANKS];

/* What it has written last, and what of that has come to r: [r][q]. */
byte wrote_suspects[RANKS], wrote_built[RANKS], wrote_phase[RANKS];
short wrote_tally[RANKS];
byte seen_suspects[9], seen_built[9], seen_phase[9];
short seen_tally[9];
byte dead;
byte slow = RANKS;

#define AT(r, q) ((r) * RANKS + (q))
#define GONE(r) HAS(dead, r)
#define PLAYS(r) (!GONE(r) && step[r] != RETURNED && step[r] != LEFT_OUT && step[r] != CALLS)
#ifdef DEFECT_LISTEN
#define LISTENS(r, q) (PLAYS(r) && (q) != (r))
#else
#define LISTENS(r, q) (PLAYS(r) && (q) != (r) && !HAS(suspects[r], q))
#endif
#define IS_SPOILT(r) (tried[r] != NUMBER(suspects[r]))

inline write(r_)
{
    wrote_suspects[r_] = suspects[r_];
    wrote_built[r_] = built[r_];
    wrote_tally[r_] = tally[r_];
    wrote_phase[r_] = phase[r_]
}

/* What nobody looks at any more: fewer states. */
inline forget(r_, q_)
{
    seen_suspects[AT(r_, q_)] = 0;
    seen_built[AT(r_, q_)] = 0;
    seen_tally[AT(r_, q_)] = 0;
    seen_phase[AT(r_, q_)] = 0
}

inline forget_all(r_)
{
    forget(r_, 0);
    forget(r_, 1);
    forget(r_, 2);
    suspects[r_] = 0;
    tried[r_] = 0;
    tally[r_] = 0;
    phase[r_] = 0
}

#define READY_HERE(r, q) (tried[r] != 0 && seen_built[AT(r, q)] == tried[r] -> 1 : 0)

/* With what is here of its word. */
inline suspect(r_, q_)
{
    if
    :: !HAS(suspects[r_], q_) ->
        suspects[r_] = suspects[r_] | BIT(q_);
        tally[r_] = tally[r_] | SET(q_, tried[r_], READY_HERE(r_, q_));
#ifndef DEFECT_LISTEN
        forget(r_, q_)
#endif
    :: else -> skip
    fi
}

/* A later attempt counts alone; of the same one, what anybody has. */
inline unite(r_, q_, theirs_)
{
    if
    :: HAS(suspects[r_], q_) && TOP(theirs_, q_) > TOP(tally[r_], q_) ->
        tally[r_] = (tally[r_] & ~SET(q_, 3, 1)) | SET(q_, TOP(theirs_, q_), WAS_READY(theirs_, q_))
    :: HAS(suspects[r_], q_) && TOP(theirs_, q_) == TOP(tally[r_], q_) ->
        tally[r_] = tally[r_] | SET(q_, 0, WAS_READY(theirs_, q_))
    :: else -> skip
    fi
}

inline leave(r_)
{
    step[r_] = RETURNED;
    phase[r_] = SAYS_DONE;
    write(r_);
    forget_all(r_)
}

/* ---- control messages ---- */

#define IS_NEW(r, q) (wrote_phase[q] != seen_phase[AT(r, q)] || wrote_suspects[q] != seen_suspects[AT(r, q)] || \
    wrote_built[q] != seen_built[AT(r, q)] || wrote_tally[q] != seen_tally[AT(r, q)])
#define COMES(q) \
    :: d_step { LISTENS(r, q) && IS_NEW(r, q) -> \
        seen_suspects[AT(r, q)] = wrote_suspects[q]; \
        seen_built[AT(r, q)] = wrote_built[q]; \
        seen_tally[AT(r, q)] = wrote_tally[q]; \
        seen_phase[AT(r, q)] = wrote_phase[q] }

#define SAYS_OUT(r, q) HAS(seen_suspects[AT(r, q)], r)
#define SAYS_IT_IS_DONE(r, q) \
    (seen_phase[AT(r, q)] == SAYS_DONE && built[r] != 0 && seen_built[AT(r, q)] == built[r])
#define KNOWS_MORE(r, q, of) (HAS(seen_suspects[AT(r, q)], of) && (!HAS(suspects[r], of) || \
    TOP(seen_tally[AT(r, q)], of) > TOP(tally[r], of) || \
    (TOP(seen_tally[AT(r, q)], of) == TOP(tally[r], of) && \
        WAS_READY(seen_tally[AT(r, q)], of) > WAS_READY(tally[r], of))))
#define SAYS_MORE(r, q) (KNOWS_MORE(r, q, 0) || KNOWS_MORE(r, q, 1) || KNOWS_MORE(r, q, 2))

inline take_over(r_, q_)
{
    short their_tally = seen_tally[AT(r_, q_)];
    byte theirs = seen_suspects[AT(r_, q_)];
    if
    :: HAS(theirs, 0) -> suspect(r_, 0); unite(r_, 0, their_tally)
    :: else -> skip
    fi;
    if
    :: HAS(theirs, 1) -> suspect(r_, 1); unite(r_, 1, their_tally)
    :: else -> skip
    fi;
    if
    :: HAS(theirs, 2) -> suspect(r_, 2); unite(r_, 2, their_tally)
    :: else -> skip
    fi;
    their_tally = 0;
    theirs = 0;
    write(r_)
}

/* DONE is looked at where a ballot brings nothing new. */
#define LOOK_AT(q) \
    :: d_step { LISTENS(r, q) && seen_phase[AT(r, q)] != 0 && SAYS_OUT(r, q) -> step[r] = LEFT_OUT; forget_all(r) } \
    :: d_step { LISTENS(r, q) && !SAYS_OUT(r, q) && !SAYS_MORE(r, q) && SAYS_IT_IS_DONE(r, q) -> leave(r) } \
    :: d_step { LISTENS(r, q) && !SAYS_OUT(r, q) && SAYS_MORE(r, q) -> take_over(r, q) }

/* Who has died is found out by all, at some time; one that is only slow by whoever waits for it. */
#define DOUBT(q) \
    :: d_step { PLAYS(r) && r != q && !HAS(suspects[r], q) && (GONE(q) || slow == q) -> suspect(r, q); write(r) }

/* ---- the protocol ---- */

#ifdef DEFECT_SAME
#define SAME_TALLY(r, q) true
#else
#define SAME_TALLY(r, q) (seen_tally[AT(r, q)] == tally[r])
#endif
#define SAYS_SAME(r, q) ((q) == (r) || HAS(suspects[r], q) || \
    (seen_phase[AT(r, q)] != 0 && seen_suspects[AT(r, q)] == suspects[r] && SAME_TALLY(r, q)))
#define ALL_SAY_SAME(r) (SAYS_SAME(r, 0) && SAYS_SAME(r, 1) && SAYS_SAME(r, 2))

/* Of a suspect, what all have said; of the others, what each says itself. */
#define WITH(r, q) ((q) == (r) || (HAS(suspects[r], q) -> \
    TOP(tally[r], q) < built[r] || (TOP(tally[r], q) == built[r] && WAS_READY(tally[r], q)) : \
    seen_built[AT(r, q)] == built[r]))
#define IS_DECIDED(r) (built[r] != 0 && WITH(r, 0) && WITH(r, 1) && WITH(r, 2))

#define HAS_ENTERED(set, q) (HAS(set, q) || HAS(entered[q], set))
#define ALL_ENTERED(set) (HAS_ENTERED(set, 0) && HAS_ENTERED(set, 1) && HAS_ENTERED(set, 2))

#ifdef DEFECT_SPOILT
#define MAY_SAY_READY(r) true
#else
#define MAY_SAY_READY(r) (!IS_SPOILT(r))
#endif

proctype rank(byte r)
{
end:
    do
    :: d_step { !GONE(r) && step[r] == CALLS -> step[r] = AGREES; phase[r] = SAYS_GOES_ON; write(r) }
    /* all say the same: all were ready for what is there, or they try without the suspects */
    :: d_step { PLAYS(r) && step[r] == AGREES && ALL_SAY_SAME(r) ->
        if
        :: IS_DECIDED(r) -> leave(r)
        :: else ->
            built[r] = 0;
            with[r] = ALL_RANKS & ~suspects[r];
            tried[r] = NUMBER(suspects[r]);
            entered[r] = entered[r] | BIT(suspects[r]);
            step[r] = BUILDS /* it says nothing of this yet */
        fi }
    :: d_step { PLAYS(r) && step[r] == BUILDS && IS_SPOILT(r) -> step[r] = AGREES }
    :: d_step { PLAYS(r) && step[r] == BUILDS && MAY_SAY_READY(r) && ALL_ENTERED(ALL_RANKS & ~with[r]) ->
        built[r] = tried[r];
        step[r] = IS_READY;
        write(r) }
    :: d_step { PLAYS(r) && step[r] == IS_READY && !IS_SPOILT(r) && IS_DECIDED(r) -> leave(r) }
    :: d_step { PLAYS(r) && step[r] == IS_READY && IS_SPOILT(r) -> step[r] = AGREES }
    COMES(0)
    COMES(1)
    COMES(2)
    LOOK_AT(0)
    LOOK_AT(1)
    LOOK_AT(2)
    DOUBT(0)
    DOUBT(1)
    DOUBT(2)
    od
}

/* At any step. Ranks are all alike: the first to die is rank 0, the one that is slow rank 1. */
proctype death()
{
end:
    do
    :: d_step { SIZE(dead) < DEATHS && !HAS(dead, 0) -> dead = dead | 1 }
#ifdef SLOW
    :: d_step { SIZE(dead) < DEATHS && !HAS(dead, 1) -> dead = dead | 2 }
    :: d_step { slow == RANKS -> slow = 1 }
#else
    :: d_step { SIZE(dead) < DEATHS && HAS(dead, 0) -> dead = dead | 2 }
#endif
    od
}

#define FINISHED(r) (GONE(r) || step[r] == RETURNED || (step[r] == LEFT_OUT && slow == (r)))
#define HAS_GROUP(r) (!GONE(r) && step[r] == RETURNED)
/* Two that have other groups do not belong to one another: what a rank has that was only slow, nobody answers in. */
#define SAME_GROUP(a, b) (built[a] == built[b] && with[a] == with[b])
#define FIT(a, b) (!HAS_GROUP(a) || !HAS_GROUP(b) || SAME_GROUP(a, b) || slow == (a) || slow == (b))
#define OWN(r) (!HAS_GROUP(r) || HAS(with[r], r))

active proctype monitor()
{
    timeout ->
    d_step {
        assert(FINISHED(0) && FINISHED(1) && FINISHED(2));
        assert(FIT(0, 1) && FIT(0, 2) && FIT(1, 2));
        assert(OWN(0) && OWN(1) && OWN(2))
    }
}

init {
    atomic {
        run rank(0);
        run rank(1);
        run rank(2);
        run death()
    }
}
