/* SPDX-License-Identifier: BSD-3-Clause */

/** An allgather over PMIx. */
#ifndef XEP_PMIX_EXCHANGE_H
#define XEP_PMIX_EXCHANGE_H

#include "pmix_client.h"

/** recv[nranks * bytes] from send[bytes] of every rank of the job; bytes may be 0. Collective, blocking, a barrier. */
xep_status_t xep_pmix_exchange(xep_pmix_client_t *client, const xep_boot_t *boot, const void *send, void *recv,
                               size_t bytes);

#endif
