/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches of normal by nodes (plugins/normal/normal_nodes.h): records that go to a rank of another node and are read
 * there, rows that go on from there, rings that are smaller than what passes, and lines that are used again by later
 * dispatches. Ranks 0 and 1 are a node, rank 2 is one: it is the forwarder of both, and rank 0 is its. Every token of a
 * rank goes to all ranks.
 *
 * One step of a rank is what it does up to one word that others see. What goes over the wire is written where it
 * belongs when it is sent, as early as that can be, and counts as ARRIVING until its word is delivered, as late as that
 * can be: words between two ranks arrive in order, at any time, and the wire takes no more than a few.
 *
 * Sizes, by -D: OPS dispatches, at most SLOTS of them at once; ROWS that each rank passes to the other node, of which a
 * ring has room for RING.
 * Choices: ALONE, without rank 1; DEFECT_*, a deliberate defect: protocols.sh has the list.
 */
#ifndef OPS
#define OPS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef ROWS
#define ROWS 2
#endif
#ifndef RING
#define RING 1
#endif

#define RANKS 3
#define FEW 3          /* words of one rank to another that the wire takes */
#define ARRIVING 128   /* added */
#define ROW(o, p) ((o) * ROWS + (p) + 1)
#define EPOCH(o) ((o) + 1)
#define INDEX(o) ((o) % SLOTS)

#define FORWARDER(r) (2 - 2 * ((r) / 2)) /* of 0 and 1: 2; of 2: 0 */
#define IS_LOCAL(a, b) ((a) / 2 == (b) / 2)

/* a line is that of the upstream rank, which has one forwarder, and lies there */
#define LINE(s, o) [(s) * SLOTS + INDEX(o)]
#define AT(r, s, o) [((r) * RANKS + (s)) * SLOTS + INDEX(o)]
#define THERE(s, o) AT(FORWARDER(s), s, o)

/* at the forwarder, written by the upstream rank over the wire */
byte passed[RANKS * SLOTS], passed_rows[RANKS * SLOTS];
byte ring[RANKS * SLOTS * RING];
#define ENTRY(s, o, p) [((s) * SLOTS + INDEX(o)) * RING + (p) % RING]
/* at the upstream rank, written by the forwarder over the wire */
byte taken[RANKS * SLOTS], taken_rows[RANKS * SLOTS];
/* in the heap of r, written by s, which is mapped or whose forwarder r is */
byte counts[RANKS * RANKS * SLOTS], done[RANKS * RANKS * SLOTS];
byte record_of[RANKS * RANKS * SLOTS], digest_of[RANKS * RANKS * SLOTS];
byte rows_of[RANKS * RANKS * SLOTS]; /* how many are at their places; by s or by its forwarder */

/* private */
byte begun[RANKS], ended[RANKS]; /* operations; ended is a set */
byte stored[RANKS * OPS];        /* rows of an upstream rank, at its forwarder */
#define STORED(s, o) stored[(s) * OPS + (o)]
#define HAS_ENDED(r, o) ((ended[r] >> (o)) & 1)
#ifdef DEFECT_TURN /* a dispatch begins while the one before it in the same lines is in flight */
#define MAY_BEGIN(r, o) (begun[r] == (o))
#else
#define MAY_BEGIN(r, o) (begun[r] == (o) && ((o) < SLOTS || HAS_ENDED(r, (o) - SLOTS)))
#endif
#define FLIES(r, o) (begun[r] > (o) && !HAS_ENDED(r, o))

/* ---- the wire ---- */

#define RECORDED 0
#define PASSED 1
#define DONE 2
#define TAKEN 3

chan wire[4] = [FEW] of { byte, byte, byte }; /* what, operation, rows: 0 to 2, 1 to 2, 2 to 0, 2 to 1 */
#define TO_FORWARDER(s) wire[s]
#define TO_UPSTREAM(s) wire[((s) < 2 -> 2 + (s) : 0)]
#define HAS_ROOM(s) nfull(TO_FORWARDER(s))

