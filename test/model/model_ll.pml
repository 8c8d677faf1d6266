/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The mode "ll" (plugins/ll/ll.h). The numbers of steps are those of the comment there.
 *
 * Left out: where the rows of an expert begin, casts, scales (they go with the rows), what is private to a rank.
 */

#ifdef DEFECT_RING
#define RING SLOTS
#else
#define RING (2 * SLOTS)
#endif

/* words: a notice has an entry for each of the ring, the others one for each slot */
#define NOTICED 0 /* the dispatch of this epoch may be read */
#define READY 1   /* combine of this epoch may be read in the writer's slot */
#define READ 2    /* combine of this epoch was read from the heap owner's slot */
#define WORDS 3

/* areas */
#define NOTICE 0
#define RECV_RING 1 /* packets put by ranks that are not mapped */
#define OFFER 2
#define RETURNED 3
#define AREAS 4
#define CALLERS (1 << RETURNED) /* put from memory of the caller */
#define ENTRIES (2 * SLOTS)

#include "model_core.pml"
#include "model_combine.pml"

byte packet[RANKS * ENTRIES]; /* of a rank, for all that map it */
byte rows[RANKS * SLOTS];     /* of a slot: nobody else writes there */

#define ENTRY(o) (turn_of[o] % RING)

/* 1: packet of rank "me" for peer, where that does not map it */
inline put_packet(me, peer, op)
{
    if
    :: MAPS(me, peer) -> skip
    :: else -> place(RECV_RING, me, peer, ENTRY(op), EPOCH(op))
    fi
}

/* 2 */
inline notify(me, peer, op)
{
    place(NOTICE, me, peer, ENTRY(op), EPOCH(op));
    tell(NOTICED, me, peer, ENTRY(op), EPOCH(op))
}

/* 5 */
inline read_packet(me, peer, op)
{
    if
    :: MAPS(me, peer) -> assert(packet[peer * ENTRIES + ENTRY(op)] == EPOCH(op))
    :: else -> assert(AREA(RECV_RING, me, ENTRY(op), peer) == EPOCH(op))
    fi
}

/* 3: until all notices are there */
#define IS_NOTICED(r, o, s) (WORD(NOTICED, r, ENTRY(o), s) >= EPOCH(o))
#ifdef DEFECT_NOTICES
#define ARE_NOTICED(r, o) (IS_NOTICED(r, o, r) && IS_NOTICED(r, o, NEXT(r, 1)))
#elif defined(DEFECT_DEAD)
#define ARE_NOTICED(r, o) \
    ((IS_NOTICED(r, o, 0) || dead == 0) && (IS_NOTICED(r, o, 1) || dead == 1) && (IS_NOTICED(r, o, 2) || dead == 2))
#else
#define ARE_NOTICED(r, o) (IS_NOTICED(r, o, 0) && IS_NOTICED(r, o, 1) && IS_NOTICED(r, o, 2))
#endif

proctype dispatch(byte r; byte o)
{
    bool is_bad;

    if
    :: d_step { HERE(r) && next[r] == o && IS_REFUSED(r, o) -> next[r]++; STATE(r, o) = REFUSED }; goto over
    :: d_step {
        HERE(r) && MAY_DISPATCH(r, o) ->
        take_slot(r, o);
        next[r]++;
#ifdef LATE
        STATE(r, o) = WAITING
    }
    fi;
    if
    :: atomic { HERE(r) && unborn == o -> conclude(r, o, FAILED); goto release }
    :: atomic {
        HERE(r) && unborn != o && MAY_BEGIN(r, o) ->
#endif
        STATE(r, o) = FLYING;
        take_routing(r, o);
#ifdef DEFECT_SIGNAL
        notify(r, first[r], o)
    }
    fi;
    d_step {
        HERE(r) ->
        packet[r * ENTRIES + ENTRY(o)] = EPOCH(o); /* 1 */
        put_packet(r, first[r], o);
        put_packet(r, second[r], o)
    };
#else
        packet[r * ENTRIES + ENTRY(o)] = EPOCH(o); /* 1 */
        put_packet(r, first[r], o);
        put_packet(r, second[r], o);
        notify(r, first[r], o) /* 2 */
    }
    fi;
#endif
    d_step { HERE(r) -> notify(r, second[r], o); notify(r, r, o) };
    d_step { /* 3, 4, 5 */
        HERE(r) && ARE_NOTICED(r, o) ->
        settle(NOTICE, r, ENTRY(o), EPOCH(o));
        settle(RECV_RING, r, ENTRY(o), EPOCH(o));
        assert(HAVE(NOTICE, r, ENTRY(o), EPOCH(o)));
#ifdef DEFECT_VERDICT
        is_bad = (bad == o && r == 2);
#else
        is_bad = (bad == o);
#endif
        if
        :: is_bad -> skip
        :: else ->
            read_packet(r, 0, o);
            read_packet(r, 1, o);
            read_packet(r, 2, o);
            rows[r * SLOTS + SLOT(r, o)] = EPOCH(o)
        fi;
        flush(r, o);
        conclude(r, o, (is_bad -> FAILED : GOOD));
        is_bad = false
    };
release:
    atomic { /* the caller has read the rows until now */
        HERE(r) && MAY_RELEASE(r, o) ->
        assert(STATE(r, o) == FAILED || rows[r * SLOTS + SLOT(r, o)] == EPOCH(o));
        give_back(r, o)
    };
over: /* and stays: to end would be one more step */
    false
}

#include "model_run.pml"
