/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How the ranks of a group tell one another what they wait for, when a wait of one of them has ended in vain: over the
 * control heap, and not before that.
 *
 * Each rank has at every other rank a word and two places for an account, which it alone writes:
 *  1. A rank whose wait has reached its deadline puts its account to all others, with the next number as its word. It
 *     is a question.
 *  2. A rank that waits looks at these words every few milliseconds. To a question it answers with its own account, to
 *     the rank that has asked alone. So ranks whose deadlines are later have their say, and those that are in another
 *     call.
 *  3. The rank that has asked waits a little while for the answers. The lowest of those that ask about the same call
 *     says what they come to; the others leave as soon as its question is there.
 *
 * Account n is in place n % 2. Whoever reads it looks at the word before and after: n + 2 is written only after n + 1
 * was announced.
 *
 * It never changes what becomes of a call: an account that is lost, late or nonsense is missing from a sentence.
 */
#ifndef XEP_GROUP_ACCOUNT_H
#define XEP_GROUP_ACCOUNT_H

#include "account.h"
#include "group.h"

/** Numbers of accounts between this rank and another one. */
typedef struct xep_account_numbers {
    uint64_t told;  /* accounts that this rank has put there */
    uint64_t heard; /* the last number of theirs that was looked at for a question */
    uint64_t asked; /* number of this rank's last question to it */
} xep_account_numbers_t;

/** Of one group; the arrays are under the lock. */
struct xep_group_accounts {
    pthread_mutex_t lock;
    uint64_t offset;                /* of the places in the control heap */
    xep_account_numbers_t *numbers; /* [nranks] */
    xep_account_of_t *theirs;       /* [nranks] that were gathered */
};

/** The bytes of it in the control heap; they begin at offset there. */
uint64_t xep_group_accounts_bytes(uint32_t nranks);
xep_status_t xep_group_accounts_open(xep_group_t *group, uint64_t offset);
void xep_group_accounts_close(xep_group_t *group);

/** Writes down a wait. */
typedef void (*xep_account_fn)(void *arg, xep_account_t *account);

/** Answers who has asked since the last time. Any thread that waits; costs a load for each rank. */
void xep_group_answer(xep_group_t *group, xep_account_fn fill, void *arg);

/** Tells all what this rank has waited for in vain; does not wait. */
void xep_group_tell(xep_group_t *group, const xep_account_t *account);

/* ---- for group_account_ask.c, with the lock held ---- */

/** Whether it can be asked: another rank that is not out. */
static inline int xep_group_account_is_asked(const xep_group_t *group, uint32_t rank)
{
    return rank != group->rank && !xep_group_is_out(group, rank);
}

/** Puts a question to all. */
void xep_group_account_put_all(xep_group_t *group, const xep_account_t *account);

/** The last account of a rank, and its number; 0: there is none, or not now. */
int xep_group_account_get(const xep_group_t *group, uint32_t rank, xep_account_t *account, uint64_t *number_p);

/* ---- group_account_ask.c ---- */

/* What a rank does whose wait has ended in vain: it asks the others, and says what all accounts come to. */

/**
 * Tells all, waits for their accounts for a twentieth of timeout_ms (20 ms to 1 s) at most, and logs what they come to.
 * Returns status; the reason of this thread's last error stays as it is.
 */
xep_status_t xep_group_ask(xep_group_t *group, const xep_account_t *account, int32_t timeout_ms, xep_status_t status);

#endif
