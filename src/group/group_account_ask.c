/* SPDX-License-Identifier: BSD-3-Clause */

/* Several threads may wait on one group, and fail at once: they ask one after the other. */
#include "group_account.h"

#include <stdio.h>
#include <string.h>

#include "error.h"
#include "group_abort.h"
#include "group_wait.h"
#include "log.h"

enum { SHARE = 20 /* of the deadline */, LEAST_MS = 20, MOST_MS = 1000 };

/* What a rank has to say to the question of this one: an answer to it, or the same question. */
static void gather(xep_group_t *group, uint32_t rank, const xep_account_t *mine)
{
    xep_account_t account;
    uint64_t number;
    if (!xep_group_account_get(group, rank, &account, &number)) return;
    int same = account.answers == 0 && xep_account_is_same(&account, mine);
    if (same || account.answers == group->accounts->numbers[rank].asked) group->accounts->theirs[rank].said = account;
}

typedef struct asking {
    xep_group_t *group;
    const xep_account_t *mine;
    int leads; /* no lower rank asks the same */
} asking_t;

static xep_status_t look_for_answers(void *arg)
{
    asking_t *asking = arg;
    xep_group_t *group = asking->group;
    xep_group_accounts_t *accounts = group->accounts;
    uint32_t missing = 0;
    if (xep_group_usable(group) != XEP_OK) return XEP_OK;
    for (uint32_t r = 0; r < group->nranks; r++) {
        if (!xep_group_account_is_asked(group, r)) continue;
        gather(group, r, asking->mine);
        const xep_account_t *theirs = &accounts->theirs[r].said;
        int same = xep_account_is_same(theirs, asking->mine);
        if (r < group->rank && same && theirs->answers == 0) asking->leads = 0;
        /* a lower one that waits in the same call may ask any moment, and says it then */
        missing += theirs->kind == XEP_WAITS_NOWHERE || (r < group->rank && same);
    }
    return !asking->leads || missing == 0 ? XEP_OK : XEP_INPROGRESS;
}

/* By the one rank that leads, so that a job of a thousand ranks writes one such line and not a thousand. */
static void conclude(xep_group_t *group)
{
    xep_accounts_t all = {.nranks = group->nranks, .rank = group->rank, .of = group->accounts->theirs};
    char text[XEP_REASON_BYTES];
    for (uint32_t r = 0; r < group->nranks; r++) all.of[r].died = (uint8_t)xep_group_has_died(group, r);
    xep_accounts_tell(&all, text, sizeof text);
    xep_log(XEP_LOG_ERROR, "all ranks together: %s", text);
}

/* What this rank waits for is a question to those who are late, and tells all others why it waits. The deadline has
 * passed already: a share of it is all that is spent on a better sentence. */
static void ask(xep_group_t *group, const xep_account_t *account, int32_t timeout_ms)
{
    int64_t most_ms = timeout_ms / SHARE;
    asking_t asking = {.group = group, .mine = account, .leads = 1};
    if (most_ms < LEAST_MS) most_ms = LEAST_MS;
    if (most_ms > MOST_MS) most_ms = MOST_MS;
    memset(group->accounts->theirs, 0, group->nranks * sizeof *group->accounts->theirs);
    group->accounts->theirs[group->rank].said = *account;
    xep_group_account_put_all(group, account);
    xep_wait_t wait = {.look = look_for_answers,
                       .arg = &asking,
                       .deadline_ns = xep_deadline((int32_t)most_ms),
                       .local = 1};
    (void)xep_group_wait(group, &wait);
    if (asking.leads) conclude(group);
}

/* The sentence of the failure that led here survives: asking sets errors of its own. */
xep_status_t xep_group_ask(xep_group_t *group, const xep_account_t *account, int32_t timeout_ms, xep_status_t status)
{
    char reason[XEP_REASON_BYTES];
    if (group->accounts == NULL || account->kind == XEP_WAITS_NOWHERE) return status;
    snprintf(reason, sizeof reason, "%s", xep_last_error());
    pthread_mutex_lock(&group->accounts->lock);
    ask(group, account, timeout_ms);
    pthread_mutex_unlock(&group->accounts->lock);
    return xep_fail(status, "%s", reason);
}