proctype deliver(byte which)
{
    byte what, o, p, s;
    do
    :: d_step {
        nempty(wire[which]) -> /* of what a line has got, s is the upstream rank */
        wire[which] ? what, o, p;
        s = (what == TAKEN -> (which == 0 -> 2 : which - 2) : which);
        if
        :: what == RECORDED -> 
            record_of THERE(s, o) = record_of THERE(s, o) & ~ARRIVING;
            counts THERE(s, o) = EPOCH(o)
        :: what == PASSED ->
            ring ENTRY(s, o, p - 1) = ring ENTRY(s, o, p - 1) & ~ARRIVING;
            passed LINE(s, o) = EPOCH(o);
            passed_rows LINE(s, o) = p
        :: what == DONE ->
            digest_of THERE(s, o) = digest_of THERE(s, o) & ~ARRIVING;
            done THERE(s, o) = EPOCH(o)
        :: what == TAKEN -> taken LINE(s, o) = EPOCH(o); taken_rows LINE(s, o) = p
        fi;
        what = 0; o = 0; p = 0; s = 0
    }
    od
}

/* ---- a rank's dispatch ---- */

#ifdef ALONE
#define HAS_LOCAL(r) false
#define IS_HERE(r) ((r) != 1)
#else
#define HAS_LOCAL(r) ((r) < 2)
#define IS_HERE(r) true
#endif
#define LOCAL(r) (1 - (r)) /* of 0 and 1 */

/* what s says lies with r, or with the forwarder of s on the node of r */
#define HEARD(r, s) (IS_LOCAL(r, s) -> (r) : FORWARDER(s))
#define IS_SET(words, r, s, o, value) (!IS_HERE(s) || words AT(r, s, o) == (value))
#define ALL_SET(words, r, o, value) \
    (IS_SET(words, r, 0, o, value) && IS_SET(words, r, 1, o, value) && IS_SET(words, r, 2, o, value))
#define IS_HEARD(words, r, s, o) IS_SET(words, HEARD(r, s), s, o, EPOCH(o))
#define ALL(words, r, o) (IS_HEARD(words, r, 0, o) && IS_HEARD(words, r, 1, o) && IS_HEARD(words, r, 2, o))
#define ALL_ROWS(r, o) ALL_SET(rows_of, r, o, ROW(o, ROWS - 1))

/* What r says, stored in the heaps of its node. */
inline say_record(r_, o_)
{
    record_of AT(r_, r_, o_) = EPOCH(o_);
    counts AT(r_, r_, o_) = EPOCH(o_);
    if
    :: HAS_LOCAL(r_) -> record_of AT(LOCAL(r_), r_, o_) = EPOCH(o_); counts AT(LOCAL(r_), r_, o_) = EPOCH(o_)
    :: else -> skip
    fi
}

inline say_done(r_, o_)
{
    digest_of AT(r_, r_, o_) = EPOCH(o_);
    done AT(r_, r_, o_) = EPOCH(o_);
    if
    :: HAS_LOCAL(r_) -> digest_of AT(LOCAL(r_), r_, o_) = EPOCH(o_); done AT(LOCAL(r_), r_, o_) = EPOCH(o_)
    :: else -> skip
    fi
}

/* Rows lie in the slots of ranks that are in this dispatch. */
inline put_row(r_, s_, o_, p_)
{
    assert(FLIES(r_, o_));
    rows_of AT(r_, s_, o_) = ROW(o_, p_);
    if
    :: HAS_LOCAL(r_) -> assert(FLIES(LOCAL(r_), o_)); rows_of AT(LOCAL(r_), s_, o_) = ROW(o_, p_)
    :: else -> skip
    fi
}

#ifdef DEFECT_ROOM
#define ROOM (RING + 1)
#else
#define ROOM RING
#endif
#ifdef DEFECT_EPOCH /* what was taken in an earlier dispatch counts */
#define TAKEN_ROWS(r, o) taken_rows LINE(r, o)
#else
#define TAKEN_ROWS(r, o) (taken LINE(r, o) == EPOCH(o) -> taken_rows LINE(r, o) : 0)
#endif
#define PASSED_ROWS(s, o) (passed LINE(s, o) == EPOCH(o) -> passed_rows LINE(s, o) : 0)
#define MAY_PASS(r, o) (put < ROWS && put < TAKEN_ROWS(r, o) + ROOM && HAS_ROOM(r))

/* An upstream rank hears of what is stored as long as it needs room for more. */
#define NEEDS(told) (ROWS > RING && told < ROWS - RING)

