/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Heaps are read-only meanwhile: a store is a fault, its page is writable for the one instruction, after which the
 * processor traps. Loads cost nothing. A page that a heap shares with other memory, its last one where it is not
 * fenced, is not watched.
 */
#define _GNU_SOURCE /* REG_EFL */
#include "sim_death.h"

#if defined(__x86_64__) && defined(__linux__)

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "sim_heap.h"

enum { TRAP_FLAG = 0x100 };

/** One at a time: signal handlers have no argument of ours. */
static struct watch {
    sim_world_t *world; /* NULL: nobody watches */
    sim_store_fn before;
    void *arg;
    const sim_rank_t *open; /* whose heap the instruction on its way may write */
} watch;

static struct sigaction before_us[2]; /* what faults and traps meant */

static uint64_t pages_of(const sim_rank_t *rank)
{
    return sim_heap_pages(rank->env.heap_bytes, (int)rank->world->options.spoiled);
}

static void protect(const sim_rank_t *rank, int protection)
{
    if (mprotect(rank->env.heap, pages_of(rank), protection) != 0) abort();
}

static void protect_all(const sim_world_t *world, int protection)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) protect(&world->ranks[r], protection);
}

/* The rank whose heap an address is in, or NULL. */
static const sim_rank_t *find_owner(const sim_world_t *world, const char *at)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        const char *heap = world->ranks[r].env.heap;
        if (at >= heap && at < heap + pages_of(&world->ranks[r])) return &world->ranks[r];
    }
    return NULL;
}

/* What is called may leave for good. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    const sim_rank_t *owner = watch.world == NULL ? NULL : find_owner(watch.world, at);
    if (owner == NULL) {
        sigaction(number, &before_us[0], NULL); /* a real one: it happens again */
        return;
    }
    watch.before(watch.arg, at);
    protect(owner, PROT_READ | PROT_WRITE);
    watch.open = owner;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
    protect(watch.open, PROT_READ);
}

/* Test frameworks set theirs anew for each test. */
static void handle(int number, void (*handler)(int, siginfo_t *, void *), struct sigaction *before)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER}, old;
    if (sigaction(number, &action, &old) != 0) abort();
    if (old.sa_sigaction != handler) *before = old;
}

int sim_stores_watch(sim_world_t *world, sim_store_fn before, void *arg)
{
    watch = (struct watch){.world = world, .before = before, .arg = arg};
    handle(SIGSEGV, on_fault, &before_us[0]);
    handle(SIGTRAP, on_trap, &before_us[1]);
    protect_all(world, PROT_READ);
    return 1;
}

int sim_stores_unwatch(void)
{
    if (watch.world == NULL) return 0;
    protect_all(watch.world, PROT_READ | PROT_WRITE);
    watch.world = NULL;
    return 1;
}

#else

int sim_stores_watch(sim_world_t *world, sim_store_fn before, void *arg)
{
    (void)world;
    (void)before;
    (void)arg;
    return 0;
}

int sim_stores_unwatch(void)
{
    return 0;
}

#endif
