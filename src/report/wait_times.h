/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Waits: for which ranks the operations of a buffer have waited, and how long.
 *
 * A mode says in op->late which ranks' words were missing at its last look; time counts from when a caller waits for
 * the operation. Only the thread that holds the buffer writes; any thread may read the sums.
 */
#ifndef XEP_REPORT_WAIT_TIMES_H
#define XEP_REPORT_WAIT_TIMES_H

#include <xep/plugin.h>

#include "counts.h"

/** What was waited for one rank in all operations of one kind. */
typedef struct xep_rank_waits {
    _Atomic uint64_t count, sum_ns, max_ns;
} xep_rank_waits_t;

/** Of one buffer. */
typedef struct xep_wait_times {
    uint32_t nranks;
    uint64_t *wait_ns;                    /* [nrequests][R] of each in flight; 0 while it is free */
    uint32_t *ranks;                      /* [nrequests][R] for op->late */
    xep_rank_waits_t *sums[XEP_OP_KINDS]; /* [R] */
    xep_counts_t *counts;                 /* of the operations that have ended */
    int file;                             /* of these */
} xep_wait_times_t;

/** After XEP_ERR_NO_MEMORY close frees what was allocated. */
xep_status_t xep_wait_times_open(xep_wait_times_t *table, uint32_t nrequests, uint32_t nranks);
void xep_wait_times_close(xep_wait_times_t *table);

/** The op->late of a request's operation that begins. */
xep_late_t xep_wait_times_late(const xep_wait_times_t *table, uint32_t request);

/** Whether op's mode found ranks late at its last look, for whom no time counts yet. */
static inline int xep_wait_times_is_new(const xep_op_t *op)
{
    return op->late.count != 0 && op->late.since_ns == 0;
}

/** A caller waits for op: for the ranks that are late, time counts from now_ns on. */
static inline void xep_wait_times_begin(xep_op_t *op, uint64_t now_ns)
{
    if (xep_wait_times_is_new(op)) op->late.since_ns = now_ns;
}

/** No caller waits any more: adds the time until now to the ranks that are late. */
void xep_wait_times_pause(xep_op_t *op);

/**
 * Counts an operation that ends with status, and adds its waits to the table, and to the caller's array [R] unless that
 * is NULL.
 */
void xep_wait_times_add(xep_wait_times_t *table, xep_op_t *op, xep_status_t status, uint64_t *wait_ns);

/** xep_buffer_waits(), from any thread. */
void xep_wait_times_read(const xep_wait_times_t *table, xep_op_kind_t kind, const xep_waits_t *to);

/** Writes who counts: from then on other processes find it. */
void xep_counts_show(xep_counts_t *counts, uint32_t rank, uint32_t nranks, uint32_t buffer, const char *mode);

/** xep_buffer_counters(), from any thread. */
void xep_counts_read(const xep_counts_t *counts, xep_op_kind_t kind, xep_counters_t *to);

#endif
