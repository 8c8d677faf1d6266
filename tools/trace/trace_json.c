/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * JSON by hand: it is written in one pass, an event at a time, however long the trace. Viewers want microseconds, and
 * nesting on a track to be exact, so times are not rounded.
 */
#include "trace_json.h"

#include <inttypes.h>
#include <string.h>

#include "trace_flow.h"

/* ---- texts ---- */

/* bytes of the UTF-8 character at text, which ends with 0; 0: it is none */
static size_t utf8_bytes(const unsigned char *text)
{
    size_t bytes = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (bytes > 1 && (text[0] < 0xc2 || text[0] > 0xf4)) return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if (text[0] == 0xe0 && text[1] < 0xa0) return 0;
    if (text[0] == 0xed && text[1] >= 0xa0) return 0;
    if (text[0] == 0xf0 && text[1] < 0x90) return 0;
    if (text[0] == 0xf4 && text[1] >= 0x90) return 0;
    return bytes;
}

/* A name may be any bytes, and cut in the middle of a character. */
static void put_text(FILE *to, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    fputc('"', to);
    while (*at != '\0') {
        size_t bytes = utf8_bytes(at);
        if (bytes == 0) fputs("\\ufffd", to);
        else if (*at < 0x20) fprintf(to, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\') fprintf(to, "\\%c", *at);
        else fwrite(at, 1, bytes, to);
        at += bytes == 0 ? 1 : bytes;
    }
    fputc('"', to);
}

/* microseconds with all their digits; below 0 only where a file is damaged */
static void put_time(FILE *to, const char *key, int64_t ns)
{
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    fprintf(to, ",\"%s\":%s%" PRIu64 ".%03u", key, ns < 0 ? "-" : "", size / 1000, (unsigned)(size % 1000));
}

/* ---- tracks ---- */

/* A buffer too many was not described: it has a number and no mode. */
static const char *mode_of(const xep_trace_header_t *header, uint32_t buffer)
{
    return buffer < atomic_load(&header->buffers) ? header->buffer[buffer].mode : "";
}

static void put_track_name(FILE *to, const trace_journal_t *journal, const xep_trace_event_t *event)
{
    char name[96];
    const char *mode = mode_of(&journal->header, event->where);
    if (event->kind >= XEP_TRACE_CALL && event->where == journal->header.pid) snprintf(name, sizeof name, "program");
    else if (event->kind >= XEP_TRACE_CALL) snprintf(name, sizeof name, "thread %u", event->where);
    else if (event->kind == XEP_TRACE_WORK)
        snprintf(name, sizeof name, "buffer %u %s, thread %u", event->where, mode, event->lane);
    else if (event->lane == 0) snprintf(name, sizeof name, "buffer %u %s", event->where, mode);
    else snprintf(name, sizeof name, "buffer %u %s, %u more in flight", event->where, mode, event->lane);
    put_text(to, name);
}

static void put_track(FILE *to, const trace_journal_t *journal, const xep_trace_event_t *event, unsigned number)
{
    uint32_t rank = journal->header.rank;
    fprintf(to, ",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":", rank, number);
    put_track_name(to, journal, event);
    fprintf(to, "}},\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%u}}",
            rank, number, number);
}

/* ---- events ---- */

static void put_name(FILE *to, const xep_trace_event_t *event)
{
    static const char *const ops[] = {"dispatch", "combine", "next piece"};
    if (event->kind == XEP_TRACE_OPERATION) put_text(to, ops[event->op]);
    else if (event->kind == XEP_TRACE_WAIT) fprintf(to, "\"wait for rank %u\"", event->rank);
    else if (event->kind == XEP_TRACE_WORK) put_text(to, "work");
    else put_text(to, event->name);
}

static void put_args(FILE *to, const xep_trace_event_t *event)
{
    if (event->kind == XEP_TRACE_WORK || event->kind == XEP_TRACE_SPAN || event->epoch == 0) return;
    fprintf(to, ",\"args\":{\"epoch\":%" PRIu64, event->epoch);
    if (event->kind < XEP_TRACE_CALL) fprintf(to, ",\"buffer\":%u", event->where);
    if (event->kind == XEP_TRACE_WAIT) fprintf(to, ",\"rank\":%u", event->rank);
    if (event->kind == XEP_TRACE_OPERATION)
        fprintf(to, ",\"tokens\":%" PRIu64 ",\"rows\":%" PRIu64 ",\"slot\":%u,\"status\":%d", event->operation.tokens,
                event->operation.rows, event->operation.slot, event->operation.status);
    fputc('}', to);
}

/* zero is a time of the reference's clock, so it is taken away after the rank's own clock was set right. */
static void put_event(FILE *to, const trace_rank_t *rank, const xep_trace_event_t *event, unsigned track, int64_t zero,
                      trace_flows_t *flows)
{
    static const char *const kinds[] = {"operation", "phase", "wait", "work", "call", "span"};
    int64_t begin = trace_clock_apply(&rank->clock, event->begin_ns) - zero;
    int64_t end = trace_clock_apply(&rank->clock, event->end_ns) - zero;
    fprintf(to, ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"cat\":\"%s\",\"name\":", rank->journal->header.rank, track,
            kinds[event->kind]);
    put_name(to, event);
    put_time(to, "ts", begin);
    put_time(to, "dur", end > begin ? end - begin : 0); /* barriers that are damaged turn a clock round */
    put_args(to, event);
    fputc('}', to);
    if (event->kind == XEP_TRACE_WAIT && begin >= 0 && end > begin)
        trace_flow_write(to, flows, event, rank->journal->header.rank, track, end);
}

/*
 * Events come sorted by track, so a track is named where it begins. Numbers of tracks are ours, in the order in which
 * viewers show them.
 */
static void put_rank(FILE *to, const trace_rank_t *rank, int64_t zero, trace_flows_t *flows)
{
    const trace_journal_t *journal = rank->journal;
    char label[160];
    unsigned track = 0;
    snprintf(label, sizeof label, "%s, pid %u%s", journal->header.host, journal->header.pid,
             journal->dropped != 0 ? ", older events dropped" : "");
    fprintf(to, ",\n{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":\"rank %u\"}}",
            journal->header.rank, journal->header.rank);
    fprintf(to, ",\n{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%u}}",
            journal->header.rank, journal->header.rank);
    fprintf(to, ",\n{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_labels\",\"args\":{\"labels\":", journal->header.rank);
    put_text(to, label);
    fputs("}}", to);
    for (size_t i = 0; i < journal->count; i++) {
        const xep_trace_event_t *event = &journal->events[i];
        if (i == 0 || trace_journal_track(journal, event) != trace_journal_track(journal, event - 1))
            put_track(to, journal, event, ++track);
        put_event(to, rank, event, track, zero, flows);
    }
}

/* ---- all ---- */

/* Events are sorted by track, so the earliest may be anywhere. */
static int64_t find_zero(const trace_rank_t *ranks, uint32_t nranks)
{
    int64_t zero = INT64_MAX;
    for (uint32_t r = 0; r < nranks; r++)
        for (size_t i = 0; ranks[r].journal != NULL && i < ranks[r].journal->count; i++) {
            int64_t begin = trace_clock_apply(&ranks[r].clock, ranks[r].journal->events[i].begin_ns);
            if (begin < zero) zero = begin;
        }
    return zero;
}

/* For programs that read the file: what is missing or cut, which a picture does not show. */
static void put_summary(FILE *to, const trace_rank_t *rank, uint32_t number)
{
    const trace_journal_t *journal = rank->journal;
    if (journal == NULL) {
        fprintf(to, "{\"rank\":%u,\"missing\":true}", number);
        return;
    }
    fprintf(to, "{\"rank\":%u,\"pid\":%u,\"events\":%zu,\"dropped\":%" PRIu64 ",\"lost\":%" PRIu64, number,
            journal->header.pid, journal->count, journal->dropped, atomic_load(&journal->header.lost));
    fprintf(to, ",\"damaged\":%" PRIu64 ",\"clock_ahead_ns\":%" PRId64 ",\"clock_bound_ns\":", journal->damaged,
            rank->clock.ahead_ns[0]);
    if (rank->clock.points == 0) fputs("null}", to);
    else fprintf(to, "%" PRId64 "}", rank->clock.bound_ns);
}

void trace_json_write(FILE *to, const trace_rank_t *ranks, uint32_t nranks)
{
    int64_t zero = find_zero(ranks, nranks);
    trace_flows_t flows;
    fputs("{\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"format\":1,\"ranks\":[", to);
    for (uint32_t r = 0; r < nranks; r++) {
        if (r != 0) fputs(",\n", to);
        put_summary(to, &ranks[r], r);
    }
    fputs("]},\n\"traceEvents\":[\n", to);
    /* so that all others can begin with a comma */
    fputs("{\"ph\":\"M\",\"pid\":0,\"name\":\"trace_of\",\"args\":{\"name\":\"xep\"}}", to);
    trace_flow_open(&flows, ranks, nranks, zero);
    for (uint32_t r = 0; r < nranks; r++)
        if (ranks[r].journal != NULL) put_rank(to, &ranks[r], zero, &flows);
    trace_flow_close(&flows);
    fputs("\n]}\n", to);
}
