/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What the models of all modes share: ranks, the script of operations that all of them run, slots and turns as the core
 * gives them (src/request/request.c), the wire (include/xep/wire.h), death and the deadline.
 *
 * One step (d_step) of a rank stands for everything between a wait and one word that it sets in another rank's memory:
 * loads of words with acquire, then plain reads and writes, then one release store, or one put_signal.
 * docs/results/protocol-models.md says why that, and what is left out, loses no behaviour.
 *
 * A process is an operation of a rank. All that it says to others goes through place() and tell().
 *
 * An area of memory holds the epoch of the operation whose data is there. That is all a reader looks at: if it is
 * not the epoch of its own operation, data was overwritten before it was read, or read before it came.
 *   ARRIVING  is added while a put to the area is on its way: any of its bytes may have arrived
 *   TORN      the source of the put changed while the put was on its way
 *
 * Sizes, by -D:
 *   OPS      operations that every rank runs, 1 to 6
 *   SLOTS    of a buffer
 *   MAPPED   which pairs of ranks map one another: 1 for 0-1, 2 for 0-2, 4 for 1-2, added
 * Choices, by -D:
 *   PAIRS    the script is dispatch, combine, dispatch, combine, ...
 *   AGAIN    the script is one dispatch and its combines
 *   DISPATCHES  the script has no combines, and no cached dispatches
 *   ZERO     experts' outputs are written where peers read them before combine is called (xep_handle_combine_input)
 *   LATE     operations begin some time after the call (args.after), in any order
 *   BAD      in one operation rank 2 disagrees with the others, or has no room
 *   DEATH    one rank stops for ever, at any step
 *   UNBORN   one operation comes after another that fails on all ranks, and so never begins (with LATE)
 *   CHANGED  what a put reads is changed by the caller once its operation has ended by the deadline (with DEATH)
 *   DEFECT_* a deliberate defect: protocols.sh has the list
 */

#define RANKS 3

#ifndef OPS
#define OPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef MAPPED
#define MAPPED 7
#endif

#define NONE 15
#define TORN 14
#define ARRIVING 16 /* added */

/* ---- the script: the same on every rank, as collective calls are ---- */

#define DISPATCH 0 /* with a routing of its own */
#define CACHED 1   /* dispatch with the routing of an earlier one */
#define COMBINE 2

byte kind[OPS], whose[OPS]; /* whose: index of the dispatch whose handle is used */
byte turn_of[OPS];       /* dispatches before this one */
byte routing_of[OPS];    /* epoch of the dispatch that made the routing */
byte bad = NONE;         /* operation in which rank 2 disagrees */
byte unborn = NONE;      /* operation that never begins */

#define EPOCH(o) ((o) + 1)
#define IS_DISPATCH(o) (kind[o] != COMBINE)
#define USES(x, o) (kind[x] != DISPATCH && whose[x] == (o))

/* ---- the core of each rank ---- */

#define NEW 0
#define WAITING 1 /* for the operation it comes after */
#define FLYING 2
#define GOOD 3
#define FAILED 4 /* with an error that every rank gets */
#define RELEASED 5
#define REFUSED 6 /* by the call itself: the handle is of a dispatch that failed */

byte state[RANKS * OPS];
byte next[RANKS]; /* operation to be called */
byte slot_of[RANKS * OPS];
bool taken[RANKS * SLOTS];      /* a handle has the slot */
byte last_turn[RANKS * SLOTS];  /* of the slot's last handle */
byte routing_in[RANKS * SLOTS]; /* epoch of the dispatch that made the slot's routing */
byte verdict[OPS];              /* GOOD or FAILED, as the first rank that ended it says */
bool gone[RANKS];               /* dead, or ended by the deadline */
byte dead = NONE;

#define STATE(r, o) state[(r) * OPS + (o)]
#define SLOT(r, o) slot_of[(r) * OPS + (o)]
#define HERE(r) (!gone[r])

