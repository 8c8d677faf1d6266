/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * One thread at a time adds: the one that holds the buffer. Any thread reads. So plain stores of whole words are
 * enough, and the data path needs no lock.
 */
#define _GNU_SOURCE
#include "wait_times.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backoff.h"
#include "error.h"

/* ---- counters ---- */

/* Where the system refuses a file, the page is as good for this process alone. */
static xep_counts_t *open_counts(int *file_p)
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

static void close_counts(xep_counts_t *counts, int file)
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

/* ---- waits ---- */

xep_status_t xep_wait_times_open(xep_wait_times_t *table, uint32_t nrequests, uint32_t nranks)
{
    size_t words = (size_t)nrequests * nranks;
    table->nranks = nranks;
    table->wait_ns = calloc(words, sizeof *table->wait_ns);
    table->ranks = calloc(words, sizeof *table->ranks);
    table->counts = open_counts(&table->file);
    int whole = table->wait_ns != NULL && table->ranks != NULL && table->counts != NULL;
    for (int kind = 0; kind < XEP_OP_KINDS; kind++) {
        table->sums[kind] = calloc(nranks, sizeof *table->sums[kind]);
        whole = whole && table->sums[kind] != NULL;
    }
    return whole ? XEP_OK : xep_fail(XEP_ERR_NO_MEMORY, "no memory for the waits for %u ranks", nranks);
}

void xep_wait_times_close(xep_wait_times_t *table)
{
    for (int kind = 0; kind < XEP_OP_KINDS; kind++) free(table->sums[kind]);
    free(table->ranks);
    free(table->wait_ns);
    close_counts(table->counts, table->file);
}

/* The rows of a request live as long as the buffer: waiting allocates nothing. */
xep_late_t xep_wait_times_late(const xep_wait_times_t *table, uint32_t request)
{
    size_t first = (size_t)request * table->nranks;
    return (xep_late_t){.ranks = table->ranks + first, .wait_ns = table->wait_ns + first};
}

/*
 * Adds the time since the last look to every rank that is still late. They are waited for at the same time, so the sums
 * of several ranks may exceed the time that passed.
 */
void xep_wait_times_pause(xep_op_t *op)
{
    xep_late_t *late = &op->late;
    if (late->since_ns == 0) return;
    uint64_t waited = xep_clock_ns() - late->since_ns;
    for (uint32_t i = 0; i < late->count; i++) late->wait_ns[late->ranks[i]] += waited;
    late->since_ns = 0;
}

/* There is one writer, so what it reads is what it wrote. */
static void add(_Atomic uint64_t *to, uint64_t value)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + value, memory_order_relaxed);
}

static void add_wait(xep_rank_waits_t *sums, uint64_t ns)
{
    add(&sums->count, 1);
    add(&sums->sum_ns, ns);
    if (ns > atomic_load_explicit(&sums->max_ns, memory_order_relaxed))
        atomic_store_explicit(&sums->max_ns, ns, memory_order_relaxed);
}

/* Once for each operation, when it ends: nothing here asks how it was done. Of a combine, rows are those it sends. */
static void count(xep_counts_of_kind_t *of, const xep_op_t *op, xep_status_t status, uint64_t longest_ns)
{
    add(&of->operations, 1);
    add(&of->errors, status != XEP_OK);
    add(&of->peer_errors, status == XEP_ERR_PEER);
    add(&of->waits, longest_ns != 0);
    add(&of->wait_ns, longest_ns);
    if (status != XEP_OK) return;
    const int is_combine = op->kind == XEP_OP_COMBINE;
    const uint64_t hidden = is_combine ? op->combine->hidden : op->recv->hidden;
    add(&of->rows, op->recv->rows);
    add(&of->bytes, op->recv->rows * hidden * xep_dtype_size(is_combine ? op->combine->dtype : op->recv->dtype));
}

/* Visits only ranks that were waited for: the others must not cost a store. */
void xep_wait_times_add(xep_wait_times_t *table, xep_op_t *op, xep_status_t status, uint64_t *to)
{
    uint64_t *wait_ns = op->late.wait_ns, longest_ns = 0;
    xep_wait_times_pause(op);
    for (uint32_t r = 0; r < table->nranks; r++) {
        if (wait_ns[r] == 0) continue;
        add_wait(&table->sums[op->kind][r], wait_ns[r]);
        if (wait_ns[r] > longest_ns) longest_ns = wait_ns[r];
        if (to != NULL) to[r] += wait_ns[r];
        wait_ns[r] = 0;
    }
    count(&table->counts->of[op->kind], op, status, longest_ns);
}

/* Any thread may read while another adds: each number is a whole one, which is all that the interface promises. */
void xep_wait_times_read(const xep_wait_times_t *table, xep_op_kind_t kind, const xep_waits_t *to)
{
    const xep_rank_waits_t *sums = table->sums[kind];
    if (to->operations != NULL) *to->operations = read_count(&table->counts->of[kind].operations);
    for (uint32_t r = 0; r < table->nranks; r++) {
        if (to->count != NULL) to->count[r] = read_count(&sums[r].count);
        if (to->sum_ns != NULL) to->sum_ns[r] = read_count(&sums[r].sum_ns);
        if (to->max_ns != NULL) to->max_ns[r] = read_count(&sums[r].max_ns);
    }
}
