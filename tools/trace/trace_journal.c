/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The file is copied piece by piece and checked, never used where it lies: it may be cut short, of another version, or
 * still be written.
 */
#include "trace_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trace_say.h"

/* more than any rank of a machine that exists */
enum { RANKS_MAX = 1 << 20 };

/*
 * Calls first, the program's first thread before all others; then buffers, each with its requests and then its threads.
 * The bits are those of the fields, so no two kinds of track meet.
 */
uint64_t trace_journal_track(const trace_journal_t *journal, const xep_trace_event_t *event)
{
    if (event->kind >= XEP_TRACE_CALL) return event->where == journal->header.pid ? 0 : event->where;
    return UINT64_C(1) << 62 | (uint64_t)event->where << 20 | (uint64_t)(event->kind == XEP_TRACE_WORK) << 16 |
           event->lane;
}

/* ---- one event ---- */

/* An event that was never written is all zeros, and one that is half written may end before it begins. */
static int is_whole(const xep_trace_event_t *event)
{
    return event->begin_ns != 0 && event->end_ns >= event->begin_ns && event->end_ns < UINT64_MAX / 2 &&
           event->kind < XEP_TRACE_KINDS && event->op <= 2;
}

/* for compare: qsort passes no argument on */
static const trace_journal_t *sorted;

/* What encloses another comes before it. */
static int compare(const void *a, const void *b)
{
    const xep_trace_event_t *x = a, *y = b;
    uint64_t track_x = trace_journal_track(sorted, x), track_y = trace_journal_track(sorted, y);
    if (track_x != track_y) return track_x < track_y ? -1 : 1;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

/* ---- rings ---- */

/* Old ones first. What the writer may be at work on is left out, which is one event of a ring that has gone round. */
static void take_ring(trace_journal_t *journal, const xep_trace_ring_t *ring)
{
    uint64_t capacity = xep_trace_capacity(journal->header.ring_bytes);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
    uint64_t kept = written < capacity ? written : capacity - 1; /* the next one may be half written */
    journal->dropped += written - kept;
    for (uint64_t i = written - kept; i < written; i++) {
        xep_trace_event_t event = ring->event[i % capacity];
        if (event.kind == XEP_TRACE_PHASE || event.kind >= XEP_TRACE_CALL) event.name[XEP_TRACE_NAME - 1] = '\0';
        if (is_whole(&event)) journal->events[journal->count++] = event;
        else journal->damaged++;
    }
}

static int take_rings(trace_journal_t *journal, const char *file)
{
    uint64_t bytes = journal->header.ring_bytes;
    uint32_t rings = atomic_load(&journal->header.rings);
    journal->events = calloc(rings * xep_trace_capacity(bytes) + 1, sizeof *journal->events);
    if (journal->events == NULL) return -1;
    for (uint32_t i = 0; i < rings; i++)
        take_ring(journal, (const xep_trace_ring_t *)(const void *)(file + XEP_TRACE_UNIT + i * bytes));
    sorted = journal;
    qsort(journal->events, journal->count, sizeof *journal->events, compare);
    return 0;
}

/* ---- the header ---- */

/* NULL, or what is wrong with it */
static const char *check_header(xep_trace_header_t *header, uint64_t file_bytes)
{
    if (memcmp(header->magic, XEP_TRACE_MAGIC, sizeof header->magic) != 0) return "not a trace of this version of xep";
    if (header->rank >= header->nranks || header->nranks > RANKS_MAX) return "an impossible rank";
    if (header->ring_bytes < XEP_TRACE_UNIT || header->ring_bytes % XEP_TRACE_UNIT != 0) return "impossible rings";
    uint64_t fit = (file_bytes - XEP_TRACE_UNIT) / header->ring_bytes;
    if (atomic_load(&header->rings) > fit) atomic_store(&header->rings, (uint32_t)fit);
    if (atomic_load(&header->rings) > XEP_TRACE_RINGS) return "too many rings";
    if (atomic_load(&header->buffers) > XEP_TRACE_BUFFERS) atomic_store(&header->buffers, XEP_TRACE_BUFFERS);
    header->host[sizeof header->host - 1] = '\0';
    for (int i = 0; i < XEP_TRACE_BUFFERS; i++) header->buffer[i].mode[sizeof header->buffer[i].mode - 1] = '\0';
    return NULL;
}

/* The header is copied, then checked, then used: rings are counted by the copy. errno 0: what is wrong was said. */
static trace_journal_t *read_journal(const char *path, const char *file, uint64_t bytes)
{
    trace_journal_t *journal = calloc(1, sizeof *journal);
    if (journal == NULL) return NULL;
    memcpy(&journal->header, file, sizeof journal->header);
    const char *wrong = check_header(&journal->header, bytes);
    if (wrong == NULL && take_rings(journal, file) == 0) return journal;
    if (wrong != NULL) {
        trace_say("%s: %s", path, wrong);
        errno = 0;
    }
    trace_journal_close(journal);
    return NULL;
}

/* Mapped only to be copied. That it has room for a header is checked here: check_header() counts on it. */
trace_journal_t *trace_journal_open(const char *path)
{
    trace_journal_t *journal = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &info) != 0) goto out;
    if (!S_ISREG(info.st_mode) || info.st_size < XEP_TRACE_UNIT) {
        trace_say("%s: not a trace of this version of xep", path);
        errno = 0;
        goto out;
    }
    void *file = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) goto out;
    journal = read_journal(path, file, (uint64_t)info.st_size);
    munmap(file, (size_t)info.st_size);
out:
    close(fd);
    return journal;
}

void trace_journal_close(trace_journal_t *journal)
{
    if (journal == NULL) return;
    free(journal->events);
    free(journal);
}
