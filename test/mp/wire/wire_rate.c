/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * How fast rows travel between two ranks over the transport that the environment selects, both ways at once:
 * one put a row, one signal at the end. The figures in src/ucp are made with it.
 *
 * wire_rate [bytes of a row] [rows] [rounds]        UCX_TLS=tcp,self XEP_PUT=am ./test/mp/wire/wire_rate.mp 14336 4096
 */

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "backoff.h"
#include "forked.h"

enum { NRANKS = 2, SIGNALS = 4096 };

static size_t row_bytes = 14336, rows = 128;
static unsigned rounds = 50;

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void send_rows(xep_wire_t *wire, uint32_t peer, const uint8_t *src, uint64_t round)
{
    for (size_t row = 0; row < rows; row++) {
        size_t from = row * 7919 % rows; /* rows are gathered, as a routing does */
        xep_status_t status;
        while ((status = wire->ops->put(wire, peer, SIGNALS + row * row_bytes, src + from * row_bytes, row_bytes)) ==
               XEP_INPROGRESS)
            wire->ops->progress(wire);
        REQUIRE(status == XEP_OK, "put: %d", status);
    }
    while (wire->ops->put_signal(wire, peer, 0, NULL, 0, 0, round) == XEP_INPROGRESS) wire->ops->progress(wire);
}

static void receive_rows(xep_wire_t *wire, const void *base, uint64_t round)
{
    const _Atomic uint64_t *word = base;
    for (unsigned spins = 1; atomic_load_explicit(word, memory_order_acquire) != round; spins++) {
        REQUIRE(wire->ops->progress(wire) == XEP_OK, "progress");
        if (spins % 64 == 0) sched_yield();
    }
    while (wire->ops->flush(wire) == XEP_INPROGRESS) wire->ops->progress(wire);
}

static void run(forked_rank_t *self)
{
    xep_heap_wire_t *heap;
    uint64_t *times = calloc(rounds, sizeof *times);
    uint8_t *src = malloc(rows * row_bytes);
    REQUIRE(times != NULL && src != NULL, "memory");
    forked_connect(self);
    heap = forked_heap(self, SIGNALS + rows * row_bytes);
    memset(src, 1, rows * row_bytes);
    memset((uint8_t *)heap->base + SIGNALS, 0, rows * row_bytes);
    for (unsigned round = 0; round < rounds; round++) {
        forked_barrier(self);
        uint64_t begin = xep_clock_ns();
        send_rows(&heap->wire, 1 - self->rank, src, round + 1);
        receive_rows(&heap->wire, heap->base, round + 1);
        times[round] = xep_clock_ns() - begin;
    }
    qsort(times, rounds, sizeof *times, ascending);
    if (self->rank == 0)
        printf("%-22s %zu rows of %zu: best %6.1f us %5.2f GB/s, median %6.1f us %5.2f GB/s\n",
               self->transport->ops->describe(self->transport, 1), rows, row_bytes, (double)times[0] * 1e-3,
               2.0 * (double)(rows * row_bytes) / (double)times[0], (double)times[rounds / 2] * 1e-3,
               2.0 * (double)(rows * row_bytes) / (double)times[rounds / 2]);
    forked_barrier(self);
    self->transport->ops->heap_close(heap);
    self->transport->ops->close(self->transport);
    free(src);
    free(times);
}

int main(int argc, char **argv)
{
    if (argc > 1) row_bytes = (size_t)atoll(argv[1]);
    if (argc > 2) rows = (size_t)atoll(argv[2]);
    if (argc > 3) rounds = (unsigned)atoi(argv[3]);
    return forked_run(NRANKS, run) != 0;
}
