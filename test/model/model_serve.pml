/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Ranks that serve: src/buffer/announce.h. Two buffers; a step has OPS operations of each. Rank 2 works in a step or
 * serves, as it likes; the others work in all. Words of one buffer come in the order in which they were written, those
 * of two buffers in any: a rank looks at one writer's row of one buffer at a time.
 *
 * A rank that works may announce its next operation of a step before it begins it, in either buffer; with OPS, all that
 * follow there. A rank that serves follows what was announced once it has begun with it, even if its rank is out.
 *
 * An operation ends when all ranks have begun it. A rank that works does not wait for the end before it ends its step
 * and begins the next one: only before it uses the buffer again.
 *
 * -DBOTH_SERVE  rank 1 serves, too, if it likes. Where nobody works any more that lives, both return
 * -DDEATH       rank 0 may die at any moment. Nobody waits for it then, and nothing that it said counts
 * -DFROZEN      rank 0 stops for ever before it ends its first step
 */
#ifndef STEPS
#define STEPS 2
#endif
#ifndef OPS
#define OPS 1 /* of each buffer in a step */
#endif
#define RANKS 3
#define BUFFERS 2
#define NONE 15

typedef row { byte told; byte word_step; byte word_epoch }
typedef rows { row buffer[BUFFERS] }
typedef view { rows by[RANKS] }

rows row_of[RANKS];       /* as each rank has written it */
view seen[RANKS];         /* as each rank has last seen those of all */
byte begun[6];            /* [rank * BUFFERS + buffer] epochs */
byte step[RANKS];
byte boundary[6];         /* first step with which it has begun nothing there */
byte follows[6];          /* the last epoch of what it follows there */
bool stop[RANKS];
byte asked[RANKS];        /* the boundary at which it is to return, when it was told to */
bool finished[RANKS];
bool serves[RANKS];
bool dead;

#define B(r, b)     begun[(r) * BUFFERS + (b)]
#define EDGE(r, b)  boundary[(r) * BUFFERS + (b)]
#define IN(r)       (!(dead && (r) == 0))
#define HAS(r, b, e) (B(r, b) >= (e) || !IN(r))
#define ENDED(b, e) (HAS(0, b, e) && HAS(1, b, e) && HAS(2, b, e))
#define STEP_OF(e)  (((e) - 1) / OPS)
#define LAST(r)     (EDGE(r, 0) > EDGE(r, 1) -> EDGE(r, 0) : EDGE(r, 1))
#ifdef DEFECT_MAX
#define HELD_FROM(r, b) EDGE(r, b)
#else
#define HELD_FROM(r, b) LAST(r)
#endif
#ifdef DEFECT_HOLD
#define IS_HELD(r, b) false
#elif defined(DEFECT_FOLLOW)
#define IS_HELD(r, b) (stop[r] && (FOLLOWS(r, b) > B(r, b) || STEP_OF(B(r, b) + 1) >= HELD_FROM(r, b)))
#else
#define IS_HELD(r, b) (stop[r] && STEP_OF(B(r, b) + 1) >= HELD_FROM(r, b))
#endif

#define SEEN(r, w, b) seen[r].by[w].buffer[b]
#define FOLLOWS(r, b) follows[(r) * BUFFERS + (b)]
#define HEARS(r, w, b) (IN(w) && SEEN(r, w, b).told > B(r, b))
#define ANNOUNCED(r, b) (HEARS(r, 0, b) || HEARS(r, 3 - (r), b) || FOLLOWS(r, b) > B(r, b))
/*
 * Where another rank stands behind what this one has begun: in the step of its next operation, or, without one, behind
 * its last step, if that has ended here.
 */