/* cond(r, o, x) for all operations x: there are no quantifiers */
#if OPS == 1
#define EVERY(cond, r, o) cond(r, o, 0)
#elif OPS == 2
#define EVERY(cond, r, o) (cond(r, o, 0) && cond(r, o, 1))
#elif OPS == 3
#define EVERY(cond, r, o) (cond(r, o, 0) && cond(r, o, 1) && cond(r, o, 2))
#elif OPS == 4
#define EVERY(cond, r, o) (cond(r, o, 0) && cond(r, o, 1) && cond(r, o, 2) && cond(r, o, 3))
#elif OPS == 5
#define EVERY(cond, r, o) (cond(r, o, 0) && cond(r, o, 1) && cond(r, o, 2) && cond(r, o, 3) && cond(r, o, 4))
#else
#define EVERY(cond, r, o) \
    (cond(r, o, 0) && cond(r, o, 1) && cond(r, o, 2) && cond(r, o, 3) && cond(r, o, 4) && cond(r, o, 5))
#endif

/* check_turn(): no dispatch of SLOTS turns before is in flight */
#define IN_FLIGHT(r, x) (STATE(r, x) == WAITING || STATE(r, x) == FLYING)
#define NOT_BEHIND(r, o, x) (!(IS_DISPATCH(x) && IN_FLIGHT(r, x) && turn_of[x] + SLOTS <= turn_of[o]))
#ifdef DEFECT_TURN
#define TURN_MAY_BEGIN(r, o) true
#else
#define TURN_MAY_BEGIN(r, o) EVERY(NOT_BEHIND, r, o)
#endif

#ifndef DEFECT_ORDER
#define HAS_BEGUN(r, o, x) (!(IS_DISPATCH(x) && x < o && STATE(r, x) < FLYING))
#define MAY_BEGIN(r, o) (EVERY(HAS_BEGUN, r, o) && TURN_MAY_BEGIN(r, o))
#define HAS_TURN(o) ((o) != unborn)
#else
#define MAY_BEGIN(r, o) true
#define HAS_TURN(o) true
#endif

/* find_slot() of request_begin.c: the free slot that was begun in last. */
#if SLOTS == 1
#define FREE_SLOT(r) (taken[r] -> NONE : 0)
#else
#define FREE_SLOT(r) \
    (!taken[(r) * 2] && (taken[(r) * 2 + 1] || last_turn[(r) * 2 + 1] <= last_turn[(r) * 2]) -> 0 : \
        (!taken[(r) * 2 + 1] -> 1 : NONE))
#endif

#define HAS_HANDLE(r, o) (kind[o] == DISPATCH || STATE(r, whose[o]) == GOOD)
#define IS_REFUSED(r, o) \
    (kind[o] != DISPATCH && (STATE(r, whose[o]) == FAILED || STATE(r, whose[o]) == REFUSED))
#define MAY_DISPATCH(r, o) (next[r] == o && HAS_HANDLE(r, o) && FREE_SLOT(r) != NONE && TURN_MAY_BEGIN(r, o))

/* a handle has one operation in flight at most */
#define NOT_COMBINING(r, o, x) (!(kind[x] == COMBINE && whose[x] == whose[o] && IN_FLIGHT(r, x)))
#define MAY_COMBINE(r, o) (next[r] == o && HAS_HANDLE(r, o) && EVERY(NOT_COMBINING, r, o))

/* a caller releases a handle once it has no further use for it; the core keeps it while an operation needs it */
#ifdef DEFECT_RELEASE
#define NOT_USING(r, o, x) (!USES(x, o) || STATE(r, x) != NEW)
#else
#define NOT_USING(r, o, x) \
    (!USES(x, o) || (kind[x] == COMBINE -> STATE(r, x) >= GOOD : STATE(r, x) >= FLYING))
#endif
#define MAY_RELEASE(r, o) (EVERY(NOT_USING, r, o))

hidden byte k;

inline take_slot(r_, o_)
{
    SLOT(r_, o_) = FREE_SLOT(r_);
    taken[r_ * SLOTS + SLOT(r_, o_)] = true;
    last_turn[r_ * SLOTS + SLOT(r_, o_)] = turn_of[o_];
}

/* a cached dispatch takes the routing of the slot whose handle it was called with, when it begins */
inline take_routing(r_, o_)
{
    if
    :: kind[o_] == DISPATCH -> routing_in[r_ * SLOTS + SLOT(r_, o_)] = EPOCH(o_)
    :: else -> routing_in[r_ * SLOTS + SLOT(r_, o_)] = routing_in[r_ * SLOTS + SLOT(r_, whose[o_])]
    fi;
    assert(routing_in[r_ * SLOTS + SLOT(r_, o_)] == routing_of[o_]);
}

