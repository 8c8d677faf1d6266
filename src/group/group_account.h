/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How the ranks of a group tell one another what they wait for, when a wait of one of them has ended in vain: by
 * control message, and not before that.
 *
 *  1. A rank whose wait has reached its deadline sends its account to all others. It is a question.
 *  2. A rank that waits looks for such messages every few milliseconds. It answers a question with its own account, to
 *     the rank that has asked alone. So ranks whose deadlines are later have their say, and those that are in another
 *     call.
 *  3. The rank that has asked waits a little while for the answers. The lowest of those that ask about the same call
 *     says what they come to; the others leave as soon as its question is there.
 *
 * It never changes what becomes of a call: an account that is lost, late or nonsense is missing from a sentence.
 */
#ifndef XEP_GROUP_ACCOUNT_H
#define XEP_GROUP_ACCOUNT_H

#include "account.h"
#include "group_ctl.h"

/** Of one group. */
struct xep_group_accounts {
    pthread_mutex_t lock;     /* of all below */
    uint64_t told, asked;     /* numbers of this rank's last account, and of its last question */
    xep_msg_t **last;         /* [nranks] the last account of each rank that has come; NULL: none */
    xep_account_of_t *theirs; /* [nranks] that were gathered */
};

xep_status_t xep_group_accounts_open(xep_group_t *group);
void xep_group_accounts_close(xep_group_t *group);

/** Writes down a wait. */
typedef void (*xep_account_fn)(void *arg, xep_account_t *account);

/** Answers who has asked since the last time. Any thread that waits. */
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

/** Takes what has come; answers questions unless fill is NULL. */
void xep_group_account_take(xep_group_t *group, xep_account_fn fill, void *arg);

/** The last account of a rank; NULL: there is none. */
const xep_account_t *xep_group_account_of(const xep_group_t *group, uint32_t rank);

/* ---- group_account_ask.c ---- */

/* What a rank does whose wait has ended in vain: it asks the others, and says what all accounts come to. */

/**
 * Tells all, waits for their accounts for a twentieth of timeout_ms (20 ms to 1 s) at most, and logs what they come to.
 * Returns status; the reason of this thread's last error stays as it is.
 */
xep_status_t xep_group_ask(xep_group_t *group, const xep_account_t *account, int32_t timeout_ms, xep_status_t status);

#endif