/* Rank 1 has no upstream ranks, rank 0 has one, rank 2 two. */
#define FEEDS(s, r) (IS_HERE(s) && !IS_LOCAL(s, r) && FORWARDER(s) == r)
#define IS_STORED(s, r, o, told) (!FEEDS(s, r) || (STORED(s, o) == ROWS && !NEEDS(told)))
#define ALL_STORED(r, o) (IS_STORED(0, r, o, told0) && IS_STORED(1, r, o, told1) && IS_STORED(2, r, o, told2))

/* 4: the next row, or the word that it is stored */
#ifdef DEFECT_CYCLE /* own rows first, then those of others */
#define MAY_FORWARD (put == ROWS)
#else
#define MAY_FORWARD true
#endif
#ifdef DEFECT_TAKEN /* a row that has come counts as taken */
#define TAKES(s, o) PASSED_ROWS(s, o)
#else
#define TAKES(s, o) STORED(s, o)
#endif
#define IS_MOVING (at == 2 || at == 3)
#define FORWARD(s, told) \
    :: d_step { FEEDS(s, r) && IS_MOVING && MAY_FORWARD && STORED(s, o) < PASSED_ROWS(s, o) -> \
        assert(ring ENTRY(s, o, STORED(s, o)) == ROW(o, STORED(s, o))); \
        put_row(r, s, o, STORED(s, o)); \
        STORED(s, o)++ } \
    :: d_step { FEEDS(s, r) && IS_MOVING && NEEDS(told) && told < TAKES(s, o) && nfull(TO_UPSTREAM(s)) -> \
        told = TAKES(s, o); \
        TO_UPSTREAM(s) ! TAKEN, o, told }

/*
 * A rank that has sent its own rows says so to its forwarder; to its local ranks once it has stored those of its
 * upstream ranks.
 */
#ifdef DEFECT_DONE /* to its local ranks, too */
#define MAY_TELL_LOCALS (at == 3)
#else
#define MAY_TELL_LOCALS (at == 3 && ALL_STORED(r, o))
#endif

proctype dispatch(byte r; byte o)
{
    byte at, put, told0, told1, told2;

    d_step { MAY_BEGIN(r, o) && HAS_ROOM(r) -> /* 2 */
        begun[r]++;
        record_of THERE(r, o) = EPOCH(o) + ARRIVING;
        TO_FORWARDER(r) ! RECORDED, o, 0;
        say_record(r, o);
        at = 1
    };
    do
    :: d_step { at == 1 && ALL(counts, r, o) -> /* 3 */
        assert(ALL(record_of, r, o));
        put_row(r, r, o, ROWS - 1); /* 4: to local ranks, and its own */
        at = 2 }
    :: d_step { at == 2 && MAY_PASS(r, o) -> /* 4: a row, and the word behind it */
        ring ENTRY(r, o, put) = ROW(o, put) + ARRIVING;
        put++;
        TO_FORWARDER(r) ! PASSED, o, put }
    FORWARD(0, told0)
    FORWARD(1, told1)
    FORWARD(2, told2)
    :: d_step { at == 2 && put == ROWS && HAS_ROOM(r) -> /* 5 */
        digest_of THERE(r, o) = EPOCH(o) + ARRIVING;
        TO_FORWARDER(r) ! DONE, o, 0;
        at = 3 }
    :: d_step { MAY_TELL_LOCALS -> /* 5 */
        say_done(r, o);
        at = 4 }
    :: d_step { at == 4 && ALL(done, r, o) && empty(TO_FORWARDER(r)) -> /* 6, and the flush */
        assert(ALL(digest_of, r, o));
        assert(ALL_ROWS(r, o));
        ended[r] = ended[r] | 1 << o;
        at = 0; put = 0; told0 = 0; told1 = 0; told2 = 0 };
        break
    od
}

#define ALL_OPS ((1 << OPS) - 1)

init {
    byte r, o;
    atomic {
        r = 0;
        do
        :: r < RANKS ->
            o = 0;
            do
            :: o < OPS && IS_HERE(r) -> run dispatch(r, o); o++
            :: else -> break
            od;
            r++
        :: else -> break
        od;
        r = 0;
        do
        :: r < 4 -> run deliver(r); r++
        :: else -> break
        od;
        r = 0; o = 0
    };
    timeout; /* nobody can do anything */
    assert(ended[0] == ALL_OPS && (!IS_HERE(1) || ended[1] == ALL_OPS) && ended[2] == ALL_OPS)
}