/* every rank that ends the operation says the same of it */
inline conclude(r_, o_, how_)
{
    assert(verdict[o_] == 0 || verdict[o_] == how_);
    verdict[o_] = how_;
    STATE(r_, o_) = how_;
}

inline give_back(r_, o_)
{
    taken[r_ * SLOTS + SLOT(r_, o_)] = false;
    STATE(r_, o_) = RELEASED;
}

/* ---- the wire ---- */

/* The bit of a pair; a rank maps itself. */
#define MAPS(a, b) ((a) == (b) || ((MAPPED >> ((a) + (b) - 1)) & 1))

/*
 * Words and areas in the heap of a rank, one for each (entry, writer). A mode says how many kinds of them there are,
 * and of how many entries at most.
 */
#define AT(kind, d, i, s) ((((kind) * RANKS + (d)) * ENTRIES + (i)) * RANKS + (s))
#define WORD(kind, d, i, s) words[AT(kind, d, i, s)]
#define AREA(kind, d, i, s) areas[AT(kind, d, i, s)]

byte words[WORDS * RANKS * ENTRIES * RANKS];
byte areas[AREAS * RANKS * ENTRIES * RANKS];

/* "until own words [i][r] >= e for all r" */
#define ALL(kind, d, i, e) (WORD(kind, d, i, 0) >= e && WORD(kind, d, i, 1) >= e && WORD(kind, d, i, 2) >= e)
#define HAVE(kind, d, i, e) (AREA(kind, d, i, 0) == e && AREA(kind, d, i, 1) == e && AREA(kind, d, i, 2) == e)

/*
 * Which of the two others a rank tells first: modes begin behind the own rank; mapped ones get their words before puts
 * to the others are tried.
 */
#define NEXT(r, n) (((r) + (n)) % RANKS)
byte first[RANKS], second[RANKS];

inline order_peers(r_)
{
    if
    :: !MAPS(r_, NEXT(r_, 1)) && MAPS(r_, NEXT(r_, 2)) -> first[r_] = NEXT(r_, 2); second[r_] = NEXT(r_, 1)
    :: else -> first[r_] = NEXT(r_, 1); second[r_] = NEXT(r_, 2)
    fi
}

byte changed[RANKS]; /* bit o: the caller may have changed what operation o put, before it was sent */

/*
 * Data of epoch e from rank s for rank d: stored, or put. Bytes of a put arrive at any time until its reader has seen
 * the signal that follows. Two puts to one place would end in any order.
 */
inline place(kind_, s_, d_, i_, e_)
{
    assert(AREA(kind_, d_, i_, s_) < ARRIVING || MAPS(s_, d_));
    AREA(kind_, d_, i_, s_) = (MAPS(s_, d_) -> e_ : e_ + ARRIVING)
}

/*
 * A word of rank s at d, after all that was placed there. A signal that takes its time is one that d looks at later: no
 * step depends on a word that has not come.
 */
#define tell(kind_, s_, d_, i_, e_) WORD(kind_, d_, i_, s_) = e_

/* What is put from memory that is the caller's again once the operation has ended; without the flush all is. */
#ifdef DEFECT_FLUSH
#define IS_CALLERS(kind) true
#else
#define IS_CALLERS(kind) (((CALLERS) >> (kind)) & 1)
#endif

/* d has seen the signal of epoch e from all ranks: what was put before it is there. */
inline settle_from(kind_, s_, d_, i_, e_)
{
    if
    :: AREA(kind_, d_, i_, s_) == e_ + ARRIVING ->
        AREA(kind_, d_, i_, s_) = ((IS_CALLERS(kind_) && ((changed[s_] >> (e_ - 1)) & 1)) -> TORN : e_)
    :: else -> skip
    fi
}

inline settle(kind__, d__, i__, e__)
{
    settle_from(kind__, 0, d__, i__, e__);
    settle_from(kind__, 1, d__, i__, e__);
    settle_from(kind__, 2, d__, i__, e__)
}

/* The wire's flush says XEP_OK some time: from then on sources are free, and a caller uses them again at once. */
inline flush(r_, o_)
{
#ifdef DEFECT_FLUSH
    changed[r_] = changed[r_] | (1 << o_);
#endif
    skip
}
