/* SPDX-License-Identifier: BSD-3-Clause */

/* Several threads may wait on one group and fail at once: one at a time asks, answers or reports. */
#include "group_account.h"

#include <stdlib.h>

#include "error.h"

/** A control message, XEP_CTL_ACCOUNT. */
typedef struct told {
    uint64_t sequence; /* xep_ctl_keep_last() */
    xep_account_t account;
} told_t;
static_assert(sizeof(told_t) == 136, "wire format");

xep_status_t xep_group_accounts_open(xep_group_t *group)
{
    uint32_t n = group->nranks;
    xep_group_accounts_t *accounts = group->accounts = calloc(1, sizeof *accounts);
    if (accounts == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the accounts of a group");
    pthread_mutex_init(&accounts->lock, NULL);
    accounts->last = calloc(n, sizeof *accounts->last);
    accounts->theirs = calloc(n, sizeof *accounts->theirs);
    if (accounts->last != NULL && accounts->theirs != NULL) return XEP_OK;
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the accounts of %u ranks", n);
}

/* Also closes accounts that were opened in part: what is missing is NULL. */
void xep_group_accounts_close(xep_group_t *group)
{
    xep_group_accounts_t *accounts = group->accounts;
    if (accounts == NULL) return;
    for (uint32_t r = 0; accounts->last != NULL && r < group->nranks; r++) free(accounts->last[r]);
    free(accounts->last);
    free(accounts->theirs);
    pthread_mutex_destroy(&accounts->lock);
    free(accounts);
    group->accounts = NULL;
}

static told_t *told_by(const xep_msg_t *msg)
{
    return (told_t *)(void *)msg->data;
}

const xep_account_t *xep_group_account_of(const xep_group_t *group, uint32_t rank)
{
    const xep_msg_t *last = group->accounts->last[rank];
    return last == NULL ? NULL : &told_by(last)->account;
}

/* An account that cannot be sent now is not sent: no rank waits for it. */
static void tell(xep_group_t *group, uint32_t rank, const told_t *told)
{
    (void)xep_ctl_send(group, rank, XEP_CTL_ACCOUNT, 0, told, sizeof *told);
}

/* A rank that is in no call does not answer, which says the same. */
static void answer(xep_group_t *group, uint32_t rank, uint64_t question, xep_account_fn fill, void *arg)
{
    told_t mine = {.account = {.kind = XEP_WAITS_NOWHERE}};
    fill(arg, &mine.account);
    mine.account.answers = question;
    if (mine.account.kind == XEP_WAITS_NOWHERE) return;
    mine.sequence = ++group->accounts->told;
    tell(group, rank, &mine);
}

/* Answers are not answered. */
void xep_group_account_take(xep_group_t *group, xep_account_fn fill, void *arg)
{
    xep_msg_t *msg = xep_ctl_take(group, XEP_CTL_ACCOUNT, 0), *next;
    for (; msg != NULL; msg = next) {
        const uint32_t from = msg->from;
        next = msg->next;
        if (msg->bytes != sizeof(told_t) || !xep_group_account_is_asked(group, from) ||
            !xep_account_check(&told_by(msg)->account, group->nranks)) {
            free(msg);
            continue;
        }
        if (!xep_ctl_keep_last(&group->accounts->last[from], msg) || fill == NULL) continue;
        const told_t *last = told_by(group->accounts->last[from]);
        if (last->account.answers == 0) answer(group, from, last->sequence, fill, arg);
    }
}

/* trylock: another thread of this rank that holds it does all the work. */
void xep_group_answer(xep_group_t *group, xep_account_fn fill, void *arg)
{
    if (group->accounts == NULL || pthread_mutex_trylock(&group->accounts->lock) != 0) return;
    xep_group_account_take(group, fill, arg);
    pthread_mutex_unlock(&group->accounts->lock);
}

/* asked: the number by which an answer will say what it answers. */
void xep_group_account_put_all(xep_group_t *group, const xep_account_t *account)
{
    const told_t question = {.sequence = ++group->accounts->told, .account = *account};
    group->accounts->asked = question.sequence;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (xep_group_account_is_asked(group, r)) tell(group, r, &question);
}

void xep_group_tell(xep_group_t *group, const xep_account_t *account)
{
    if (group->accounts == NULL || account->kind == XEP_WAITS_NOWHERE) return;
    pthread_mutex_lock(&group->accounts->lock);
    xep_group_account_put_all(group, account);
    pthread_mutex_unlock(&group->accounts->lock);
}
