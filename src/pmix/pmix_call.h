/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A call of PMIx that ends by a callback, waited for with a deadline of our own: PMIX_TIMEOUT is not heeded by all
 * servers (a get by a client of 4.2.2 from a server of 5.0.11 never came back).
 */
#ifndef XEP_PMIX_CALL_H
#define XEP_PMIX_CALL_H

#include "pmix_client.h"
#include "watch.h"

typedef struct xep_pmix_call xep_pmix_call_t;

typedef struct xep_pmix_result {
    int done; /* 0: given up, at the deadline, by the caller, or because a rank is dead; the rest is not set */
    pmix_status_t ret;
    size_t bytes; /* of the value that came; SIZE_MAX: none, or one of another type */
} xep_pmix_result_t;

/** NULL: no memory. recv[bytes] is where a value goes, if it has that size. */
xep_pmix_call_t *xep_pmix_call_new(void *recv, size_t bytes);

/** Callbacks, with the call as argument. */
void xep_pmix_call_end(pmix_status_t ret, void *call);
void xep_pmix_call_value(pmix_status_t ret, pmix_value_t *value, void *call);

/** The deadline of a call, and what says for whom it waits; NULL: nothing, as it is short. */
typedef struct xep_pmix_wait {
    uint64_t deadline_ns;
    xep_watch_fn explain;
    void *arg;
    /* NULL, or asked every half second for a rank that has died, as the launcher may not tell; UINT32_MAX: none */
    uint32_t (*find_dead)(xep_pmix_client_t *client, uint64_t deadline_ns);
} xep_pmix_wait_t;

/** The result of a call that returned begun, which is PMIX_SUCCESS when a callback follows. The call is gone then. */
xep_pmix_result_t xep_pmix_call_wait(xep_pmix_client_t *client, xep_pmix_call_t *call, pmix_status_t begun,
                                     const xep_pmix_wait_t *wait);

#endif
