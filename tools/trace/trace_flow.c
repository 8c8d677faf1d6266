/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Viewers bind each end of an arrow to what lies there on its track, so both ends are within, a nanosecond before what
 * they belong to is over.
 */
#include "trace_flow.h"

#include <inttypes.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const trace_source_t *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->buffer != y->buffer) return x->buffer < y->buffer ? -1 : 1;
    if (x->epoch != y->epoch) return x->epoch < y->epoch ? -1 : 1;
    return 0;
}

/* Tracks are numbered as trace_json.c does: each begins where the one before it ends. */
static void take_rank(trace_flows_t *flows, const trace_rank_t *rank, int64_t zero)
{
    const trace_journal_t *journal = rank->journal;
    unsigned track = 0;
    for (size_t i = 0; i < journal->count; i++) {
        const xep_trace_event_t *event = &journal->events[i];
        if (i == 0 || trace_journal_track(journal, event) != trace_journal_track(journal, event - 1)) track++;
        if (event->kind != XEP_TRACE_OPERATION) continue;
        flows->source[flows->count++] =
            (trace_source_t){.rank = journal->header.rank,
                             .buffer = event->where,
                             .epoch = event->epoch,
                             .track = track,
                             .begin = trace_clock_apply(&rank->clock, event->begin_ns) - zero,
                             .end = trace_clock_apply(&rank->clock, event->end_ns) - zero};
    }
}

void trace_flow_open(trace_flows_t *flows, const trace_rank_t *ranks, uint32_t nranks, int64_t zero)
{
    size_t events = 0;
    for (uint32_t r = 0; r < nranks; r++)
        if (ranks[r].journal != NULL) events += ranks[r].journal->count;
    *flows = (trace_flows_t){.source = malloc((events + 1) * sizeof *flows->source)};
    if (flows->source == NULL) return;
    for (uint32_t r = 0; r < nranks; r++)
        if (ranks[r].journal != NULL) take_rank(flows, &ranks[r], zero);
    qsort(flows->source, flows->count, sizeof *flows->source, compare);
}

void trace_flow_close(trace_flows_t *flows)
{
    free(flows->source);
}

static void put_end(FILE *to, const char *phase, uint64_t id, uint32_t rank, unsigned track, int64_t ns)
{
    fprintf(to, ",\n{\"ph\":%s,\"id\":%" PRIu64 ",\"pid\":%" PRIu32 ",\"tid\":%u,\"cat\":\"rows\",\"name\":\"rows\"",
            phase, id, rank, track);
    fprintf(to, ",\"ts\":%" PRId64 ".%03u}", ns / 1000, (unsigned)(ns % 1000));
}

void trace_flow_write(FILE *to, trace_flows_t *flows, const xep_trace_event_t *wait, uint32_t rank, unsigned track,
                      int64_t end)
{
    const trace_source_t wanted = {.rank = wait->rank, .buffer = wait->where, .epoch = wait->epoch};
    const trace_source_t *source;
    int64_t begin;

    if (flows->count == 0) return;
    source = bsearch(&wanted, flows->source, flows->count, sizeof wanted, compare);
    if (source == NULL || source->begin < 0 || source->begin >= end) return;
    begin = source->end < end ? source->end : end;
    if (begin <= source->begin) return;
    put_end(to, "\"s\"", flows->arrows, source->rank, source->track, begin - 1);
    put_end(to, "\"f\",\"bp\":\"e\"", flows->arrows++, rank, track, end - 1);
}
