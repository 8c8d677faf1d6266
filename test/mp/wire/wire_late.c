/* SPDX-License-Identifier: BSD-3-Clause */

/* ranks: none, again: 2 */

/*
 * A rank that was away (stopped, or its machine asleep) comes back when the others have given it up, ended their
 * buffers and use the memory for something else. UCX from 1.16 on puts by address where it does not map (CMA): what is
 * at the address by then must not be written. XEP_MAP=never XEP_PUT=rma is where it matters, and is set here.
 */

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backoff.h"
#include "forked.h"

enum { NRANKS = 2, HEAP = 1 << 20, OWN = 0x5a, LATE = 0xc3, TURNS = 20000 };
#define PATIENCE_NS (UINT64_C(60) * 1000 * 1000 * 1000)

/* What the rank does that was away: it knows of nothing, and gets no error that would matter to anybody. */
static void put_late(xep_heap_wire_t *heap, const char *rows)
{
    for (int i = 0; i < 16; i++) (void)heap->wire.ops->put(&heap->wire, 0, 0, rows, HEAP);
    for (int i = 0; i < TURNS && heap->wire.ops->flush(&heap->wire) == XEP_INPROGRESS; i++)
        (void)heap->wire.ops->progress(&heap->wire);
}

static void put_in_time(xep_heap_wire_t *heap, const char *rows)
{
    xep_status_t status;
    REQUIRE(heap->wire.ops->put(&heap->wire, 0, 0, rows, HEAP) == XEP_OK, "put");
    while ((status = heap->wire.ops->flush(&heap->wire)) == XEP_INPROGRESS) (void)heap->wire.ops->progress(&heap->wire);
    REQUIRE(status == XEP_OK, "flush");
}

/* Over TCP, UCX 1.13 moves what it was given to the end only while this rank makes progress. */
static int comes_in_time(xep_heap_wire_t *heap)
{
    const volatile unsigned char *last = (unsigned char *)heap->base + HEAP - 1;
    for (uint64_t begin = xep_clock_ns(); *last != LATE && xep_clock_ns() - begin < PATIENCE_NS;)
        (void)heap->wire.ops->progress(&heap->wire);
    return *last == LATE;
}

/*
 * Gives the heap up, and takes memory where it was, if it can be had. Whether peers may come back only the core knows,
 * which is not here: it sets exposed when a buffer or a group ends without all ranks. late_puts.c shows that it does.
 */
static char *use_again(forked_rank_t *self, xep_heap_wire_t *heap)
{
    void *base = heap->base;
    heap->exposed = 1;
    self->transport->ops->heap_close(heap);
    char *memory = mmap(base, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, "mmap");
    memset(memory, OWN, HEAP);
    return memory;
}

static void run(forked_rank_t *self)
{
    static char rows[HEAP];
    memset(rows, LATE, sizeof rows);
    forked_connect(self);
    xep_heap_wire_t *heap = forked_heap(self, HEAP);
    if (self->rank == 1) put_in_time(heap, rows);
    forked_barrier(self);
    if (self->rank == 0) REQUIRE(comes_in_time(heap), "the first put has not come");
    char *memory = self->rank == 0 ? use_again(self, heap) : NULL;
    forked_barrier_still(self);
    if (self->rank == 1) put_late(heap, rows);
    forked_barrier_still(self);
    for (int i = 0; memory != NULL && i < HEAP; i++)
        REQUIRE(memory[i] == OWN, "byte %d of other memory was written: %d", i, memory[i]);
    _exit(0); /* in no order, and with everything open: connections are broken on purpose */
}

int main(void)
{
    setenv("XEP_MAP", "never", 1);
    setenv("XEP_PUT", "rma", 1);
    setenv("UCX_ZCOPY_THRESH", "1k", 1); /* or our puts are short enough for UCX to copy them where it has mapped */
    return forked_run(NRANKS, run) != 0;
}
