/* SPDX-License-Identifier: BSD-3-Clause */

/* Several threads may wait on one group and fail at once: one at a time asks, answers or reports. */
#include "group_account.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

enum { ENTRIES = 2 };

/** Written by one rank, at every rank. */
typedef struct sheet {
    _Atomic uint64_t number; /* of its last account here, from 1 */
    uint64_t pad[7];
    xep_account_t accounts[ENTRIES];
} sheet_t;
static_assert(sizeof(sheet_t) == 64 + ENTRIES * 128, "wire format");

uint64_t xep_group_accounts_bytes(uint32_t nranks)
{
    return nranks * (uint64_t)sizeof(sheet_t);
}

xep_status_t xep_group_accounts_open(xep_group_t *group, uint64_t offset)
{
    uint32_t n = group->nranks;
    xep_group_accounts_t *accounts = group->accounts = calloc(1, sizeof *accounts);
    if (accounts == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the accounts of a group");
    pthread_mutex_init(&accounts->lock, NULL);
    accounts->offset = offset;
    accounts->numbers = calloc(n, sizeof *accounts->numbers);
    accounts->theirs = calloc(n, sizeof *accounts->theirs);
    if (accounts->numbers != NULL && accounts->theirs != NULL) return XEP_OK;
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the accounts of %u ranks", n);
}

/* Also closes accounts that were opened in part: what is missing is NULL. */
void xep_group_accounts_close(xep_group_t *group)
{
    xep_group_accounts_t *accounts = group->accounts;
    if (accounts == NULL) return;
    free(accounts->theirs);
    free(accounts->numbers);
    pthread_mutex_destroy(&accounts->lock);
    free(accounts);
    group->accounts = NULL;
}

static uint64_t sheet_offset(const xep_group_t *group, uint32_t rank)
{
    return group->accounts->offset + rank * sizeof(sheet_t);
}

static sheet_t *sheet_of(const xep_group_t *group, uint32_t rank)
{
    return (sheet_t *)(void *)((char *)group->control->base + sheet_offset(group, rank));
}

/*
 * An account that cannot be sent now is not sent: no rank waits for it. It is sent from this rank's own sheet; if it is
 * overwritten before it has left, a newer account of this rank arrives.
 */
static void put(xep_group_t *group, uint32_t rank, const xep_account_t *account)
{
    uint64_t number = ++group->accounts->numbers[rank].told, own = sheet_offset(group, group->rank);
    sheet_t *from = sheet_of(group, group->rank);
    size_t at = offsetof(sheet_t, accounts) + number % ENTRIES * sizeof *account;
    from->accounts[number % ENTRIES] = *account;
    /* mapped ranks: the entry is not written before the last number is there, or its reader would not see the change */
    atomic_thread_fence(memory_order_release);
    (void)xep_heap_tell(group->control, rank, own + at, sizeof *account, own + offsetof(sheet_t, number), number);
}

/*
 * Returns whether there was one, whole and valid, and its number. While it is copied, its writer may write the next one
 * into the other entry, which does no harm, and then another one here: so the number is read again after the copy.
 */
int xep_group_account_get(const xep_group_t *group, uint32_t rank, xep_account_t *account, uint64_t *number_p)
{
    sheet_t *sheet = sheet_of(group, rank);
    uint64_t number = atomic_load_explicit(&sheet->number, memory_order_acquire);
    if (number == 0) return 0;
    memcpy(account, &sheet->accounts[number % ENTRIES], sizeof *account);
    atomic_thread_fence(memory_order_acquire);
    *number_p = number;
    return atomic_load_explicit(&sheet->number, memory_order_relaxed) == number &&
           xep_account_check(account, group->nranks);
}

/* ---- answering ---- */

/*
 * Every wait, and every test, checks this every few milliseconds: so it is one load for each rank, and all else comes
 * after it.
 */
static int has_news(const xep_group_t *group, uint32_t rank)
{
    uint64_t number = atomic_load_explicit(&sheet_of(group, rank)->number, memory_order_relaxed);
    return xep_group_account_is_asked(group, rank) && number != group->accounts->numbers[rank].heard;
}

/* Answers are not answered. A rank that is in no call does not answer, which says the same. */
static void answer(xep_group_t *group, uint32_t rank, xep_account_fn fill, void *arg)
{
    xep_account_t question, mine = {.kind = XEP_WAITS_NOWHERE};
    uint64_t number;
    if (!xep_group_account_get(group, rank, &question, &number)) return;
    group->accounts->numbers[rank].heard = number;
    if (question.answers != 0) return;
    fill(arg, &mine);
    mine.answers = number;
    if (mine.kind != XEP_WAITS_NOWHERE) put(group, rank, &mine);
}

/* trylock: another thread of this rank that holds it does all the work. */
void xep_group_answer(xep_group_t *group, xep_account_fn fill, void *arg)
{
    if (group->accounts == NULL || pthread_mutex_trylock(&group->accounts->lock) != 0) return;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (has_news(group, r)) answer(group, r, fill, arg);
    pthread_mutex_unlock(&group->accounts->lock);
}

/* ---- asking ---- */

/* asked: the number by which an answer will say what it answers. */
void xep_group_account_put_all(xep_group_t *group, const xep_account_t *account)
{
    xep_group_accounts_t *accounts = group->accounts;
    for (uint32_t r = 0; r < group->nranks; r++) {
        if (!xep_group_account_is_asked(group, r)) continue;
        put(group, r, account);
        accounts->numbers[r].asked = accounts->numbers[r].told;
    }
}

void xep_group_tell(xep_group_t *group, const xep_account_t *account)
{
    if (group->accounts == NULL || account->kind == XEP_WAITS_NOWHERE) return;
    pthread_mutex_lock(&group->accounts->lock);
    xep_group_account_put_all(group, account);
    pthread_mutex_unlock(&group->accounts->lock);
}
