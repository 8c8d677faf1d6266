/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A group that shrinks (src/elastic/group_shrink.h, shrink_state.c): 3 ranks, all of which call it or die before, come
 * to the same group without the dead, wherever one dies, also a second one while they do.
 *
 * One step of a rank is one letter of another that comes, one that is looked at, one suspicion, or one step of the
 * protocol. A letter has all that its writer says; one that has not come when the next is written is never seen, one
 * that has come is looked at later. What was written before a death may come after it, or never, as nobody listens to
 * whom it suspects. The bootstrap of an attempt is one step: it ends at any time after all of the attempt have begun.
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
#define SAYS_AGREE 1
#define SAYS_READY 2
#define SAYS_DONE 3

/* What a rank does. */
#define CALLS 0
#define AGREES 1
#define BUILDS 2
#define IS_READY 3
#define RETURNED 4
#define LEFT_OUT 5

/* An attempt is named by its suspects: 8 | set; 0: none. */
#define NAME(set) (8 | (set))
#define COUNT(name) SIZE((name) & ALL_RANKS)
#define MEMBERS(name) (ALL_RANKS & ~(name))

byte step[RANKS], suspects[RANKS], tried[RANKS], ready[RANKS], phase[RANKS];
byte built[RANKS];              /* the attempt whose group it has made, and said that it is ready for */
byte entered[RANKS];            /* attempts whose bootstrap it has begun, by their suspects */

/* What it has written last, and what of that has come to r: [r][q]. */
byte wrote_suspects[RANKS], wrote_tried[RANKS], wrote_ready[RANKS], wrote_phase[RANKS];
byte seen_suspects[9], seen_tried[9], seen_ready[9], seen_phase[9];
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
#define IS_SPOILT(r) (tried[r] != NAME(suspects[r]))
#define ALL_READY(r) (tried[r] != 0 && ready[r] == MEMBERS(tried[r]))
#define IS_DECIDED(r) (built[r] != 0 && built[r] == tried[r] && ALL_READY(r))

inline write(r_)
{
    wrote_suspects[r_] = suspects[r_];
    wrote_tried[r_] = tried[r_];
    wrote_ready[r_] = ready[r_];
    wrote_phase[r_] = phase[r_]
}

/* What nobody looks at any more: fewer states. */
inline forget(r_, q_)
{
    seen_suspects[AT(r_, q_)] = 0;
    seen_tried[AT(r_, q_)] = 0;
    seen_ready[AT(r_, q_)] = 0;
    seen_phase[AT(r_, q_)] = 0
}

inline forget_all(r_)
{
    forget(r_, 0);
    forget(r_, 1);
    forget(r_, 2);
    suspects[r_] = 0;
    tried[r_] = 0;
    ready[r_] = 0;
    phase[r_] = 0
}

/* Whatever it was ready for is in doubt. */
inline suspect(r_, set_)
{
    if
    :: (set_) & ~suspects[r_] -> suspects[r_] = suspects[r_] | (set_); phase[r_] = SAYS_AGREE
    :: else -> skip
    fi;
#ifndef DEFECT_LISTEN
    if
    :: HAS(suspects[r_], 0) -> forget(r_, 0)
    :: else -> skip
    fi;
    if
    :: HAS(suspects[r_], 1) -> forget(r_, 1)
    :: else -> skip
    fi;
    if
    :: HAS(suspects[r_], 2) -> forget(r_, 2)
    :: else -> skip
    fi
#endif
}

inline leave(r_)
{
    step[r_] = RETURNED;
    phase[r_] = SAYS_DONE;
    write(r_);
    forget_all(r_)
}

/* ---- letters ---- */

#define IS_NEW(r, q) (wrote_phase[q] != seen_phase[AT(r, q)] || wrote_suspects[q] != seen_suspects[AT(r, q)] || \
    wrote_tried[q] != seen_tried[AT(r, q)] || wrote_ready[q] != seen_ready[AT(r, q)])
#define COMES(q) \
    :: d_step { LISTENS(r, q) && IS_NEW(r, q) -> \
        seen_suspects[AT(r, q)] = wrote_suspects[q]; \
        seen_tried[AT(r, q)] = wrote_tried[q]; \
        seen_ready[AT(r, q)] = wrote_ready[q]; \
        seen_phase[AT(r, q)] = wrote_phase[q] }

#define SAYS_OUT(r, q) HAS(seen_suspects[AT(r, q)], r)
#define SAYS_IT_IS_DONE(r, q) \
    (seen_phase[AT(r, q)] == SAYS_DONE && built[r] != 0 && seen_tried[AT(r, q)] == built[r])
