/* SPDX-License-Identifier: BSD-3-Clause */

/** What a process asks of its PMIx server first: PMIx_Init and the number of ranks, with a deadline. */
#ifndef XEP_PMIX_INIT_H
#define XEP_PMIX_INIT_H

#include <stdint.h>

#include <xep/xep.h>

#include "pmix_api.h"

typedef struct xep_pmix_start {
    pmix_status_t init;
    pmix_proc_t self;   /* set by PMIx_Init, even if it fails */
    pmix_status_t size; /* of the question for the number of ranks; only if init is PMIX_SUCCESS */
    uint32_t nranks;    /* 0: the answer is of another type */
} xep_pmix_start_t;

/**
 * Once in a process. XEP_ERR_TIMEOUT: the server has not answered in timeout_ms (< 0: waits for ever), and PMIx cannot
 * be used in this process any more.
 */
xep_status_t xep_pmix_init(const xep_pmix_api_t *api, int32_t timeout_ms, xep_pmix_start_t *start_p);

#endif
