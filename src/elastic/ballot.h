/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A rank's ballot: what it has of the ranks it suspects, and of operations that failed on all. agreement.h says how it
 * is used.
 *
 * Where others read it, it is words: sum, suspects, adopted decisions, forgotten; each adopted decision as epoch,
 * status, refused; each suspect as rank, reason, top, count and the epochs. Its rank alone writes them, into memory or
 * messages, and may be doing so while they are read: the sum tells words that are torn, and all else is checked.
 */
#ifndef XEP_ELASTIC_BALLOT_H
#define XEP_ELASTIC_BALLOT_H

#include <stdint.h>

#include <xep/elastic.h>
#include <xep/xep.h>

/** The operations for which the word of a suspect is somewhere: those up to top, but for some. */
typedef struct xep_suspect {
    uint64_t reason;   /* xep_out_reason_t; 0: it is not suspected */
    uint64_t gone;     /* 1: it is known to be dead, or some rank has decided that it is out; never 0 again */
    uint64_t top;      /* the word of no later operation counts */
    uint64_t count;    /* operations up to top whose word is missing */
    uint64_t *missing; /* [most] their epochs, ascending */
} xep_suspect_t;

/** How an operation has ended that failed on all ranks: XEP_ERR_MISMATCH, XEP_ERR_OVERFLOW, XEP_ERR_INVALID. */
typedef struct xep_decision {
    uint64_t epoch;
    xep_status_t status;
    uint32_t refused; /* as in xep_op_t */
} xep_decision_t;

/** The last ones. */
typedef struct xep_decisions {
    xep_decision_t *list; /* [most] in any order */
    uint32_t count, most;
    uint64_t forgotten; /* operations up to here may have had one that is not in the list */
} xep_decisions_t;

typedef struct xep_ballot {
    uint32_t nranks, most;   /* of all ranks; of what each can miss, and of adopted decisions */
    xep_suspect_t *suspects; /* [nranks] */
    uint64_t *epochs;        /* what they point to */
    xep_decisions_t decisions;
} xep_ballot_t;

/** 0: no memory. */
int xep_ballot_open(xep_ballot_t *ballot, uint32_t nranks, uint32_t most);
void xep_ballot_close(xep_ballot_t *ballot);

static inline int xep_ballot_suspects(const xep_ballot_t *ballot, uint32_t rank)
{
    return ballot->suspects[rank].reason != 0;
}

/** How many ranks it suspects. */
uint32_t xep_ballot_count(const xep_ballot_t *ballot);

/** Adds a new suspect: its word is here for all operations up to top, except those missing, in any order. */
void xep_ballot_suspect(xep_ballot_t *ballot, uint32_t rank, xep_out_reason_t reason, uint64_t top,
                        const uint64_t *missing, uint32_t count);

/** Marks a suspect as gone; returns whether that is new. */
int xep_ballot_set_gone(xep_ballot_t *ballot, uint32_t rank);

/**
 * What theirs has of ranks that both suspect counts here, too, and its adopted decisions. Whether that has changed what
 * this one says of its suspects.
 */
int xep_ballot_adopt(xep_ballot_t *ballot, const xep_ballot_t *theirs);

/** Whether both suspect the same ranks and have the same of them. */
int xep_ballot_is_same(const xep_ballot_t *a, const xep_ballot_t *b);

/** Whether the suspect takes part in the operation. */
int xep_ballot_is_with(const xep_ballot_t *ballot, uint32_t rank, uint64_t epoch);

/** Whether operations that end with status have an adopted decision. */
int xep_decision_is_due(xep_status_t status);

/** NULL: there is none. */
const xep_decision_t *xep_decisions_find(const xep_decisions_t *decisions, uint64_t epoch);

/** Where the list is full the oldest one is forgotten. */
void xep_decisions_add(xep_decisions_t *decisions, xep_decision_t decision);

/** Most words. */
uint64_t xep_ballot_words(uint32_t nranks, uint32_t most);

/** As words. Returns how many; 0: there is no room for so many suspects. */
uint64_t xep_ballot_write(const xep_ballot_t *ballot, uint64_t *words, uint64_t capacity);

/** Words that another process wrote. 0: they are torn, or make no sense; then the ballot is not to be used. */
int xep_ballot_read(xep_ballot_t *ballot, const uint64_t *words, uint64_t count);

#endif
