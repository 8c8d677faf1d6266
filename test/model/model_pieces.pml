/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches of mode normal in pieces (plugins/normal/normal_pieces.h), and the combine behind the last of them: OPS
 * dispatches into one slot, in each of which every rank sends to every rank in every piece; on mapped memory or, with
 * -DPUTS, by puts that arrive at some time before the word behind them; outputs are then what the slot holds, and the
 * wire reads them when it takes them. The record of a dispatch, or next piece,
 * opens the slot for its rows ("opened"), and says what the rank wants; its done says that they are here ("arrived").
 *
 *  1. The outputs of piece i - 1 go to their readers, who keep them; all have left when it goes on.
 *  2. A rank says that its slot is open for piece i, and with it what it wants; waits for no word before that.
 *  3. When all have said so, what they want is compared; a rank stores its rows at all, and tells each.
 *  4. When all have told it that, the piece is shown, and its consumer reads it.
 *  5. Combine: as 1, a word to each reader; a reader that has the words of all sums what it has kept.
 *
 * Words only grow: operation times pieces, plus the piece, plus 1.
 * -DDEFECT_OPEN: rows go out before all have opened.  -DDEFECT_EARLY: a receiver opens while its consumer reads.
 * -DDEFECT_LAZY: a receiver opens only after its own rows have left.  -DDEFECT_END: a piece ends before all have told.
 * -DDEFECT_KEEP: outputs of a piece go out while the reader has not begun this dispatch.
 * -DDEFECT_LEAVE: a slot is opened while outputs that lie there are still on their way to others.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef PIECES
#define PIECES 2
#endif
#ifndef OPS
#define OPS 2
#endif

#define AT(a, b) ((a) * RANKS + (b))

byte opened[RANKS * RANKS];  /* [source][receiver]: written by the receiver */
byte wants[RANKS * RANKS];   /* likewise, in the same line */
byte arrived[RANKS * RANKS]; /* [receiver][source]: written by the source */
byte ready[RANKS * RANKS];   /* [reader][owner]: written by the owner */
byte rows[RANKS * RANKS];    /* [receiver][source]: what lies in the slot */
byte kept[RANKS * RANKS];    /* [reader][owner]: the last output there; those of other pieces lie elsewhere */
byte rows_under_way[RANKS * RANKS]; /* a put to there */
byte leaving[RANKS * RANKS];        /* [owner][reader]: the wire has yet to take outputs of this piece */
byte ended;

/* A put may be seen before its word; at the word it is there. */
#ifdef PUTS
#define STORE_ROWS(to, value) rows_under_way[AT(to, me)] = 1; rows[AT(to, me)] = value; rows_under_way[AT(to, me)] = 0
#define STORE_OUTPUT(to, value) leaving[AT(me, to)] = value
#else
#define STORE_ROWS(to, value) rows[AT(to, me)] = value
#define STORE_OUTPUT(to, value) kept[AT(to, me)] = value
#endif
#define LEFT(to) leaving[AT(me, to)] == 0 /* a word to a rank goes behind what was put there */

#define EACH_WAIT(array, value) \
    i = 0; do :: i < RANKS -> array[AT(me, i)] >= value; i++ :: else -> break od; i = 0

inline tell_open(value)
{
    i = 0;
    do
    :: i < RANKS ->
        LEFT(i);
        wants[AT(i, me)] = value;
        opened[AT(i, me)] = value;
        i++
    :: else -> break
    od;
    i = 0
}

/* The rows of piece g are in the slot, and none of another one. */
inline check_rows()
{
    d_step {
        i = 0;
        do
        :: i < RANKS -> assert(rows[AT(me, i)] == g && !rows_under_way[AT(me, i)]); i++
        :: else -> break
        od;
        i = 0
    }
}

inline check_wants()
{
    d_step {
        i = 0;
        do
        :: i < RANKS -> assert(wants[AT(me, i)] == g); i++
        :: else -> break
        od;
        i = 0
    }
}

/* Outputs of all owners, of this dispatch; those of another one would have been written over them. */
inline check_kept()
{
    d_step {
        i = 0;
        do
        :: i < RANKS -> assert(kept[AT(me, i)] == g); i++
        :: else -> break
        od;
        i = 0
    }
}

inline return_outputs(value)
{
    i = 0;
    do
    :: i < RANKS -> STORE_OUTPUT(i, value); i++
    :: else -> break
    od;
    i = 0
}

inline flush_outputs()
{
    i = 0;
    do
    :: i < RANKS -> LEFT(i); i++
    :: else -> break
    od;
    i = 0
}

/* It takes what lies in the slot now. */
inline take_output(to)
{
    d_step {
        i = 0;
        do
        :: i < RANKS -> assert(rows[AT(me, i)] == leaving[AT(me, to)]); i++
        :: else -> break
        od;
        i = 0;
        kept[AT(to, me)] = leaving[AT(me, to)];
        leaving[AT(me, to)] = 0
    }
}

proctype wire(byte me)
{
    byte i;
    do
    :: leaving[AT(me, 0)] != 0 -> take_output(0)
    :: leaving[AT(me, 1)] != 0 -> take_output(1)
#if RANKS > 2
    :: leaving[AT(me, 2)] != 0 -> take_output(2)
#endif
    od
}

proctype rank(byte me)
{
    byte g = 1, i;
    do
    :: g <= OPS * PIECES ->
#ifdef DEFECT_KEEP
        if
        :: (g - 1) % PIECES == 0 && g > 1 -> return_outputs(g)
        :: else
        fi;
#endif
        if
        :: (g - 1) % PIECES != 0 ->
            return_outputs(g - 1);
#ifndef DEFECT_LEAVE
            flush_outputs()
#endif
        :: else
        fi;
#ifndef DEFECT_LAZY
        tell_open(g);
#endif
#ifndef DEFECT_OPEN
#ifndef DEFECT_LAZY
        EACH_WAIT(opened, g);
        check_wants();
#else
        EACH_WAIT(opened, g - 1);
#endif
#endif
        i = 0;
        do
        :: i < RANKS ->
#ifdef DEFECT_LAZY
            opened[AT(me, i)] >= g;
#endif
            STORE_ROWS(i, g);
            arrived[AT(i, me)] = g;
            i++
        :: else -> break
        od;
        i = 0;
#ifdef DEFECT_LAZY
        tell_open(g);
#endif
#ifdef DEFECT_END
        arrived[AT(me, (me + 1) % RANKS)] >= g;
#else
        EACH_WAIT(arrived, g);
        check_rows();
#endif
#ifdef DEFECT_EARLY
        tell_open(g + 1);
#endif
#ifndef DEFECT_END
        check_rows(); /* the consumer reads for a while */
#endif
        if
        :: g % PIECES == 0 ->
            return_outputs(g);
            i = 0;
            do
            :: i < RANKS -> LEFT(i); ready[AT(i, me)] = g; i++
            :: else -> break
            od;
            EACH_WAIT(ready, g);
            check_kept();
            check_kept();
            flush_outputs()
        :: else
        fi;
        g++
    :: else -> break
    od;
    ended++
}

/* Nobody waits for ever. */
proctype monitor()
{
    timeout -> assert(ended == RANKS)
}

init
{
    atomic {
        byte r = 0;
        do
        :: r < RANKS -> run rank(r); run wire(r); r++
        :: else -> break
        od;
        run monitor()
    }
}
