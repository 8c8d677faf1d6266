/* SPDX-License-Identifier: BSD-3-Clause */

/** Arrows of a picture: from the operation of a rank to where another one waits for it. */
#ifndef TRACE_FLOW_H
#define TRACE_FLOW_H

#include <stdio.h>

#include "trace_json.h"

/** An operation that others may have waited for. */
typedef struct trace_source {
    uint32_t rank, buffer;
    uint64_t epoch;
    unsigned track;     /* as the picture numbers them */
    int64_t begin, end; /* from the begin of the picture */
} trace_source_t;

typedef struct trace_flows {
    trace_source_t *source; /* [count], by rank, buffer and epoch */
    size_t count;
    uint64_t arrows; /* so far */
} trace_flows_t;

/** Finds the operations of all ranks; without memory for them there are no arrows. Ends with trace_flow_close(). */
void trace_flow_open(trace_flows_t *flows, const trace_rank_t *ranks, uint32_t nranks, int64_t zero);
void trace_flow_close(trace_flows_t *flows);

/** Writes the arrow to a wait of a rank, which ends at that time; none from an operation that began later. */
void trace_flow_write(FILE *to, trace_flows_t *flows, const xep_trace_event_t *wait, uint32_t rank, unsigned track,
                      int64_t end);

#endif
