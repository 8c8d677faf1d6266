/* SPDX-License-Identifier: BSD-3-Clause */

/* ranks: none, again: 2 */

/*
 * A rank that is killed, and one that only stops, while others send to it: on sockets the dead one is found by
 * its connection, and in every case closing comes to an end soon. And one that ends before others have reached its
 * heap: a heap that spares ranks goes on without it.
 */

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "backoff.h"
#include "forked.h"

enum { NRANKS = 3, VICTIM = 2, HEAP = 1 << 20, PIECE = 20000 };

static const uint64_t second = 1000000000u;

/* sends to the victim for a while; returns the first error, or XEP_OK */
static xep_status_t send_to_victim(xep_heap_wire_t *heap, const uint8_t *src, uint64_t ns)
{
    xep_wire_t *wire = &heap->wire;
    for (uint64_t end = xep_clock_ns() + ns, i = 0; xep_clock_ns() < end; i++) {
        xep_status_t status = wire->ops->put_signal(wire, VICTIM, 4096 + i % 40 * PIECE, src, PIECE, 0, i);
        if (status == XEP_OK) status = wire->ops->flush(wire);
        if (status == XEP_OK || status == XEP_INPROGRESS) status = wire->ops->progress(wire);
        if (status != XEP_OK) return status;
        sched_yield();
    }
    return XEP_OK;
}

/* It waits for nobody: a hang ends the test (forked.c). */
static void close_all(forked_rank_t *self, xep_heap_wire_t *heap)
{
    self->transport->ops->heap_close(heap);
    self->transport->ops->close(self->transport);
    self->transport = NULL;
}

static xep_heap_wire_t *begin(forked_rank_t *self, uint8_t **src_p)
{
    xep_heap_wire_t *heap;
    *src_p = calloc(1, PIECE);
    REQUIRE(*src_p != NULL, "memory");
    forked_connect(self);
    heap = forked_heap(self, HEAP);
    if (self->rank == VICTIM) forked_say(self, (uint64_t)getpid());
    else REQUIRE(send_to_victim(heap, *src_p, second / 100) == XEP_OK, "before anything happened");
    forked_barrier(self);
    return heap;
}

static void killed(forked_rank_t *self)
{
    uint8_t *src;
    xep_heap_wire_t *heap = begin(self, &src);
    xep_status_t status;
    const char *way = self->transport->ops->describe(self->transport, VICTIM);
    if (self->rank == VICTIM) raise(SIGKILL);
    int tcp = strncmp(way, "tcp", 3) == 0; /* then it comes to an end by an error, however long that takes under load */
    status = send_to_victim(heap, src, tcp ? 60 * second : second);
    if (tcp) REQUIRE(status == XEP_ERR_PEER, "%s, status %d", way, status);
    else if (strcmp(way, "mapped") == 0) REQUIRE(status == XEP_OK, "%s, status %d", way, status); /* the memory stays */
    else REQUIRE(status == XEP_OK || status == XEP_ERR_PEER, "%s, status %d", way, status); /* UCX may know: CMA */
    close_all(self, heap);
    free(src);
}

static void stopped(forked_rank_t *self)
{
    uint8_t *src;
    xep_heap_wire_t *heap = begin(self, &src);
    pid_t victim = (pid_t)forked_hear(self);
    if (self->rank == VICTIM) raise(SIGSTOP);
    else REQUIRE(send_to_victim(heap, src, second / 2) == XEP_OK, "a rank that stopped is not dead");
    close_all(self, heap);
    free(src);
    if (forked_come(self) == NRANKS - 1) kill(victim, SIGKILL); /* the others have closed */
}

/* Its keys are here, and nobody has used them. */
static void ended(forked_rank_t *self)
{
    uint8_t *src;
    uint64_t word = 1;
    char why[200];
    xep_heap_wire_t *heap = begin(self, &src), *plain = forked_heap(self, HEAP), *sparing = forked_heap(self, HEAP);
    pid_t victim = (pid_t)forked_hear(self);
    sparing->spares = 1;
    forked_barrier(self);
    if (self->rank == VICTIM) raise(SIGKILL);
    while (kill(victim, 0) == 0) sched_yield(); /* until all of its threads are gone, and its memory */
    REQUIRE(sparing->wire.ops->put_signal(&sparing->wire, VICTIM, 64, &word, sizeof word, 0, 1) == XEP_OK, "spared");
    REQUIRE(self->transport->ops->is_gone(self->transport, VICTIM, why, sizeof why), "nobody knows that it is gone");
    REQUIRE(plain->wire.ops->put_signal(&plain->wire, VICTIM, 64, &word, sizeof word, 0, 1) == XEP_ERR_PEER, "plain");
    self->transport->ops->heap_close(sparing);
    self->transport->ops->heap_close(plain);
    close_all(self, heap);
    free(src);
}

int main(void)
{
    return forked_run(NRANKS, killed) != 0 || forked_run(NRANKS, stopped) != 0 || forked_run(NRANKS, ended) != 0;
}
