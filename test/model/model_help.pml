/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatches of ll in which a source copies a share of its rows ("help" in plugins/ll/ll.h): the receiver of them all,
 * and their source, which gets none. One slot, and the ring of 2 turns.
 *
 * One step of a rank is what it does up to one word that others see: a chunk is taken, copied and told in three steps.
 * The source may go away between any two chunks, and need not come at all.
 *
 * Sizes, by -D: OPS dispatches of CHUNKS each. DEFECT_*: a deliberate defect; protocols.sh has the list.
 */
#ifndef OPS
#define OPS 4
#endif
#ifndef CHUNKS
#define CHUNKS 3
#endif

#define RING 2
#define ENTRY(o) ((o) % RING)
#define EPOCH(o) ((o) + 1)
#define RECEIVER 0
#define SOURCE 1

/* what one rank has told the other: the epoch of its last notice */
byte noticed[2];
byte ended[2]; /* dispatches */

/* in the heap of the receiver, for the source */
byte taken_epoch[RING], front[RING], back[RING], copied_epoch[RING], copied[RING];
byte x[CHUNKS]; /* of its slot: the epoch of the rows that lie there */

/* A word of an older epoch counts as none. */
inline renew(o)
{
#ifndef DEFECT_OLD_WORD
    if
    :: taken_epoch[ENTRY(o)] != EPOCH(o) -> front[ENTRY(o)] = 0; back[ENTRY(o)] = 0; taken_epoch[ENTRY(o)] = EPOCH(o)
    :: else
    fi
#else
    skip
#endif
}

/* Into the slot of a dispatch that has begun there, and has not ended. */
inline copy(o, chunk)
{
    assert(ended[RECEIVER] == o && noticed[RECEIVER] >= EPOCH(o));
    assert(x[chunk] != EPOCH(o)); /* once */
    x[chunk] = EPOCH(o)
}

active proctype receiver()
{
    byte o, c, helped;
    do
    :: o == OPS -> break
    :: else ->
        noticed[RECEIVER] = EPOCH(o); /* the slot is this dispatch's from here on */
        noticed[SOURCE] >= EPOCH(o);
        do
        :: atomic {
            renew(o);
            if
            :: front[ENTRY(o)] + back[ENTRY(o)] < CHUNKS -> c = front[ENTRY(o)]; front[ENTRY(o)]++
            :: else -> helped = CHUNKS - front[ENTRY(o)]; break
            fi }
            copy(o, c)
        od;
#ifndef DEFECT_NO_WAIT
        helped == 0 || (copied_epoch[ENTRY(o)] == EPOCH(o) && copied[ENTRY(o)] >= helped);
#endif
        atomic {
            for (c : 0 .. CHUNKS - 1) { assert(x[c] == EPOCH(o)) } /* what the user is shown */
            ended[RECEIVER]++; o++; c = 0; helped = 0
        }
    od
}

active proctype source()
{
    byte o, c, did;
    do
    :: o == OPS -> break
    :: else ->
        noticed[SOURCE] = EPOCH(o); /* its parcel is there */
        noticed[RECEIVER] >= EPOCH(o);
        do
        :: break /* it has something else to do */
        :: atomic {
            renew(o);
            front[ENTRY(o)] + back[ENTRY(o)] < CHUNKS -> c = CHUNKS - 1 - back[ENTRY(o)];
#ifdef DEFECT_SPLIT
            skip }
            atomic {
#endif
            back[ENTRY(o)]++ }
#ifdef DEFECT_EARLY
            did++;
            d_step { copied[ENTRY(o)] = did; copied_epoch[ENTRY(o)] = EPOCH(o) }
            copy(o, c)
#else
            copy(o, c);
            did++;
            d_step { copied[ENTRY(o)] = did; copied_epoch[ENTRY(o)] = EPOCH(o) }
#endif
        od;
        atomic { ended[SOURCE]++; o++; c = 0; did = 0 }
    od
}

/* All end: nobody waits for a word that does not come. */
active proctype monitor()
{
    timeout -> assert(ended[RECEIVER] == OPS && ended[SOURCE] == OPS)
}
