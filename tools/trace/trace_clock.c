/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Two points, one from the first barriers and one from the last, and a straight line between them: clocks of two
 * machines drift, and in the course of a job that adds up to more than an operation takes.
 */
#include "trace_clock.h"

#include <stddef.h>
#include <stdlib.h>

/** The bounds of d, and what they come from. */
typedef struct bounds {
    int64_t low, high;
    int64_t at_ns; /* of the last of them */
    int count;
} bounds_t;

/* The barriers that a header keeps, without the one that may be half written, and those that it has twice. */
static const xep_trace_sync_t *sync_of(const xep_trace_header_t *header, int last, uint32_t i)
{
    uint64_t syncs = atomic_load(&header->syncs);
    const xep_trace_sync_t *sync = last ? &header->last[i] : &header->first[i];
    if (sync->number == 0 || sync->end_ns < sync->begin_ns || sync->end_ns > INT64_MAX) return NULL;
    if (last) return syncs > XEP_TRACE_SYNCS && i != syncs % XEP_TRACE_SYNCS ? sync : NULL;
    return i < syncs ? sync : NULL;
}

/* Ranks may have kept different ones: a rank that was killed has other last barriers than the rest. */
static const xep_trace_sync_t *find_sync(const xep_trace_header_t *header, uint64_t number)
{
    for (uint32_t i = 0; i < 2 * XEP_TRACE_SYNCS; i++) {
        const xep_trace_sync_t *sync = sync_of(header, i >= XEP_TRACE_SYNCS, i % XEP_TRACE_SYNCS);
        if (sync != NULL && sync->number == number) return sync;
    }
    return NULL;
}

/* One barrier: the clock is ahead by begin - e_ref at least and by end - b_ref at most (trace_clock.h). */
static void narrow(bounds_t *bounds, const xep_trace_sync_t *reference, const xep_trace_sync_t *sync)
{
    int64_t low = (int64_t)sync->begin_ns - (int64_t)reference->end_ns;
    int64_t high = (int64_t)sync->end_ns - (int64_t)reference->begin_ns;
    if (bounds->count == 0 || low > bounds->low) bounds->low = low;
    if (bounds->count == 0 || high < bounds->high) bounds->high = high;
    bounds->at_ns = (int64_t)sync->end_ns;
    bounds->count++;
}

static bounds_t find_bounds(const xep_trace_header_t *reference, const xep_trace_header_t *header, int last)
{
    bounds_t bounds = {0};
    for (uint32_t i = 0; i < XEP_TRACE_SYNCS; i++) {
        const xep_trace_sync_t *sync = sync_of(header, last, i);
        const xep_trace_sync_t *other = sync == NULL ? NULL : find_sync(reference, sync->number);
        if (other != NULL) narrow(&bounds, other, sync);
    }
    return bounds;
}

/*
 * The first barriers give one point and the last ones another; a point without barriers in common is left out. Takes 0
 * if it lies within the bounds, as ranks of one machine read the same clock; else the middle of the bounds.
 */
trace_clock_t trace_clock_compare(const xep_trace_header_t *reference, const xep_trace_header_t *header)
{
    trace_clock_t clock = {0};
    for (int last = 0; last < 2; last++) {
        bounds_t bounds = find_bounds(reference, header, last);
        if (bounds.count == 0) continue;
        const int is_zero = bounds.low <= 0 && bounds.high >= 0;
        const int64_t ahead = is_zero ? 0 : bounds.low + (bounds.high - bounds.low) / 2;
        /* they are in the other order where it drifted meanwhile */
        const int64_t below = llabs(ahead - bounds.low), above = llabs(bounds.high - ahead);
        clock.at_ns[clock.points] = bounds.at_ns;
        clock.ahead_ns[clock.points++] = ahead;
        if (is_zero && header->clock != 0 && header->clock == reference->clock) continue; /* it is the same clock */
        if (below > clock.bound_ns) clock.bound_ns = below;
        if (above > clock.bound_ns) clock.bound_ns = above;
    }
    return clock;
}

/* With one point a shift; with two the line through them, also for times before the first and after the last. */
int64_t trace_clock_apply(const trace_clock_t *clock, uint64_t ns)
{
    if (clock->points == 0) return (int64_t)ns;
    double drift = 0, span = (double)(clock->at_ns[1] - clock->at_ns[0]);
    if (clock->points == 2 && span > 0)
        drift = (double)(clock->ahead_ns[1] - clock->ahead_ns[0]) * (double)((int64_t)ns - clock->at_ns[0]) / span;
    return (int64_t)ns - clock->ahead_ns[0] - (int64_t)drift;
}
