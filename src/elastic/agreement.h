/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How ranks agree on who is gone, and on which words of these ranks count. Two things need it: a buffer, for each of
 * its operations (members.h), and a group that shrinks, for each group that its ranks try to make (group_shrink.h).
 * Here "operation" stands for either. The user says which words of a suspect it has, and how words get to the others.
 *
 * A rank that suspects another one says so in its ballot, with the operations for which the word of the suspect is
 * here, at this rank. From then on, and until the ranks have agreed, it ends no operation and begins none, so that what
 * it has said stays true. Where a rank has two words in an operation, one after the other, they are counted as if they
 * were of two operations, 2 * epoch and 2 * epoch + 1: all that is said here holds for each.
 *
 *  1. suspect: the rank writes what it has of the suspect, and publishes its ballot.
 *  2. adopt: it reads the ballots of all ranks that it does not suspect. It suspects whom they suspect, and words that
 *     they have count as its own. If its ballot has changed, it publishes it and starts over.
 *  3. decide: when all these ballots say the same as its own. Suspects are told that they are out, and their words are
 *     ignored from then on.
 *
 * A suspect takes part in an operation if some survivor has its word, else it does not. No rank leads, so no death is
 * special: the others suspect a rank that does not publish, and then need not hear from it.
 *
 * Who writes what: a ballot its rank alone, whole, in memory that all map or in control messages to all others
 * (group_ctl.h). Control messages have numbers, memory may be read while it is written: what is late or torn is not
 * looked at. So what a rank reads is what the other one has said at some time, not what it says now.
 *
 * Why that is enough, and why all decide alike: ballots only grow. When a rank has found all ballots to be the same,
 * each of these ranks has said so, and none reads the ballot of a suspect any more: nothing can be added for these
 * suspects any more. Later decisions say the same of them, and at most have more suspects. The order of suspicions and
 * of reading does not matter.
 *
 * A rank may die, stop, or be delayed
 *   before it publishes the others do not wait for its words: whatever it had counts as never received while it
 *   publishes some have its ballot, some have not; those that have it publish what it said in their
 *                                own, unless they suspect the rank before they read it
 *   between its words and step 3 the others have all it knew; it is one more suspect
 *   behind step 3                it may have acted on the decision: the others come to the same, with one more suspect
 * and a rank that was only slow reads in a ballot, or is told, that it is out, and ends no operation.
 *
 * test/model/model_mask.pml tries all of it for the operations of a buffer, model_shrink.pml for groups.
 */
#ifndef XEP_ELASTIC_AGREEMENT_H
#define XEP_ELASTIC_AGREEMENT_H

#include "ballot.h"

#include <xep/elastic.h>

/** How ranks tell one another; arg is the agreement's. No NULL slots. */
typedef struct xep_agreement_ops {
    /** Reads the ballot of rank into agreement->theirs; 0: there is none, it is being written, or it makes no sense. */
    int (*read)(void *arg, uint32_t rank);

    /** Makes agreement->said, the own ballot, known to all that it does not suspect. */
    void (*publish)(void *arg);

    /** Whether this rank may decide what all have said: of two ranks that leave each other out at most one goes on. */
    int (*may_decide)(const void *arg);

    /** It is decided that rank is out: tells it; from then on nothing that it sends changes anything here. */
    void (*tell_out)(void *arg, uint32_t rank);
} xep_agreement_ops_t;

typedef struct xep_agreement {
    const xep_agreement_ops_t *ops;
    /* adds a suspect to mine, with what is here of its words */
    void (*suspect)(void *arg, uint32_t rank, xep_out_reason_t reason);
    void *arg;
    uint32_t rank;
    xep_ballot_t mine, theirs;
    uint64_t *said, length; /* [capacity] the own ballot in words, as it was published last */
    uint64_t capacity;
    int is_full;        /* more suspects than there is room for: this rank cannot agree any more */
    int open;           /* somebody is suspected, and that is not agreed on */
    uint8_t *out;       /* [R] it is decided that the rank is out */
    uint32_t out_by;    /* a rank that suspects this one, plus 1; 0: none has said so */
    uint64_t *asked_ns; /* [R] since when it has said nothing new, and not the same as this rank; 0: it has */
    uint64_t said_ns;   /* when the own ballot changed last */
} xep_agreement_t;

/** most: of operations that can be missing; capacity: words of a ballot. 0: no memory. */
int xep_agreement_open(xep_agreement_t *agreement, uint32_t rank, uint32_t nranks, uint32_t most, uint64_t capacity);
void xep_agreement_close(xep_agreement_t *agreement);

/** Reads what others say, unless somebody suspects this rank. Whether the own ballot has changed. */
int xep_agreement_listen(xep_agreement_t *agreement);

/** The own ballot has changed: publishes it. */
void xep_agreement_publish(xep_agreement_t *agreement);

/** Where the own ballot has not changed: decides if it can be. Whether it has. */
int xep_agreement_decide(xep_agreement_t *agreement);

/** Whether this rank waits for a ballot of rank, and since when: not since it began to agree, it may know more now. */
static inline int xep_agreement_waits_for(const xep_agreement_t *agreement, uint32_t rank, uint64_t *since_p)
{
    *since_p = agreement->asked_ns[rank];
    return rank != agreement->rank && !xep_ballot_suspects(&agreement->mine, rank) && *since_p != 0;
}

#endif
