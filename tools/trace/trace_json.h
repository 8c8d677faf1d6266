/* SPDX-License-Identifier: BSD-3-Clause */

/** The trace-event format, which Perfetto and chrome://tracing open. A rank is a process of it, a track a thread. */
#ifndef TRACE_JSON_H
#define TRACE_JSON_H

#include <stdio.h>

#include "trace_clock.h"
#include "trace_journal.h"

/** One rank of the picture. */
typedef struct trace_rank {
    trace_journal_t *journal; /* NULL: missing */
    trace_clock_t clock;
} trace_rank_t;

/** Writes all. Times count from the earliest event. */
void trace_json_write(FILE *to, const trace_rank_t *ranks, uint32_t nranks);

#endif