#define IS_LATER(r, q) (COUNT(seen_tried[AT(r, q)]) > COUNT(tried[r]) || (seen_tried[AT(r, q)] != 0 && tried[r] == 0))
#define SAYS_MORE(r, q) ((seen_suspects[AT(r, q)] & ~suspects[r]) != 0 || IS_LATER(r, q) || \
    (seen_tried[AT(r, q)] == tried[r] && (seen_ready[AT(r, q)] & ~ready[r]) != 0))

inline take_over(r_, q_)
{
    suspect(r_, seen_suspects[AT(r_, q_)]);
    if
    :: IS_LATER(r_, q_) -> tried[r_] = seen_tried[AT(r_, q_)]; ready[r_] = 0
    :: else -> skip
    fi;
    if
    :: seen_tried[AT(r_, q_)] == tried[r_] -> ready[r_] = ready[r_] | seen_ready[AT(r_, q_)]
    :: else -> skip
    fi;
    write(r_)
}

#define LOOK_AT(q) \
    :: d_step { LISTENS(r, q) && seen_phase[AT(r, q)] != 0 && SAYS_OUT(r, q) -> step[r] = LEFT_OUT; forget_all(r) } \
    :: d_step { LISTENS(r, q) && !SAYS_OUT(r, q) && SAYS_IT_IS_DONE(r, q) -> leave(r) } \
    :: d_step { LISTENS(r, q) && !SAYS_OUT(r, q) && !SAYS_IT_IS_DONE(r, q) && SAYS_MORE(r, q) -> take_over(r, q) }

/* Who has died is found out by all, at some time; one that is only slow by whoever waits for it. */
#define DOUBT(q) \
    :: d_step { PLAYS(r) && r != q && !HAS(suspects[r], q) && (GONE(q) || slow == q) -> suspect(r, BIT(q)); write(r) }

/* ---- the protocol ---- */

#ifdef DEFECT_SAME
#define SAME_READY(r, q) true
#else
#define SAME_READY(r, q) (seen_tried[AT(r, q)] == tried[r] && seen_ready[AT(r, q)] == ready[r])
#endif
#define SAYS_SAME(r, q) ((q) == (r) || HAS(suspects[r], q) || \
    (seen_phase[AT(r, q)] != 0 && seen_suspects[AT(r, q)] == suspects[r] && SAME_READY(r, q)))
#define ALL_SAY_SAME(r) (SAYS_SAME(r, 0) && SAYS_SAME(r, 1) && SAYS_SAME(r, 2))

#define HAS_ENTERED(name, q) (HAS(name, q) || HAS(entered[q], (name) & ALL_RANKS))
#define ALL_ENTERED(name) (HAS_ENTERED(name, 0) && HAS_ENTERED(name, 1) && HAS_ENTERED(name, 2))

#ifdef DEFECT_SPOILT
#define MAY_SAY_READY(r) true
#else
#define MAY_SAY_READY(r) (!IS_SPOILT(r))
#endif

proctype rank(byte r)
{
end:
    do
    :: d_step { !GONE(r) && step[r] == CALLS -> step[r] = AGREES; phase[r] = SAYS_AGREE; write(r) }
    /* all say the same: all were ready for what is there, or they try without the suspects */
    :: d_step { PLAYS(r) && step[r] == AGREES && ALL_SAY_SAME(r) ->
        if
        :: IS_DECIDED(r) -> leave(r)
        :: else ->
            built[r] = 0;
            ready[r] = 0;
            tried[r] = NAME(suspects[r]);
            entered[r] = entered[r] | BIT(suspects[r]);
            step[r] = BUILDS /* it says nothing of this yet */
        fi }
    :: d_step { PLAYS(r) && step[r] == BUILDS && IS_SPOILT(r) -> step[r] = AGREES }
    :: d_step { PLAYS(r) && step[r] == BUILDS && MAY_SAY_READY(r) && ALL_ENTERED(tried[r]) ->
        built[r] = tried[r];
        ready[r] = ready[r] | BIT(r);
        phase[r] = SAYS_READY;
        step[r] = IS_READY;
        write(r) }
    :: d_step { PLAYS(r) && step[r] == IS_READY && IS_DECIDED(r) -> leave(r) }
    :: d_step { PLAYS(r) && step[r] == IS_READY && !IS_DECIDED(r) && IS_SPOILT(r) -> step[r] = AGREES }
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
#define FIT(a, b) (!HAS_GROUP(a) || !HAS_GROUP(b) || built[a] == built[b] || slow == (a) || slow == (b))
#define OWN(r) (!HAS_GROUP(r) || !HAS(built[r], r))

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
