/* SPDX-License-Identifier: BSD-3-Clause */

/** This process as a PMIx client: there is one, from the first use to the end of the process. */
#ifndef XEP_PMIX_CLIENT_H
#define XEP_PMIX_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#include "boot.h"
#include "pmix_api.h"

typedef struct xep_pmix_client {
    const xep_pmix_api_t *api;
    pmix_proc_t self;
    uint32_t nranks;
    pid_t pid;                  /* of the process that opened it: its forks cannot use the connection */
    pthread_mutex_t lock;       /* of an exchange: PMIx takes two fences over the same ranks for one */
    uint64_t exchanges;         /* so far: the same number on all ranks */
    _Atomic int broken;         /* an exchange was given up, whose fence may still be under way */
    const xep_boot_t *boot;     /* of the exchange under way, which the caller may interrupt */
    int interrupted;            /* it has */
    _Atomic uint32_t dead_rank; /* UINT32_MAX: none that we know of */
    int found_dead;             /* found by this library, not reported by the launcher */
    int will_leave;             /* it leaves its exit report at the end of the process (pmix_life.h) */
    int said_exit_report;
    _Atomic uint32_t gets, commits; /* under way, including those given up */
} xep_pmix_client_t;

/**
 * Connects to the launcher's server at the first call; later calls return the same result. XEP_ERR_UNSUPPORTED: no
 * launcher with a server has started this process. XEP_ERR_TIMEOUT: that server has not answered in timeout_ms.
 * for_group: XEP_ERR_BOOT where an earlier program of the task has made one.
 */
xep_status_t xep_pmix_client_open(int32_t timeout_ms, int for_group, xep_pmix_client_t **client_p);

/**
 * Before the first exchange: marks in the server's folder that a program of this task has made a group. XEP_ERR_BOOT:
 * an earlier program has, whose values the server still keeps and would return in place of this one's.
 */
xep_status_t xep_pmix_client_mark(const xep_pmix_client_t *client);

/* ---- pmix_client_exchange.c ---- */

/* An allgather over PMIx. */

/** recv[nranks * bytes] from send[bytes] of every rank of the job; bytes may be 0. Collective, blocking, a barrier. */
xep_status_t xep_pmix_exchange(xep_pmix_client_t *client, const xep_boot_t *boot, const void *send, void *recv,
                               size_t bytes);

#endif
