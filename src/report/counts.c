/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "counts.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu.h"

/* Where the system refuses a file, the page is as good for this process alone. */
xep_counts_t *xep_counts_open(int *file_p)
{
    int file = memfd_create(XEP_COUNTS_FILE, MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, sizeof(xep_counts_t)) != 0) {
        close(file);
        file = -1;
    }
    const int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    xep_counts_t *counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, flags, file, 0);
    *file_p = file;
    if (counts != MAP_FAILED) return counts;
    if (file >= 0) close(file);
    return NULL;
}

/* The magic comes last: a reader that sees it sees the rest. */
void xep_counts_show(xep_counts_t *counts, uint32_t rank, uint32_t nranks, uint32_t buffer, const char *mode)
{
    counts->bytes = sizeof *counts;
    counts->rank = rank;
    counts->nranks = nranks;
    counts->buffer = buffer;
    counts->created_ns = xep_clock_ns();
    snprintf(counts->mode, sizeof counts->mode, "%s", mode);
    atomic_store_explicit(&counts->magic, XEP_COUNTS_MAGIC, memory_order_release);
}

void xep_counts_close(xep_counts_t *counts, int file)
{
    if (counts == NULL) return;
    munmap(counts, sizeof *counts);
    if (file >= 0) close(file);
}

static uint64_t read_count(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

/* Each number is a whole one, which is all that the interface promises. */
void xep_counts_read(const xep_counts_t *counts, xep_op_kind_t kind, xep_counters_t *to)
{
    const xep_counts_of_kind_t *of = &counts->of[kind];
    *to = (xep_counters_t){.size = sizeof *to,
                           .operations = read_count(&of->operations),
                           .errors = read_count(&of->errors),
                           .peer_errors = read_count(&of->peer_errors),
                           .rows = read_count(&of->rows),
                           .bytes = read_count(&of->bytes),
                           .waits = read_count(&of->waits),
                           .wait_ns = read_count(&of->wait_ns),
                           .wire_bytes = read_count(&counts->wire_bytes),
                           .ranks_out = read_count(&counts->ranks_out),
                           .age_ns = xep_clock_ns() - counts->created_ns};
}
