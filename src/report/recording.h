/* SPDX-License-Identifier: BSD-3-Clause */

/** The routing of one dispatch of a group, written to a file for xep_perf --routing file: (XEP_RECORD). */
#ifndef XEP_REPORT_RECORDING_H
#define XEP_REPORT_RECORDING_H

#include <stdatomic.h>

#include <xep/xep.h>

#include "config.h"

typedef struct xep_recording {
    char *path; /* FILE.RANK */
    uint32_t rank, nranks;
    uint64_t at;                 /* the dispatch to write: 1 is the group's first */
    _Atomic uint64_t dispatches; /* that have begun: buffers may be used by several threads */
} xep_recording_t;

/** NULL in *recording_p: the configuration asks for none. */
xep_status_t xep_recording_open(const xep_config_t *config, uint32_t rank, uint32_t nranks,
                                xep_recording_t **recording_p);
void xep_recording_close(xep_recording_t *recording);

/**
 * Counts a dispatch that has begun, with topk_idx in host memory, and writes its routing if it is the one to record.
 * args were checked. A file that cannot be written is a warning.
 */
void xep_recording_count(xep_recording_t *recording, const xep_dispatch_args_t *args, uint32_t experts);

#endif