#define HAS_NEXT(r, w, b) (SEEN(r, w, b).told > B(r, b))
#ifdef DEFECT_NEXT
#define ENTRY(r, w, b) NONE
#elif defined(DEFECT_TOLD)
#define ENTRY(r, w, b) (HAS_NEXT(r, w, b) -> STEP_OF(SEEN(r, w, b).told) : NONE)
#else
#define ENTRY(r, w, b) (HAS_NEXT(r, w, b) -> STEP_OF(B(r, b) + 1) : NONE)
#endif
#define LEAST(r, w) (ENTRY(r, w, 0) < ENTRY(r, w, 1) -> ENTRY(r, w, 0) : ENTRY(r, w, 1))
#define WORD(r, w, b) SEEN(r, w, b).word_step
#ifdef DEFECT_ONE
#define STANDS(r, w) (ENTRY(r, w, 0) < NONE -> ENTRY(r, w, 0) : WORD(r, w, 0))
#else
#define STANDS(r, w) (LEAST(r, w) < NONE -> LEAST(r, w) : WORD(r, w, 0))
#endif
#define IS_AT(r, w, b) (WORD(r, w, b) >= STANDS(r, w) && SEEN(r, w, b).word_epoch == B(r, b))
#define IS_HERE(r, w, b) (ENTRY(r, w, b) < NONE || IS_AT(r, w, b))
#ifdef DEFECT_ONE
#define BOTH(r, w) IS_HERE(r, w, 0)
#else
#define SAME_WORDS(r, w) (LEAST(r, w) < NONE || WORD(r, w, 0) == WORD(r, w, 1))
#define BOTH(r, w) (IS_HERE(r, w, 0) && IS_HERE(r, w, 1) && SAME_WORDS(r, w))
#endif
#define IS_WHERE(r, w) (IN(w) && STANDS(r, w) >= LAST(r) && BOTH(r, w))
#define IDLE(r) (ENDED(0, B(r, 0)) && ENDED(1, B(r, 1)))

/* Looks at what another rank has written of one buffer. The dead one's may never come. */
inline look(me_, other_, b_)
{
    SEEN(me_, other_, b_).told = row_of[other_].buffer[b_].told;
    SEEN(me_, other_, b_).word_step = row_of[other_].buffer[b_].word_step;
    SEEN(me_, other_, b_).word_epoch = row_of[other_].buffer[b_].word_epoch
}

#define IS_BEHIND(seen_, row_) (seen_.told != row_.told || seen_.word_step != row_.word_step)
#define IS_NEWS(r, w, b) (IN(w) && IS_BEHIND(SEEN(r, w, b), row_of[w].buffer[b]))

inline begin(r_, b_)
{
    B(r_, b_)++;
    EDGE(r_, b_) = STEP_OF(B(r_, b_)) + 1;
    if
    :: row_of[r_].buffer[b_].told < B(r_, b_) -> row_of[r_].buffer[b_].told = B(r_, b_)
    :: else -> skip
    fi
}

/* Of what it hears it follows the one that goes further. */
inline take_part(who_, in_)
{
    if
    :: HEARS(who_, 0, in_) && SEEN(who_, 0, in_).told > FOLLOWS(who_, in_) ->
        FOLLOWS(who_, in_) = SEEN(who_, 0, in_).told
    :: HEARS(who_, 3 - who_, in_) && SEEN(who_, 3 - who_, in_).told > FOLLOWS(who_, in_) ->
        FOLLOWS(who_, in_) = SEEN(who_, 3 - who_, in_).told
    :: else -> skip
    fi;
    begin(who_, in_);
    if
    :: FOLLOWS(who_, in_) <= B(who_, in_) -> FOLLOWS(who_, in_) = 0 /* all of it has begun */
    :: else -> skip
    fi
}

/* A rank that is where a step has ended says so, and is its own witness later. */
inline stand(rank_, buffer_, step_)
{
    row_of[rank_].buffer[buffer_].word_step = step_;
    row_of[rank_].buffer[buffer_].word_epoch = B(rank_, buffer_);
    EDGE(rank_, buffer_) = step_;
    look(rank_, rank_, buffer_)
}

#define MUST_WORK(r) ((r) == 0 || (ALWAYS && (r) == 1))
#ifdef BOTH_SERVE
#define ALWAYS false
#else
#define ALWAYS true
#endif

