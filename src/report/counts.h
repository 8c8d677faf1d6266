/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Counters of a buffer, in a page that other processes of the user can read (xep_info --metrics): an anonymous file
 * that the owner keeps open, so that the kernel checks who may look, and nothing is left when the process ends.
 */
#ifndef XEP_REPORT_COUNTS_H
#define XEP_REPORT_COUNTS_H

#include <assert.h>
#include <stdint.h>

#include <xep/inspect.h>

#define XEP_COUNTS_FILE  "xep-counters"
#define XEP_COUNTS_MAGIC UINT64_C(0x31746e756f637078) /* "xpcount1" */

enum { XEP_COUNTS_MODE = 32, XEP_OP_KINDS = 3 };

/** Of one kind of operation, as in xep_counters_t. */
typedef struct xep_counts_of_kind {
    _Atomic uint64_t operations, errors, peer_errors, rows, bytes, waits, wait_ns;
} xep_counts_of_kind_t;

/** Written by the thread that holds the buffer; read by any thread, and by other processes, which check it. */
typedef struct xep_counts {
    _Atomic uint64_t magic;
    uint32_t bytes; /* of this struct */
    uint32_t rank, nranks;
    uint32_t buffer;            /* of the group's buffers, from 1 */
    uint64_t created_ns;        /* xep_clock_ns() */
    char mode[XEP_COUNTS_MODE]; /* with its final 0 */
    xep_counts_of_kind_t of[XEP_OP_KINDS];
    _Atomic uint64_t wire_bytes, ranks_out;
} xep_counts_t;
static_assert(sizeof(xep_counts_t) == 248, "read by other processes");

#endif
