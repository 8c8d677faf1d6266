/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches of ll whose receive rings hold less than what comes (plugins/ll/ll_flow.h): a source, a forwarder on
 * another node, and that one's local rank, which reads what the forwarder has got. The ring of 2 * SLOTS turns, with
 * one slot.
 *
 * One step of a rank is what it does up to one word that others see. A row is in the receive ring when it is sent, as
 * early as that can be; words over the wire arrive in order, at any time, and the wire takes no more than FEW.
 *
 * Sizes, by -D: OPS dispatches, ROWS of each, of which a receive ring holds ROOM.
 * Choices: ALONE, without the local rank: the flat path; BAD, a dispatch whose verdict is an error; DEFECT_*, a
 * deliberate defect: protocols.sh has the list.
 */
#ifndef OPS
#define OPS 4
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef ROOM
#define ROOM 2
#endif
#ifndef BAD
#define BAD 255 /* none */
#endif
#ifdef DEFECT_RING
#define RING 1
#else
#define RING 2
#endif

#define FEW 3
#define ENTRY(o) ((o) % RING)
#define EPOCH(o) ((o) + 1)
#define ROW(o, p) ((o) * ROWS + (p) + 1)
#define ITEM(o, p) [ENTRY(o) * ROOM + (p) % ROOM]
#define WORD(o, rows) (EPOCH(o) * 16 + (rows))
#define ROWS_OF(word, o) ((word) / 16 == EPOCH(o) -> (word) % 16 : 0)
#ifdef ALONE
#define RANKS 2
#else
#define RANKS 3
#endif
#define SOURCE 0
#define FORWARDER 1
#define LOCAL 2

chan to_forwarder = [FEW] of { byte, byte }; /* operation; word of its notice */
chan to_source = [FEW] of { byte, byte, byte };    /* 0: a notice of the forwarder, 1: taken */
chan of_local_rank = [FEW] of { byte };                  /* its notices, to the source */

byte recv_ring[RING * ROOM];                               /* at the forwarder */
byte came[RING]; /* the word of the source, at the forwarder */
/* notices at the source, of the forwarder and of the local rank */
byte theirs[2 * RING];
byte taken[RING];                                      /* at the source */
byte locals_taken[RING];                                /* at the forwarder */
byte ended[RANKS];
#define AT(r, o) [((r) - 1) * RING + ENTRY(o)]

/* The wire delivers. */
active proctype wire()
{
    byte kind, o, word;
    do
    :: atomic { to_forwarder?o, word -> came[ENTRY(o)] = word; o = 0; word = 0 }
    :: atomic {
        to_source?kind, o, word ->
        if
        :: kind == 0 -> theirs AT(FORWARDER, o) = word
        :: else -> taken[ENTRY(o)] = word
        fi; kind = 0; o = 0; word = 0 }
    :: atomic { of_local_rank?o -> theirs AT(LOCAL, o) = EPOCH(o); o = 0 }
    od
}

#ifdef ALONE
#define ALL_TOLD(o) (theirs AT(FORWARDER, o) >= EPOCH(o))
#else
#define ALL_TOLD(o) (theirs AT(FORWARDER, o) >= EPOCH(o) && theirs AT(LOCAL, o) >= EPOCH(o))
#endif
#ifdef DEFECT_ROOM
#define HAS_ROOM(o, p) ((p) < ROOM + 1 || ROWS_OF(taken[ENTRY(o)], o) + ROOM + 1 > (p))
#elif defined(DEFECT_EPOCH)
#define HAS_ROOM(o, p) ((p) < ROOM || taken[ENTRY(o)] % 16 + ROOM > (p))
#else
#define HAS_ROOM(o, p) ((p) < ROOM || ROWS_OF(taken[ENTRY(o)], o) + ROOM > (p))
#endif

/* What has room goes at once; the rest when all have told, which the verdict is of. */
active proctype source()
{
    byte o, p;
    do
    :: o < OPS ->
        to_forwarder!o, WORD(o, 0);
        p = 0;
        do
        :: p == ROWS -> break
        :: p >= ROOM && o == BAD -> break
        :: atomic {
            p < ROWS && !(p >= ROOM && o == BAD) && HAS_ROOM(o, p) && (p < ROOM || ALL_TOLD(o)) &&
            nfull(to_forwarder) ->
            recv_ring ITEM(o, p) = ROW(o, p);
            p++;
            to_forwarder!o, WORD(o, p) }
        od;
#ifndef DEFECT_VERDICT
        if
        :: p < ROWS -> to_forwarder!o, WORD(o, ROWS)
        :: else
        fi;
#endif
        atomic { ALL_TOLD(o) -> o++; p = 0; ended[SOURCE] = o }
    :: else -> break
    od
}

/* A row from its item to its place. */
inline copy(o, p)
{
    assert(recv_ring ITEM(o, p) == ROW(o, p));
    p++
}

#ifdef ALONE
#define TAKEN(o, p) (p)
#elif defined(DEFECT_LOCAL)
#define TAKEN(o, p) (p)
#else
#define TAKEN(o, p) (ROWS_OF(locals_taken[ENTRY(o)], o) < (p) -> ROWS_OF(locals_taken[ENTRY(o)], o) : (p))
#endif
#ifdef DEFECT_TAKEN
#define SAYS(o, p) (ROWS_OF(came[ENTRY(o)], o) < ROWS -> ROWS_OF(came[ENTRY(o)], o) : TAKEN(o, p))
#else
#define SAYS(o, p) TAKEN(o, p)
#endif

#define HAS_ALL(o, p) (ROWS_OF(came[ENTRY(o)], o) == ROWS && ((p) == ROWS || (o) == BAD))

active proctype forwarder()
{
    byte o, p, told;
    do
    :: o < OPS ->
        to_source!0, o, EPOCH(o);
        came[ENTRY(o)] >= WORD(o, 0);
        do
        :: atomic { o != BAD && p < ROWS_OF(came[ENTRY(o)], o) -> copy(o, p) }
        :: atomic {
            o != BAD && SAYS(o, p) > told && SAYS(o, p) < ROWS && nfull(to_source) ->
            told = SAYS(o, p);
            to_source!1, o, WORD(o, told) }
        :: atomic { HAS_ALL(o, p) -> break }
        od;
        atomic { o++; p = 0; told = 0; ended[FORWARDER] = o }
    :: else -> break
    od
}

#ifndef ALONE
active proctype local_rank()
{
    byte o, p;
    do
    :: o < OPS ->
        of_local_rank!o;
        came[ENTRY(o)] >= WORD(o, 0);
        do
        :: atomic { o != BAD && p < ROWS_OF(came[ENTRY(o)], o) -> copy(o, p) }
        :: atomic { o != BAD && p > ROWS_OF(locals_taken[ENTRY(o)], o) -> locals_taken[ENTRY(o)] = WORD(o, p) }
        :: atomic { HAS_ALL(o, p) -> break }
        od;
        atomic { o++; p = 0; ended[LOCAL] = o }
    :: else -> break
    od
}
#endif

/* Nobody waits for ever. */
active proctype monitor()
{
    timeout ->
    assert(ended[SOURCE] == OPS && ended[FORWARDER] == OPS && ended[RANKS - 1] == OPS)
}
