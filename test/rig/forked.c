/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "forked.h"

#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "neighbours.h"
#include "ucp_transport.h"

enum { LANES = 4, SLOT_BYTES = 4096 };

struct forked {
    struct lane {
        atomic_uint arrived[FORKED_MAX]; /* barriers each rank has come to */
        size_t bytes[FORKED_MAX];
        uint8_t slot[FORKED_MAX][SLOT_BYTES];
    } lanes[LANES];
    atomic_int failed;
    atomic_uint come;
    _Atomic uint64_t said;
};

void forked_require(int holds, const char *file, int line, const char *condition, const char *format, ...)
{
    va_list args;
    if (holds) return;
    fprintf(stderr, "%s:%d: %s: ", file, line, condition);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " [%s]\n", xep_last_error());
    _exit(1);
}

void forked_check(const forked_rank_t *self)
{
    if (atomic_load_explicit(&self->shared->failed, memory_order_relaxed)) _exit(1);
}

static void wait_for(forked_rank_t *self, uint32_t rank, unsigned turn, int still)
{
    const atomic_uint *arrived = &self->shared->lanes[self->lane].arrived[rank];
    unsigned spins = 0;
    while ((int)(atomic_load(arrived) - turn) < 0) {
        forked_check(self);
        if (!still && self->transport != NULL) self->transport->ops->progress(self->transport);
        if (++spins < 1000) sched_yield();
        else usleep(100); /* leaves the cores to those it waits for */
    }
}

static void barrier(forked_rank_t *self, int still)
{
    unsigned turn = atomic_fetch_add(&self->shared->lanes[self->lane].arrived[self->rank], 1) + 1;
    for (uint32_t rank = 0; rank < self->nranks; rank++) wait_for(self, rank, turn, still);
}

void forked_barrier(forked_rank_t *self)
{
    barrier(self, 0);
}

void forked_barrier_still(forked_rank_t *self)
{
    barrier(self, 1);
}

void forked_say(forked_rank_t *self, uint64_t number)
{
    atomic_store(&self->shared->said, number);
}

uint64_t forked_hear(const forked_rank_t *self)
{
    return atomic_load(&self->shared->said);
}

uint32_t forked_come(forked_rank_t *self)
{
    return atomic_fetch_add(&self->shared->come, 1) + 1;
}

/* all ranks' pieces, valid until the second barrier after */
static void exchange(forked_rank_t *self, const void *piece, size_t bytes, const void **pieces, size_t *sizes)
{
    struct lane *lane = &self->shared->lanes[self->lane];
    REQUIRE(bytes <= SLOT_BYTES, "%zu bytes", bytes);
    memcpy(lane->slot[self->rank], piece, bytes);
    lane->bytes[self->rank] = bytes;
    forked_barrier(self);
    for (uint32_t rank = 0; rank < self->nranks; rank++) {
        pieces[rank] = lane->slot[rank];
        sizes[rank] = lane->bytes[rank];
    }
}

void forked_start(forked_rank_t *self)
{
    xep_config_t config;
    const xep_whereabouts_t where = {.nranks = self->nranks, .local = 1};
    xep_neighbours_t neighbours = {0};
    REQUIRE(xep_config_read(&config) == XEP_OK, "configuration");
    REQUIRE(xep_ucp_transport_open(&config, &self->transport) == XEP_OK, "open");
    xep_neighbour_t mine;
    xep_neighbour_look(self->transport, &mine);
    for (uint32_t rank = 0; rank < self->nranks; rank++)
        xep_neighbours_add(&neighbours, rank, (int32_t)getpid(), &mine);
    REQUIRE(self->transport->ops->start(self->transport, &neighbours, &where) == XEP_OK, "start");
}

void forked_connect(forked_rank_t *self)
{
    const void *addresses[FORKED_MAX];
    size_t sizes[FORKED_MAX];
    uint8_t peers[FORKED_MAX];
    forked_start(self);
    memset(peers, XEP_PEER_MAY_MAP | XEP_PEER_VISIBLE, sizeof peers);
    exchange(self, self->transport->address, self->transport->address_bytes, addresses, sizes);
    REQUIRE(self->transport->ops->connect(self->transport, self->rank, self->nranks, addresses, sizes, peers) == XEP_OK,
            "connect");
    forked_barrier(self);
}

void forked_heap_connect(forked_rank_t *self, xep_heap_wire_t *heap)
{
    const void *keys[FORKED_MAX];
    size_t sizes[FORKED_MAX];
    exchange(self, heap->key, heap->key_bytes, keys, sizes);
    REQUIRE(self->transport->ops->heap_connect(heap, keys, sizes) == XEP_OK, "heap_connect");
    forked_barrier(self);
}

xep_heap_wire_t *forked_heap(forked_rank_t *self, uint64_t bytes)
{
    xep_heap_wire_t *heap;
    REQUIRE(self->transport->ops->heap_open(self->transport, bytes, &heap) == XEP_OK, "heap_open");
    forked_heap_connect(self, heap);
    return heap;
}

static pid_t start(forked_t *shared, uint32_t rank, uint32_t nranks, void (*fn)(forked_rank_t *self))
{
    forked_rank_t self = {.shared = shared, .rank = rank, .nranks = nranks};
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    fn(&self);
    exit(0); /* the sanitizers' checks at exit are part of the test */
}

/* the end of one rank: 0, or 1 when it failed; a rank that was meant to be killed is no failure */
static int reap(forked_t *shared)
{
    int state;
    pid_t pid = waitpid(-1, &state, 0);
    if (pid < 0 || (WIFEXITED(state) && WEXITSTATUS(state) == 0)) return 0;
    if (WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) return 0;
    atomic_store(&shared->failed, 1);
    return 1;
}

int forked_run(uint32_t nranks, void (*fn)(forked_rank_t *self))
{
    pid_t pids[FORKED_MAX];
    int failures = 0;
    forked_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    alarm(FORKED_SECONDS); /* ends this process, and that the ranks: PR_SET_PDEATHSIG */
    fflush(NULL);
    for (uint32_t rank = 0; rank < nranks; rank++) pids[rank] = start(shared, rank, nranks, fn);
    for (uint32_t rank = 0; rank < nranks; rank++) failures += pids[rank] < 0 || reap(shared) != 0;
    alarm(0);
    munmap(shared, sizeof *shared);
    return failures;
}
