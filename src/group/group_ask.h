/* SPDX-License-Identifier: BSD-3-Clause */

/** What a rank does whose wait has ended in vain: it asks the others, and says what all accounts come to. */
#ifndef XEP_GROUP_ASK_H
#define XEP_GROUP_ASK_H

#include "group_account.h"

/**
 * Tells all, waits for their accounts for a twentieth of timeout_ms (20 ms to 1 s) at most, and logs what they come to.
 * Returns status; the reason of this thread's last error stays as it is.
 */
xep_status_t xep_group_ask(xep_group_t *group, const xep_account_t *account, int32_t timeout_ms, xep_status_t status);

#endif
