/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How far the clock of a rank is ahead of another's, from the barriers both were in.
 *
 * No rank leaves a barrier before all have entered it. So with b and e the times at which a rank entered and left one,
 * each by its own clock, and d what this clock is ahead of the reference's:  b - e_ref <= d <= e - b_ref.  The barriers
 * at the begin of a group bound d from both sides, and so do its last ones: clocks drift.
 */
#ifndef TRACE_CLOCK_H
#define TRACE_CLOCK_H

#include <stdint.h>

#include <trace_file.h>

typedef struct trace_clock {
    int points;       /* 0: no barrier in common; else 1, or 2: begin and end */
    int64_t at_ns[2]; /* by this clock */
    int64_t ahead_ns[2];
    int64_t bound_ns; /* most that ahead_ns may be wrong by at these points */
} trace_clock_t;

/**
 * If zero lies within the bounds, as for ranks that read one clock, it is taken; it is exact if the files say that the
 * clock is the same.
 */
trace_clock_t trace_clock_compare(const xep_trace_header_t *reference, const xep_trace_header_t *header);

/** A time of this clock as the reference would have told it. */
int64_t trace_clock_apply(const trace_clock_t *clock, uint64_t ns);

#endif
