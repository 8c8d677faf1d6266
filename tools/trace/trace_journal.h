/* SPDX-License-Identifier: BSD-3-Clause */

/** What one rank has written, as read from its file and checked: nothing in a file is believed. */
#ifndef TRACE_JOURNAL_H
#define TRACE_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#include <trace_file.h>

typedef struct trace_journal {
    xep_trace_header_t header; /* a copy, with texts that end; its counts of rings and buffers fit */
    xep_trace_event_t *events; /* [count] whole ones, by track and time; times as the rank's clock has them */
    size_t count;
    uint64_t dropped; /* older ones, written over */
    uint64_t damaged; /* that cannot be what a rank writes */
} trace_journal_t;

/** NULL without errno: the file is there, but no trace, which was said. NULL with errno: it cannot be read. */
trace_journal_t *trace_journal_open(const char *path);
void trace_journal_close(trace_journal_t *journal);

/**
 * What overlaps only by nesting: the calls and spans of a thread, one request of a buffer, one thread of its team.
 * Ascending in the order in which they are shown.
 */
uint64_t trace_journal_track(const trace_journal_t *journal, const xep_trace_event_t *event);

#endif
