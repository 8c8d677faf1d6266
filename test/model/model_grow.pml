/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The end of xep_group_grow() (src/elastic/group_grow.h): members tell one another that they have made the group, by a
 * word to each, one after the other; rank 0 then gives the joiner its verdict. A member with all words returns the
 * new group. A member that lacks one when another has died returns an error, and ends the group in doubt, by a word to
 * each, too; a rank that hears that passes it on. A joiner that gets no verdict, or the verdict that there is no
 * group, ends it in the same way.
 *
 * What must not be: of two survivors one has a group that it has not been told to leave, and the other has none.
 *
 * Sizes, by -D: MEMBERS, and a joiner behind them; DEATHS (at most so many die, at any step).
 * Choices:
 *   SLOW     members may give up though nobody has died: a deadline
 *   DEFECT_* a deliberate defect: protocols.sh has the list
 */
#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define ALL (MEMBERS + 1)
#define JOINER MEMBERS
#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)

#define NOTHING 0
#define NEW 1
#define ERROR 2

byte words[MEMBERS]; /* from whom the last word is here, a bit each */
byte state[ALL];     /* what the call has returned, or is about to */
byte verdict;        /* of the joiner */
byte doubt;          /* who was told, or knows, that the group is none */
byte dead;

#define IS_DEAD(r) HAS(dead, r)

/* To all others, one by one; a word to the dead is lost. */
inline tell_doubt(r_)
{
#ifndef DEFECT_DOUBT
    to = 0;
    do
    :: to < ALL ->
        atomic {
            if
            :: IS_DEAD(r_) -> goto end
            :: else -> doubt = doubt | BIT(to)
            fi;
            to++
        }
    :: else -> break
    od
#else
    skip
#endif
}

/* Who has got the group hears it in its next call, and passes it on. */
inline live_on(r_)
{
    if
    :: IS_DEAD(r_) -> goto end
    :: state[r_] == NEW && HAS(doubt, r_) -> skip
    fi;
#ifndef DEFECT_RELAY
    tell_doubt(r_)
#endif
}

#ifdef SLOW
#define MAY_GIVE_UP true
#else
#define MAY_GIVE_UP (dead != 0)
#endif

proctype member(byte r)
{
    byte to = 1;
    words[r] = words[r] | BIT(r);
    do
    :: to < MEMBERS ->
        atomic {
            if
            :: IS_DEAD(r) -> goto end
            :: else -> words[(r + to) % MEMBERS] = words[(r + to) % MEMBERS] | BIT(r)
            fi;
            to++
        }
    :: else -> break
    od;
    atomic {
        if
        :: IS_DEAD(r) -> goto end
        :: words[r] == BIT(MEMBERS) - 1 -> state[r] = NEW
        :: words[r] != BIT(MEMBERS) - 1 && MAY_GIVE_UP -> state[r] = ERROR
        fi
    }
    atomic {
        if
        :: IS_DEAD(r) -> goto end
        :: !IS_DEAD(r) && r == 0 -> verdict = state[r]
        :: else -> skip
        fi
    }
    if
    :: state[r] == ERROR -> tell_doubt(r)
    :: else -> live_on(r)
    fi;
end:
    skip
}

proctype joiner()
{
    byte to;
    atomic {
        if
        :: IS_DEAD(JOINER) -> goto end
        :: verdict != NOTHING -> state[JOINER] = verdict
        :: verdict == NOTHING && IS_DEAD(0) -> state[JOINER] = ERROR
        fi
    }
    if
#ifdef DEFECT_VERDICT /* that there is no group needs no doubt */
    :: state[JOINER] == ERROR && verdict == NOTHING -> tell_doubt(JOINER)
    :: state[JOINER] == ERROR && verdict != NOTHING -> skip
#else
    :: state[JOINER] == ERROR -> tell_doubt(JOINER)
#endif
    :: state[JOINER] == NEW -> live_on(JOINER)
    fi;
end:
    skip
}

proctype death()
{
    byte deaths = 0, r;
end:
    do
    :: deaths < DEATHS ->
        select(r : 0 .. ALL - 1);
        atomic { dead = dead | BIT(r); deaths++ }
    od
}

#define HAS_IT(r) (state[r] == NEW && !HAS(doubt, r))

/* Nothing can happen any more. */
active proctype monitor()
{
    byte a, b;
    timeout ->
    d_step {
        for (a : 0 .. ALL - 1) {
            assert(IS_DEAD(a) || state[a] != NOTHING);
            for (b : 0 .. ALL - 1) {
                assert(IS_DEAD(a) || IS_DEAD(b) || !HAS_IT(a) || HAS_IT(b))
            }
        }
    }
}

init {
    atomic {
        byte r = 0;
        do
        :: r < MEMBERS -> run member(r); r++
        :: else -> break
        od;
        run joiner();
        run death()
    }
}
