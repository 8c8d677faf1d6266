/* SPDX-License-Identifier: BSD-3-Clause */

/* What goes on beside the operations: ranks die, deadlines pass; and the choice of the script. */

/* ---- death ---- */

#ifdef DEATH
active proctype death()
{
    if
    :: d_step { dead == NONE -> dead = 0; gone[0] = true }
    :: d_step { dead == NONE -> dead = 1; gone[1] = true }
    :: d_step { dead == NONE -> dead = 2; gone[2] = true }
    fi;
    false
}
#endif

#define OVER(r, o, x) (STATE(r, x) >= RELEASED || (kind[x] == COMBINE && STATE(r, x) >= GOOD))
#define FINISHED(r) (gone[r] || (next[r] == OPS && EVERY(OVER, r, 0)))

/*
 * With a dead rank about, a rank that waits for an operation may reach its deadline, at any time. Its buffer is broken
 * then: all operations end, and nothing of it is used until a reset, which needs all ranks.
 */
#define IDLE(r, o, x) (!IN_FLIGHT(r, x))
#ifdef ZERO
#define WAITS(r) (!FINISHED(r)) /* in xep_handle_combine_input() too, which has a deadline of its own */
#else
#define WAITS(r) (!EVERY(IDLE, r, 0))
#endif

proctype deadline(byte r)
{
    d_step {
        dead != NONE && HERE(r) && WAITS(r) ->
        gone[r] = true;
#ifdef CHANGED
        for (k : 0 .. OPS - 1) {
            if
            :: IN_FLIGHT(r, k) -> changed[r] = changed[r] | (1 << k)
            :: else -> skip
            fi
        }
#endif
    };
    false
}

/* Nothing can happen any more: all ranks that are here have ended everything. */
active proctype monitor()
{
    timeout -> assert(FINISHED(0) && FINISHED(1) && FINISHED(2))
}

/* ---- the beginning ---- */

#define NOT_LATER(p, o, x) (!((x) >= (o) && USES(x, p)))

/* Any earlier dispatch. */
inline choose_handle(o_)
{
    if
    :: o_ > 0 && IS_DISPATCH(0) -> whose[o_] = 0
#if OPS > 2
    :: o_ > 1 && IS_DISPATCH(1) -> whose[o_] = 1
#endif
#if OPS > 3
    :: o_ > 2 && IS_DISPATCH(2) -> whose[o_] = 2
#endif
#if OPS > 4
    :: o_ > 3 && IS_DISPATCH(3) -> whose[o_] = 3
#endif
#if OPS > 5
    :: o_ > 4 && IS_DISPATCH(4) -> whose[o_] = 4
#endif
    fi
}

/* Handles before o that are still to be used when dispatch o takes its slot: they leave it one. */
#define IS_KEPT(p, o) (((p) < (o) && IS_DISPATCH(p) && !EVERY(NOT_LATER, p, o)) -> 1 : 0)
#if OPS < 4
#define KEPT(o) (IS_KEPT(0, o) + IS_KEPT(1, o))
#elif OPS == 4
#define KEPT(o) (IS_KEPT(0, o) + IS_KEPT(1, o) + IS_KEPT(2, o))
#else
#define KEPT(o) (IS_KEPT(0, o) + IS_KEPT(1, o) + IS_KEPT(2, o) + IS_KEPT(3, o))
#endif

/* A dispatch with the handle of one that fails is refused, and has no turn. */
inline number(o_)
{
    if
    :: kind[o_] == COMBINE -> skip
    :: kind[o_] == CACHED && (whose[o_] == bad || whose[o_] == unborn || is_refused[whose[o_]]) ->
        is_refused[o_] = true
    :: else ->
        turn_of[o_] = turns;
        turns = turns + (HAS_TURN(o_) -> 1 : 0)
    fi;
    routing_of[o_] = (kind[o_] == CACHED -> routing_of[whose[o_]] : EPOCH(o_))
}

/* What cannot be run on so few slots ends here. */
inline choose_script()
{
    byte o = 0, turns = 0;
    bool is_refused[OPS];
#if defined(PAIRS)
    do
    :: o < OPS -> kind[o] = (o % 2 == 0 -> DISPATCH : COMBINE); whose[o] = o & 6; o++
    :: else -> break
    od;
#elif defined(AGAIN)
    do
    :: o < OPS -> kind[o] = (o == 0 -> DISPATCH : COMBINE); o++
    :: else -> break
    od;
#elif !defined(DISPATCHES)
    do
    :: o < OPS ->
        if
        :: kind[o] = DISPATCH
        :: o > 0 -> kind[o] = CACHED; choose_handle(o)
        :: o > 0 -> kind[o] = COMBINE; choose_handle(o)
        fi;
        o++
    :: else -> break
    od;
    o = 0;
    do
    :: o < OPS && (!IS_DISPATCH(o) || KEPT(o) < SLOTS) -> o++
    :: o < OPS && IS_DISPATCH(o) && KEPT(o) >= SLOTS -> goto no_such_script
    :: else -> break
    od;
#endif
    o = 0;
    do
#ifdef BAD
    :: o < OPS && bad == NONE -> bad = o; o = OPS
#endif
#ifdef UNBORN
    :: o < OPS && unborn == NONE -> unborn = o; o = OPS
#endif
    :: o < OPS -> o++
    :: else -> break
    od;
    o = 0;
    do
    :: o < OPS -> number(o); o++
    :: else -> break
    od;
    do
    :: o > 0 -> o--; is_refused[o] = false
    :: else -> break
    od;
    turns = 0
}

init {
    atomic {
        choose_script();
        byte r = 0, o2 = 0;
        do
        :: r < RANKS ->
            order_peers(r);
            if
            :: o2 < OPS && IS_DISPATCH(o2) -> run dispatch(r, o2); o2++
            :: o2 < OPS && !IS_DISPATCH(o2) -> run combine(r, o2); o2++
            :: else ->
#ifdef DEATH
                run deadline(r);
#endif
                o2 = 0;
                r++
            fi
        :: else -> break
        od;
        r = 0;
        goto chosen;
no_such_script:
        gone[0] = true;
        gone[1] = true;
        gone[2] = true;
chosen:
        skip
    }
}
