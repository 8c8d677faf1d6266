/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A call of PMIx that ends by a callback, waited for with a deadline of our own: PMIX_TIMEOUT is not heeded by all
 * servers (a get by a client of 4.2.2 from a server of 5.0.11 never came back).
 */
#ifndef XEP_PMIX_CALL_H
#define XEP_PMIX_CALL_H

#include "pmix_client.h"
#include "watch.h"

typedef struct xep_pmix_result {
    int done; /* 0: given up (deadline, caller, or a dead rank); the rest is not set */
    pmix_status_t ret;
    size_t bytes; /* of the value that came, bytes or a number of 32 bits; SIZE_MAX: none, or one of another type */
} xep_pmix_result_t;

/** The deadline of a call, and functions that explain the wait; NULL: the call is short. */
typedef struct xep_pmix_wait {
    uint64_t deadline_ns;
    xep_watch_fn explain;
    void *arg;
    /* NULL, or called every half second to look for a dead rank, as the launcher may not report it */
    void (*find_dead)(xep_pmix_client_t *client, uint64_t deadline_ns);
    int goes_on; /* even if a rank has died: waits only for the server */
} xep_pmix_wait_t;

/** PMIx_Init, once in a process: sets client->self, even if it fails. After a timeout PMIx cannot be used. */
xep_pmix_result_t xep_pmix_call_init(xep_pmix_client_t *client, const xep_pmix_wait_t *wait);

/** A fence of all ranks that collects what they have put. PMIX_ERR_NOMEM: no memory for it. */
xep_pmix_result_t xep_pmix_call_fence(xep_pmix_client_t *client, const xep_pmix_wait_t *wait);

/** Sends what was put. PMIx_Commit has no callback and waits for the server, so a thread of its own calls it. */
xep_pmix_result_t xep_pmix_call_commit(xep_pmix_client_t *client, const xep_pmix_wait_t *wait);

/** Gets a value of a rank, or of the job (PMIX_RANK_WILDCARD), into recv[bytes], if it has that size. Likewise. */
xep_pmix_result_t xep_pmix_call_get(xep_pmix_client_t *client, uint32_t rank, const char *key, void *recv, size_t bytes,
                                    const xep_pmix_wait_t *wait);

/**
 * The same without waiting for the rank to put it: PMIX_IMMEDIATE. Given up at once while an earlier get is under way:
 * libpmix 5 uses freed memory when two gets of one rank are.
 */
xep_pmix_result_t xep_pmix_call_ask(xep_pmix_client_t *client, uint32_t rank, const char *key, void *recv, size_t bytes,
                                    uint64_t deadline_ns);

/** Publishes bytes under a name for all processes that the launcher has started; and unpublishes them. */
xep_pmix_result_t xep_pmix_call_publish(xep_pmix_client_t *client, const char *key, const void *data, size_t bytes,
                                        const xep_pmix_wait_t *wait);
xep_pmix_result_t xep_pmix_call_unpublish(xep_pmix_client_t *client, const char *key, const xep_pmix_wait_t *wait);

/** Looks a name up: its value goes to recv[bytes], if it has that size. PMIX_ERR_NOT_FOUND: unknown name. */
xep_pmix_result_t xep_pmix_call_lookup(xep_pmix_client_t *client, const char *key, void *recv, size_t bytes,
                                       const xep_pmix_wait_t *wait);

#endif
