/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Which rank has died, where the launcher does not say it: each rank puts its process number beside the bytes of its
 * first exchange, and ranks of the same host look for it.
 */
#ifndef XEP_PMIX_LIFE_H
#define XEP_PMIX_LIFE_H

#include "pmix_client.h"

/** Puts this rank's; the next commit sends it. */
pmix_status_t xep_pmix_life_put(const xep_pmix_client_t *client);

/** Looks for a rank of this host whose process is gone, and notes it as dead. Asks the server, until deadline_ns. */
void xep_pmix_life_find_dead(xep_pmix_client_t *client, uint64_t deadline_ns);

/**
 * Before an error is returned: if a rank was found so, long enough that the others find it, too. Who has left by then
 * looks as dead to them as the one that has died.
 */
void xep_pmix_life_linger(const xep_pmix_client_t *client);

#endif
