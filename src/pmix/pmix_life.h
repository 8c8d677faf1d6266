/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Finds out which rank has died if the launcher does not say: each rank puts its process number with its first
 * exchange, and ranks of the same host look for that process.
 */
#ifndef XEP_PMIX_LIFE_H
#define XEP_PMIX_LIFE_H

#include "pmix_client.h"

/** Puts this rank's process number; the next commit sends it. */
pmix_status_t xep_pmix_life_put(const xep_pmix_client_t *client);

/** Looks for a rank of this host whose process is gone, and notes it as dead. Asks the server, until deadline_ns. */
void xep_pmix_life_find_dead(xep_pmix_client_t *client, uint64_t deadline_ns);

/**
 * Whether the rank that the launcher reports had left because of another one, which counts as the dead one from now on.
 * A rank that is slow to register for such reports hears only of the last.
 */
int xep_pmix_life_follow(xep_pmix_client_t *client);

/**
 * Once, before an error is returned or the process ends: says whom this rank has found, so that it is not taken for
 * dead itself, and stays long enough for the others to find the same rank, if the launcher does not report it.
 */
void xep_pmix_life_leave(xep_pmix_client_t *client);

#endif
