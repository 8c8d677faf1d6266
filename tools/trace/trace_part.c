/* SPDX-License-Identifier: BSD-3-Clause */

#include "trace_part.h"

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

uint64_t trace_part_track(const trace_part_t *part, const xep_trace_event_t *event)
{
    if (event->kind >= XEP_TRACE_CALL) return event->where == part->header.pid ? 0 : event->where;
    return UINT64_C(1) << 62 | (uint64_t)event->where << 20 | (uint64_t)(event->kind == XEP_TRACE_WORK) << 16 |
           event->lane;
}

/* ---- one event ---- */

static int is_whole(const xep_trace_event_t *event)
{
    return event->begin_ns != 0 && event->end_ns >= event->begin_ns && event->end_ns < UINT64_MAX / 2 &&
           event->kind < XEP_TRACE_KINDS && event->op <= 1;
}

/* for compare: qsort passes no argument on */
static const trace_part_t *sorted;

/* What encloses another comes before it. */
static int compare(const void *a, const void *b)
{
    const xep_trace_event_t *x = a, *y = b;
    uint64_t track_x = trace_part_track(sorted, x), track_y = trace_part_track(sorted, y);
    if (track_x != track_y) return track_x < track_y ? -1 : 1;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

/* ---- rings ---- */

static void take_ring(trace_part_t *part, const xep_trace_ring_t *ring)
{
    uint64_t capacity = xep_trace_capacity(part->header.ring_bytes);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
    uint64_t kept = written < capacity ? written : capacity - 1; /* the next one may be half written */
    part->dropped += written - kept;
    for (uint64_t i = written - kept; i < written; i++) {
        xep_trace_event_t event = ring->event[i % capacity];
        if (event.kind == XEP_TRACE_PHASE || event.kind >= XEP_TRACE_CALL) event.name[XEP_TRACE_NAME - 1] = '\0';
        if (is_whole(&event)) part->events[part->count++] = event;
        else part->damaged++;
    }
}

static int take_rings(trace_part_t *part, const char *file)
{
    uint64_t bytes = part->header.ring_bytes;
    uint32_t rings = atomic_load(&part->header.rings);
    part->events = calloc(rings * xep_trace_capacity(bytes) + 1, sizeof *part->events);
    if (part->events == NULL) return -1;
    for (uint32_t i = 0; i < rings; i++)
        take_ring(part, (const xep_trace_ring_t *)(const void *)(file + XEP_TRACE_UNIT + i * bytes));
    sorted = part;
    qsort(part->events, part->count, sizeof *part->events, compare);
    return 0;
}

/* ---- the header ---- */

/* NULL, or what is wrong with it */
static const char *check_header(xep_trace_header_t *header, uint64_t file_bytes)
{
    if (memcmp(header->magic, XEP_TRACE_MAGIC, sizeof header->magic) != 0) return "no trace of this version of xep";
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

static trace_part_t *read_part(const char *path, const char *file, uint64_t bytes)
{
    trace_part_t *part = calloc(1, sizeof *part);
    if (part == NULL) return NULL;
    memcpy(&part->header, file, sizeof part->header);
    const char *wrong = check_header(&part->header, bytes);
    if (wrong == NULL && take_rings(part, file) == 0) return part;
    if (wrong != NULL) {
        trace_say("%s: %s", path, wrong);
        errno = 0;
    }
    trace_part_close(part);
    return NULL;
}

trace_part_t *trace_part_open(const char *path)
{
    trace_part_t *part = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &info) != 0) goto out;
    if (!S_ISREG(info.st_mode) || info.st_size < XEP_TRACE_UNIT) {
        trace_say("%s: no trace of this version of xep", path);
        errno = 0;
        goto out;
    }
    void *file = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) goto out;
    part = read_part(path, file, (uint64_t)info.st_size);
    munmap(file, (size_t)info.st_size);
out:
    close(fd);
    return part;
}

void trace_part_close(trace_part_t *part)
{
    if (part == NULL) return;
    free(part->events);
    free(part);
}
