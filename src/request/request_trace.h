/* SPDX-License-Identifier: BSD-3-Clause */

/** What the trace says of a request. Called inside xep_buffer_enter(), and only while a trace is written. */
#ifndef XEP_REQUEST_TRACE_H
#define XEP_REQUEST_TRACE_H

#include "request.h"
#include "trace.h"

/** xep_env_t.span. */
void xep_request_trace_span(const xep_request_t *req, const char *name, uint32_t rank, uint64_t begin_ns,
                            uint64_t end_ns);

/** The waits for the ranks that are late, until now: before xep_wait_times_pause() forgets since when. */
void xep_request_trace_waits(const xep_request_t *req);

/** The operation, which ends: its waits, and itself from the call until now. */
void xep_request_trace_end(const xep_request_t *req);

#endif
