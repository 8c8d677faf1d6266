/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Combine, the same in both modes (normal.h, ll.h: combine 1 to 6). Every rank is an owner of the rows it received and
 * a reader of those of its tokens. To readers that are not mapped rows are put into the reader's area "returned",
 * others read the owner's input. A mode defines READY, READ, OFFER and RETURNED, the numbers of its words and areas.
 *
 * Left out: weights, which go with the rows, from and to places beside theirs; what is private to a rank (sums, bias,
 * LogFMT). ll's table is written and read here in both modes: normal knows from its counts what ll looks up there.
 */

byte input[RANKS * SLOTS];    /* rows of a slot, for all readers */
byte table[RANKS * SLOTS];    /* ll: where those of each expert begin */
byte combined[RANKS * SLOTS]; /* private: epoch of the last combine of the slot */

#ifdef DEFECT_DRAIN
#define IS_DRAINED(r, slot) true
#else
#define IS_DRAINED(r, slot) ALL(READ, r, slot, combined[(r) * SLOTS + (slot)])
#endif

/* The word of owner d for handle h, at reader r. */
#define IS_READY(r, h, d, e) (WORD(READY, r, SLOT(d, h), d) >= e)
#ifdef DEFECT_READY
#define ARE_READY(r, h, e) (IS_READY(r, h, r, e) && IS_READY(r, h, NEXT(r, 1), e))
#elif defined(DEFECT_DEAD)
#define ARE_READY(r, h, e) \
    ((IS_READY(r, h, 0, e) || dead == 0) && (IS_READY(r, h, 1, e) || dead == 1) && (IS_READY(r, h, 2, e) || dead == 2))
#else
#define ARE_READY(r, h, e) (IS_READY(r, h, 0, e) && IS_READY(r, h, 1, e) && IS_READY(r, h, 2, e))
#endif

/* 2: rows of owner r for reader d, where d does not map r */
inline return_rows(me, peer, base, op)
{
    if
    :: MAPS(me, peer) -> skip
    :: else -> place(RETURNED, me, peer, SLOT(peer, base), EPOCH(op))
    fi
}

/* 3: the offer of owner r to reader d, and its word */
inline offer_to(me, peer, base, op)
{
    place(OFFER, me, peer, SLOT(me, base), EPOCH(op));
    tell(READY, me, peer, SLOT(me, base), EPOCH(op))
}

/* 5: rows of owner d, as reader r finds them */
inline read_rows(me, peer, base, op)
{
    if
    :: MAPS(me, peer) ->
        assert(input[peer * SLOTS + SLOT(peer, base)] == EPOCH(op));
        assert(table[peer * SLOTS + SLOT(peer, base)] == EPOCH(op))
    :: else -> assert(AREA(RETURNED, me, SLOT(me, base), peer) == EPOCH(op))
    fi
}

/* 4: the offer of owner d, and with it the rows put by it */
inline take_offer(me, peer, base, op)
{
    settle_from(OFFER, peer, me, SLOT(peer, base), EPOCH(op));
    settle_from(RETURNED, peer, me, SLOT(me, base), EPOCH(op));
    assert(AREA(OFFER, me, SLOT(peer, base), peer) == EPOCH(op))
}

/* 6 */
inline say_read(me, peer, base, op)
{
    tell(READ, me, peer, SLOT(peer, base), EPOCH(op))
}

/* all combines of the handle before o have ended */
#define NOT_BEFORE(r, o, x) ((x) >= (o) || kind[x] != COMBINE || whose[x] != whose[o] || STATE(r, x) >= GOOD)

proctype combine(byte r; byte o)
{
    byte h = whose[o];

#ifdef ZERO
    /* the caller asks for the input and writes it: input() says when it may */
    if
    :: d_step { HERE(r) && next[r] == o && IS_REFUSED(r, o) -> next[r]++; STATE(r, o) = REFUSED }; goto over
    :: d_step {
        HERE(r) && STATE(r, h) == GOOD && EVERY(NOT_BEFORE, r, o) && IS_DRAINED(r, SLOT(r, h)) ->
        input[r * SLOTS + SLOT(r, h)] = EPOCH(o)
    }
    fi;
#endif
    if
    :: d_step { HERE(r) && next[r] == o && IS_REFUSED(r, o) -> next[r]++; STATE(r, o) = REFUSED }; goto over
    :: d_step { HERE(r) && MAY_COMBINE(r, o) -> next[r]++; STATE(r, o) = FLYING }
    fi;
#ifdef UNBORN
    if
    :: d_step { HERE(r) && unborn == o -> conclude(r, o, FAILED) }; goto over
    :: HERE(r) && unborn != o
    fi;
#endif
    d_step { /* 1, 2, 3 */
        HERE(r) && IS_DRAINED(r, SLOT(r, h)) ->
        combined[r * SLOTS + SLOT(r, h)] = EPOCH(o);
#ifndef ZERO
        input[r * SLOTS + SLOT(r, h)] = EPOCH(o);
#endif
        table[r * SLOTS + SLOT(r, h)] = EPOCH(o);
        return_rows(r, first[r], h, o);
        return_rows(r, second[r], h, o);
        offer_to(r, first[r], h, o)
    };
    d_step { HERE(r) -> offer_to(r, second[r], h, o); offer_to(r, r, h, o) };
    d_step { /* 4, 5, 6 */
        HERE(r) && ARE_READY(r, h, EPOCH(o)) ->
        take_offer(r, 0, h, o);
        take_offer(r, 1, h, o);
        take_offer(r, 2, h, o);
#ifdef DEFECT_READ
        say_read(r, first[r], h, o)
    };
    d_step {
        HERE(r) ->
#endif
        if
        :: bad != o ->
            read_rows(r, 0, h, o);
            read_rows(r, 1, h, o);
            read_rows(r, 2, h, o)
        :: else -> skip
        fi;
#ifndef DEFECT_READ
        say_read(r, first[r], h, o)
#endif
    };
    d_step {
        HERE(r) ->
        say_read(r, second[r], h, o);
        say_read(r, r, h, o);
        flush(r, o);
        conclude(r, o, (bad == o -> FAILED : GOOD))
    };
over: /* and stays: to end would be one more step */
    false
}
