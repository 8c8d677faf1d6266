/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The mode "normal" (plugins/normal/normal.h). The numbers of steps are those of the comment there.
 *
 * Left out: the plan, places and counts of rows (what a rank writes for another lies at a place of its own, so that a
 * slot has one area for each source), metadata (goes with the rows), selections.
 */

/* words, in lines of a rank, with one entry for each slot */
#define COUNTS 0 /* record of this epoch is in ring entry [index] */
#define DONE 1   /* all rows of this epoch for the heap owner's slot [index] are there */
#define READY 2  /* combine of this epoch may be read in the writer's slot [index] */
#define READ 3   /* combine of this epoch was read from the heap owner's slot [index] */
#define WORDS 4

/* areas */
#define RECORD 0 /* ring of records */
#define ROWS 1   /* of each source, in a slot */
#define OFFER 2
#define RETURNED 3
#define AREAS 4
#define CALLERS ((1 << ROWS) | (1 << RETURNED)) /* put from memory of the caller */
#define ENTRIES SLOTS

#include "model_core.pml"
#include "model_combine.pml"

#ifdef DEFECT_INDEX
#define ENTRY(r, o) SLOT(r, o)
#else
#define ENTRY(r, o) (turn_of[o] % SLOTS)
#endif
#ifdef DEFECT_SLOT
#define TARGET(r, d, o) SLOT(r, o)
#else
#define TARGET(r, d, o) SLOT(d, o)
#endif

/* 2 */
inline record_to(me, peer, op)
{
    place(RECORD, me, peer, ENTRY(me, op), EPOCH(op));
    tell(COUNTS, me, peer, ENTRY(me, op), EPOCH(op))
}

/* 4 */
inline rows_to(me, peer, op)
{
    place(ROWS, me, peer, TARGET(me, peer, op), EPOCH(op))
}

/* 5 */
inline done_to(me, peer, op)
{
    tell(DONE, me, peer, SLOT(peer, op), EPOCH(op))
}

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
        record_to(r, first[r], o) /* 2 */
    }
    fi;
    d_step { HERE(r) -> record_to(r, second[r], o); record_to(r, r, o) };
    d_step { /* 3, 4, 5 */
        HERE(r) && ALL(COUNTS, r, ENTRY(r, o), EPOCH(o)) ->
        settle(RECORD, r, ENTRY(r, o), EPOCH(o));
        assert(HAVE(RECORD, r, ENTRY(r, o), EPOCH(o)));
#ifdef DEFECT_VERDICT
        is_bad = (bad == o && r == 2);
#else
        is_bad = (bad == o);
#endif
#ifdef DEFECT_SIGNAL
        done_to(r, first[r], o)
    };
    d_step {
        HERE(r) ->
#endif
        if
        :: is_bad -> skip
        :: else ->
            rows_to(r, first[r], o);
            rows_to(r, second[r], o);
            rows_to(r, r, o)
        fi;
#ifndef DEFECT_SIGNAL
        done_to(r, first[r], o)
#endif
    };
    d_step { HERE(r) -> done_to(r, second[r], o); done_to(r, r, o) };
    d_step { /* 6 */
        HERE(r) && ALL(DONE, r, SLOT(r, o), EPOCH(o)) ->
        settle(ROWS, r, SLOT(r, o), EPOCH(o));
        assert(is_bad || HAVE(ROWS, r, SLOT(r, o), EPOCH(o)));
        flush(r, o);
        conclude(r, o, (is_bad -> FAILED : GOOD));
        is_bad = false
    };
release:
    atomic { /* the caller has read the rows until now */
        HERE(r) && MAY_RELEASE(r, o) ->
        assert(STATE(r, o) == FAILED || HAVE(ROWS, r, SLOT(r, o), EPOCH(o)));
        give_back(r, o)
    };
over: /* and stays: to end would be one more step */
    false
}

#include "model_run.pml"
