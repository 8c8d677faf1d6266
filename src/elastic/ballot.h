/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Ballots: by what each rank says of the ranks it suspects, all survivors come to the same members of every operation.
 *
 * A rank that suspects another one says so in its ballot, with a tally: for which operations the word of the suspect is
 * here, at this rank. From then on, and until the ranks have agreed, it ends no operation and begins none, so that what
 * it has said stays true. Where a rank has two words in an operation, one after the other, they are counted as if they
 * were of two operations, 2 * epoch and 2 * epoch + 1: all that is said here holds for each.
 *
 *  1. suspect: the rank writes the tally of what it has, and publishes its ballot.
 *  2. adopt:   it reads the ballots of all that it does not suspect. Whom they suspect it suspects too; what they have
 *              counts as if it had it. If its ballot has changed it publishes it, and begins anew.
 *  3. decide:  when all these ballots say the same as its own.
 *
 * An operation is with a suspect if some survivor has its word: whoever lacks it takes it from there. It is without it
 * if none has. Nobody leads, so nobody's death is special: a rank that does not publish is suspected by the others,
 * which then need not hear from it.
 *
 * Why all decide alike: ballots only grow. When a rank has found all ballots to be the same, each of these ranks has
 * said so, and none reads the ballot of a suspect any more: there is nothing left that could add to these tallies. What
 * is decided later is decided with the same tallies for these suspects, and with more suspects at most. Who suspects
 * whom, in which order, and who reads whom first, does not matter. test/model/model_mask.pml tries all of it.
 *
 * Shared: the owner writes, all read. A version that is odd, or another one after the reading, means: read again.
 */
#ifndef XEP_ELASTIC_BALLOT_H
#define XEP_ELASTIC_BALLOT_H

#include <stdint.h>

/** Why a rank is suspected; 0: it is not. */
typedef enum xep_doubt { XEP_TRUSTED = 0, XEP_DOUBT_DIED = 1, XEP_DOUBT_LATE = 2, XEP_DOUBT_ASKED = 3 } xep_doubt_t;

/** What is known of the words of a suspect. An array of these is private; shared, all is words of 64 bits. */
typedef struct xep_tally {
    uint64_t doubt;    /* xep_doubt_t */
    uint64_t gone;     /* 1: it is known to be dead, or some rank has decided that it is out; never 0 again */
    uint64_t top;      /* the word of no later operation counts */
    uint64_t count;    /* operations up to top whose word is missing */
    uint64_t *missing; /* [most] their epochs, ascending */
} xep_tally_t;

typedef struct xep_ballot {
    uint32_t nranks, most; /* of tallies; of what each can miss */
    xep_tally_t *tallies;  /* [nranks] */
    uint64_t *epochs;      /* what they point to */
} xep_ballot_t;

/** 0: no memory. */
int xep_ballot_open(xep_ballot_t *ballot, uint32_t nranks, uint32_t most);
void xep_ballot_close(xep_ballot_t *ballot);

/** Bytes of a ballot where others read it. */
uint64_t xep_ballot_bytes(uint32_t nranks, uint32_t most);

static inline int xep_ballot_suspects(const xep_ballot_t *ballot, uint32_t rank)
{
    return ballot->tallies[rank].doubt != XEP_TRUSTED;
}

/** Adds a suspect that was none: of the operations up to top its word is here but for those missing, in any order. */
void xep_ballot_suspect(xep_ballot_t *ballot, uint32_t rank, xep_doubt_t doubt, uint64_t top, const uint64_t *missing,
                        uint32_t count);

/** It is gone, too. Whether that is new. */
int xep_ballot_set_gone(xep_ballot_t *ballot, uint32_t rank);

/** The tallies of theirs count here too, for ranks that both suspect. Returns whether that has changed anything. */
int xep_ballot_adopt(xep_ballot_t *ballot, const xep_ballot_t *theirs);

/** Whether both suspect the same ranks and have the same of them. */
int xep_ballot_is_same(const xep_ballot_t *a, const xep_ballot_t *b);

/** Whether the operation is with the suspect. */
int xep_ballot_is_with(const xep_ballot_t *ballot, uint32_t rank, uint64_t epoch);

/** Doubt and gone as one word, as others read it; the other way round, 0: what another process wrote makes no sense. */
uint64_t xep_tally_doubt_word(const xep_tally_t *tally);
int xep_tally_take_doubt(xep_tally_t *tally, uint64_t word);

/** Copies the own ballot to where others read it; copies one of theirs: 0 if it is being written, or makes no sense. */
void xep_ballot_publish(const xep_ballot_t *ballot, void *shared);
int xep_ballot_read(xep_ballot_t *ballot, const void *shared);

#endif
