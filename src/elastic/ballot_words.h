/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A ballot as words in a message: of suspects alone, with what has become of operations that failed on all ranks. That
 * is needed by whoever does not get a word of a rank that is gone, from which others have concluded (members_wire.c).
 */
#ifndef XEP_ELASTIC_BALLOT_WORDS_H
#define XEP_ELASTIC_BALLOT_WORDS_H

#include <xep/status.h>

#include "ballot.h"

enum { XEP_BALLOT_MOST_SUSPECTS = 64 }; /* of a ballot in words */

/** How an operation has ended that failed on all ranks: XEP_ERR_MISMATCH, XEP_ERR_OVERFLOW, XEP_ERR_INVALID. */
typedef struct xep_ruling {
    uint64_t epoch;
    xep_status_t status;
    uint32_t refused; /* as in xep_op_t */
} xep_ruling_t;

/** The last ones. */
typedef struct xep_rulings {
    xep_ruling_t *list; /* [most] in any order */
    uint32_t count, most;
    uint64_t forgotten; /* operations up to here may have had one that is not in the list */
} xep_rulings_t;

/** Whether operations that end with status have a ruling. */
int xep_ruling_is_due(xep_status_t status);

/** NULL: there is none. */
const xep_ruling_t *xep_rulings_find(const xep_rulings_t *rulings, uint64_t epoch);

/** Where the list is full the oldest one is forgotten. */
void xep_rulings_add(xep_rulings_t *rulings, xep_ruling_t ruling);

/** Most words. */
uint64_t xep_ballot_words(uint32_t nranks, uint32_t most);

/** Returns how many words; 0: there are too many suspects. */
uint64_t xep_ballot_write_words(const xep_ballot_t *ballot, const xep_rulings_t *rulings, uint64_t *words);

/**
 * The other way round, of words that another process wrote, and rulings are added to what is there. 0: they are torn,
 * or make no sense; then the ballot is not to be used.
 */
int xep_ballot_take_words(xep_ballot_t *ballot, xep_rulings_t *rulings, const uint64_t *words, uint64_t count);

#endif