proctype rank(byte r)
{
    byte b, w;
again:
    if
    :: d_step { !IN(r) || step[r] == STEPS -> finished[r] = true }; goto leave
    :: step[r] < STEPS && IN(r) -> goto work
    :: step[r] < STEPS && !MUST_WORK(r) -> goto serve
    fi;
work:
    b = 0;
    do
    :: atomic { IN(r) && b < BUFFERS * OPS && row_of[r].buffer[b % BUFFERS].told == B(r, b % BUFFERS) ->
        row_of[r].buffer[b % BUFFERS].told = (step[r] + 1) * OPS }
    :: atomic { IN(r) && b < BUFFERS * OPS && ENDED(b % BUFFERS, B(r, b % BUFFERS)) ->
        assert(B(r, b % BUFFERS) == step[r] * OPS + b / BUFFERS); /* that of this step, and of no other */
        begin(r, b % BUFFERS);
        b++ }
    :: atomic { IN(r) && b == BUFFERS * OPS -> b = 0; break }
    :: atomic { !IN(r) -> finished[r] = true; goto leave }
    od;
#ifdef FROZEN
    if
    :: r == 0 -> goto leave
    :: else -> skip
    fi;
#endif
    do
    :: atomic { IN(r) && b < BUFFERS -> stand(r, b, step[r] + 1); b++ }
    :: atomic { b == BUFFERS -> step[r]++; b = 0; goto again }
    :: atomic { !IN(r) -> finished[r] = true; goto leave }
    od;
serve:
    serves[r] = true;
    do
#ifdef BOTH_SERVE
    :: atomic { dead && serves[3 - r] && IDLE(r) && !ANNOUNCED(r, 0) && !ANNOUNCED(r, 1) ->
        finished[r] = true; goto leave }
    :: atomic { dead && finished[3 - r] -> finished[r] = true; goto leave } /* by a deadline, if something has begun */
#endif
    :: atomic { IS_NEWS(r, 0, 0) -> look(r, 0, 0) }
    :: atomic { IS_NEWS(r, 0, 1) -> look(r, 0, 1) }
    :: atomic { IS_NEWS(r, 3 - r, 0) -> look(r, 3 - r, 0) }
    :: atomic { IS_NEWS(r, 3 - r, 1) -> look(r, 3 - r, 1) }
    :: atomic { !IS_HELD(r, 0) && ANNOUNCED(r, 0) -> take_part(r, 0) }
    :: atomic { !IS_HELD(r, 1) && ANNOUNCED(r, 1) -> take_part(r, 1) }
    :: d_step { !stop[r] -> stop[r] = true; asked[r] = LAST(r) }
    :: atomic { stop[r] && IDLE(r) && IS_WHERE(r, 0) -> w = 0; break }
    :: atomic { stop[r] && IDLE(r) && IS_WHERE(r, 1) -> w = 1; break }
    :: atomic { stop[r] && IDLE(r) && IS_WHERE(r, 2) -> w = 2; break }
    od;
    atomic {
        step[r] = STANDS(r, w);
        assert(step[r] == asked[r]); /* it works in the step behind the one in which it was told to stop */
        stop[r] = false;
        serves[r] = false;
        stand(r, 0, step[r]);
        stand(r, 1, step[r]);
        w = 0
    };
    goto again;
leave:
    skip
}

#ifdef DEATH
active proctype death()
{
    d_step { !finished[0] -> dead = true }
}
#endif

init
{
    atomic { run rank(0); run rank(1); run rank(2) }
}

/* Nothing can happen any more. The rank that stops for ever keeps the others in the next step, and not before it. */
active proctype monitor()
{
#ifdef FROZEN
    timeout -> assert(step[1] >= 1 && (step[2] >= 1 || B(2, 0) > OPS || B(2, 1) > OPS))
#else
    timeout -> assert((finished[0] || dead) && finished[1] && finished[2])
#endif
}
