/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The rings are mapped parts of a file: what was written stays if the process is killed. Their blocks are reserved and
 * their pages present before the first event goes in, so that a full disk is noticed here and not by a signal in the
 * middle of an operation.
 *
 * Threads come and go, rings stay: a new thread takes the ring of one that has ended, else a new one.
 */
#define _GNU_SOURCE
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

atomic_int xep_trace_on;

/* a ring, and the thread that writes it */
typedef struct seat {
    xep_trace_ring_t *ring; /* NULL: the thread has found no room, its events are lost */
    uint64_t capacity;
    pid_t thread;
} seat_t;

/* of the process, as the log is; the lock guards all but what the header says is atomic */
static struct {
    pthread_mutex_t lock;
    int fd;
    int opened; /* or tried */
    xep_trace_header_t *header;
    seat_t seats[XEP_TRACE_RINGS], none;
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static _Thread_local seat_t *own;

/* ---- rings ---- */

/* 0, and the memory of bytes at offset of the file, zeroed and present; or -1 with errno */
static int map_piece(uint64_t offset, uint64_t bytes, void **memory_p)
{
    int error = posix_fallocate(trace.fd, (off_t)offset, (off_t)bytes);
    if (error != 0) {
        errno = error;
        return -1;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, trace.fd, (off_t)offset);
    if (memory == MAP_FAILED) return -1;
    *memory_p = memory;
    return 0;
}

/*
 * Threads do not say when they end. Signal 0 asks the kernel, and only when a new thread looks for a ring; if the
 * kernel has reused the number, the ring stays taken, which does no other harm.
 */
static int is_gone(pid_t thread)
{
    return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
}

/* With the lock. NULL after a warning: no room. */
static seat_t *find_seat(void)
{
    xep_trace_header_t *header = trace.header;
    uint32_t taken = atomic_load_explicit(&header->rings, memory_order_relaxed);
    void *memory;
    for (uint32_t i = 0; i < taken; i++)
        if (is_gone(trace.seats[i].thread)) return &trace.seats[i];
    if (taken == XEP_TRACE_RINGS) {
        xep_log(XEP_LOG_WARN, "no trace of thread %d: %u others are traced already", (int)gettid(), taken);
        return NULL;
    }
    if (map_piece(XEP_TRACE_UNIT + taken * header->ring_bytes, header->ring_bytes, &memory) != 0) {
        xep_log(XEP_LOG_WARN, "no trace of thread %d: no room for %llu bytes more in its file: %s", (int)gettid(),
                (unsigned long long)header->ring_bytes, strerror(errno));
        return NULL;
    }
    trace.seats[taken] = (seat_t){.ring = memory, .capacity = xep_trace_capacity(header->ring_bytes)};
    atomic_store_explicit(&header->rings, taken + 1, memory_order_release);
    return &trace.seats[taken];
}

/* Once in the life of a thread: from then on own is set, even to a seat without a ring. */
static seat_t *take_seat(void)
{
    pthread_mutex_lock(&trace.lock);
    seat_t *seat = find_seat();
    if (seat == NULL) seat = &trace.none;
    else seat->thread = gettid();
    pthread_mutex_unlock(&trace.lock);
    return seat;
}

/*
 * Each ring has one writer, so there is no lock and no atomic exchange; the release pairs with a reader that looks at
 * the file while this process runs.
 */
void xep_trace_write(const xep_trace_event_t *event)
{
    if (own == NULL) own = take_seat();
    xep_trace_ring_t *ring = own->ring;
    if (ring == NULL) {
        atomic_fetch_add_explicit(&trace.header->lost, 1, memory_order_relaxed);
        return;
    }
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    xep_trace_event_t *to = &ring->event[written % own->capacity];
    *to = *event;
    if (event->kind >= XEP_TRACE_CALL) to->where = (uint32_t)own->thread;
    atomic_store_explicit(&ring->written, written + 1, memory_order_release);
}

/* Fills the rest with zeros: the file must not show parts of an older event. */
void xep_trace_copy_name(char to[XEP_TRACE_NAME], const char *name)
{
    size_t bytes = strnlen(name, XEP_TRACE_NAME - 1);
    memcpy(to, name, bytes);
    memset(to + bytes, 0, XEP_TRACE_NAME - bytes);
}

void xep_trace_write_call(xep_trace_kind_t kind, const char *name, uint64_t epoch, uint64_t begin_ns)
{
    xep_trace_event_t event = {.begin_ns = begin_ns, .epoch = epoch, .kind = (uint8_t)kind};
    xep_trace_copy_name(event.name, name);
    event.end_ns = xep_clock_ns();
    xep_trace_write(&event);
}

/* ---- the header ---- */

/* Buffers beyond the table have a number and no description: their events say the number. */
uint32_t xep_trace_add_buffer(const xep_trace_buffer_t *buffer)
{
    pthread_mutex_lock(&trace.lock);
    uint32_t number = atomic_load_explicit(&trace.header->buffers, memory_order_relaxed);
    if (number < XEP_TRACE_BUFFERS) trace.header->buffer[number] = *buffer;
    atomic_store_explicit(&trace.header->buffers, number + 1, memory_order_release);
    pthread_mutex_unlock(&trace.lock);
    return number;
}

/* Barriers of a group come one after the other, so there is one writer. */
void xep_trace_sync(uint64_t number, uint64_t begin_ns)
{
    xep_trace_header_t *header = trace.header;
    uint64_t count = atomic_load_explicit(&header->syncs, memory_order_relaxed);
    xep_trace_sync_t sync = {.number = number, .begin_ns = begin_ns, .end_ns = xep_clock_ns()};
    if (count < XEP_TRACE_SYNCS) header->first[count] = sync;
    header->last[count % XEP_TRACE_SYNCS] = sync;
    atomic_store_explicit(&header->syncs, count + 1, memory_order_release);
}

/* The child has the parent's rings, which it must not write. */
static void stop_in_child(void)
{
    atomic_store_explicit(&xep_trace_on, 0, memory_order_relaxed);
}

/* A new file, never one that is there: another process may have that mapped. */
static int make_file(const char *path, uint32_t rank)
{
    char *name;
    if (asprintf(&name, "%s.%u", path, rank) < 0) return -1;
    if (unlink(name) == 0 || errno == ENOENT) trace.fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int error = errno;
    free(name);
    errno = error;
    return trace.fd >= 0 ? 0 : -1;
}

/*
 * The magic is written last, and tracing is turned on after it: a truncated file is not a trace, and no thread writes
 * into an incomplete one.
 */
int xep_trace_open(const char *path, uint64_t ring_bytes, uint32_t rank, uint32_t nranks, uint64_t job, uint32_t clock)
{
    static const uint64_t ring_most = UINT64_C(1) << 30;
    void *memory;
    int began = 0;
    pthread_mutex_lock(&trace.lock);
    if (trace.opened) goto out;
    trace.opened = 1;
    if (ring_bytes > ring_most) {
        xep_log(XEP_LOG_WARN, "invalid XEP_TRACE_BYTES: more than 1g (1g is used)");
        ring_bytes = ring_most;
    }
    if (ring_bytes == 0) ring_bytes = 1; /* rounded up, as all that is less than a unit */
    if (make_file(path, rank) != 0 || map_piece(0, XEP_TRACE_UNIT, &memory) != 0) {
        xep_log(XEP_LOG_WARN, "no trace is written: %s.%u: %s", path, rank, strerror(errno));
        goto out;
    }
    trace.header = memory;
    *trace.header =
        (xep_trace_header_t){.rank = rank,
                             .nranks = nranks,
                             .job = job,
                             .ring_bytes = (ring_bytes + XEP_TRACE_UNIT - 1) / XEP_TRACE_UNIT * XEP_TRACE_UNIT,
                             .pid = (uint32_t)getpid(),
                             .clock = clock};
    gethostname(trace.header->host, sizeof trace.header->host - 1);
    memcpy(trace.header->magic, XEP_TRACE_MAGIC, sizeof trace.header->magic);
    pthread_atfork(NULL, NULL, stop_in_child);
    atomic_store_explicit(&xep_trace_on, 1, memory_order_release);
    began = 1;
out:
    pthread_mutex_unlock(&trace.lock);
    return began;
}
