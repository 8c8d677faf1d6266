/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The trace of this process (XEP_TRACE): what its operations did and when, for trace viewers. A process has one trace,
 * like one log. If off, it costs one branch for each possible event. If on, an event is a store into a ring of the
 * thread; a thread's first event maps its ring, all later ones make no system call, take no lock and allocate nothing.
 */
#ifndef XEP_UTIL_TRACE_H
#define XEP_UTIL_TRACE_H

#include <stdatomic.h>
#include <stdint.h>

#include <xep/xep.h>

#include "backoff.h"
#include "trace_file.h"

/** Whether a trace is written. Changed by open and by a fork alone. */
extern atomic_int xep_trace_on;

static inline int xep_trace_is_on(void)
{
    return __builtin_expect(atomic_load_explicit(&xep_trace_on, memory_order_relaxed), 0);
}

/** Now; 0 where no trace is written. */
static inline uint64_t xep_trace_now(void)
{
    return xep_trace_is_on() ? xep_clock_ns() : 0;
}

/**
 * Makes FILE.RANK and begins to write; returns whether it did. The first one of a process counts, later ones do
 * nothing. A file that cannot be made is a warning.
 */
int xep_trace_open(const char *path, uint64_t ring_bytes, uint32_t rank, uint32_t nranks, uint64_t job, uint32_t clock);

/** The number of a new buffer. */
uint32_t xep_trace_add_buffer(const xep_trace_buffer_t *buffer);

/** Writes an event of this thread; fills in where for calls and spans. Only while the trace is on. */
void xep_trace_write(const xep_trace_event_t *event);

/** A call or a span of this thread, from begin_ns, which is not 0, until now. */
void xep_trace_write_call(xep_trace_kind_t kind, const char *name, uint64_t epoch, uint64_t begin_ns);

/** Notes a barrier that this rank has just left: clocks are aligned by it. */
void xep_trace_sync(uint64_t number, uint64_t begin_ns);

/** Copies a name, cut to what an event holds. */
void xep_trace_copy_name(char to[XEP_TRACE_NAME], const char *name);

#endif
