/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * One thread runs all fibers: where the library makes progress, yields or sleeps, the next one is chosen. The clock,
 * sched_yield(), nanosleep() and the sleep on a word of the library are wrapped when the target is linked, and
 * so is what opens its transport for a group that comes of another one; outside of a fiber they are the real ones.
 */
#define _GNU_SOURCE
#include "fuzz_world.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "boot.h"
#include "config.h"
#include "error.h"
#include "fuzz_memory.h"
#include "fuzz_target.h"
#include "group.h"
#include "group_doorbell.h"
#include "ucp_transport.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 512 * 1024, MOST_TURNS = 2000000 };

typedef struct fiber {
    ucontext_t context;
    fuzz_world_t *world;
    uint32_t rank;
    int ended;
    char *stack;
} fiber_t;

struct fuzz_world {
    const fuzz_options_t *options;
    fiber_t fibers[FUZZ_MOST_RANKS];
    ucontext_t scheduler;
    uint64_t now_ns, turns;
    sim_dice_t dice;
    fuzz_memory_t *memory;
    /* the bootstrap: what each rank gives, and how many have come to, and have left, the exchange under way */
    const void *given[FUZZ_MOST_RANKS];
    size_t bytes[FUZZ_MOST_RANKS];
    uint32_t came, left, exchanges;
    int given_up;
};

static _Thread_local fiber_t *current; /* NULL: not in a world */

/* ---- turns ---- */

/* A sanitizer must know on which stack a thread goes on; leaving: this stack is never used again. */
static void switch_to(ucontext_t *from, ucontext_t *to, const void *stack, size_t bytes, int leaving)
{
#ifdef HAS_ASAN
    void *kept = NULL;
    __sanitizer_start_switch_fiber(leaving ? NULL : &kept, stack, bytes);
    swapcontext(from, to);
    __sanitizer_finish_switch_fiber(kept, NULL, NULL);
#else
    (void)stack, (void)bytes, (void)leaving;
    swapcontext(from, to);
#endif
}

/* of the thread, as the first fiber finds it */
static const void *thread_stack;
static size_t thread_stack_bytes;

void fuzz_turn(uint64_t ns)
{
    fiber_t *fiber = current;
    if (fiber == NULL) return;
    fiber->world->now_ns += ns;
    if (++fiber->world->turns > MOST_TURNS) fuzz_fail("rank %u and others never end", fiber->rank);
    switch_to(&fiber->context, &fiber->world->scheduler, thread_stack, thread_stack_bytes, 0);
    current = fiber;
}

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __real_sched_yield(void);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_sched_yield(void);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    if (current == NULL || clock != CLOCK_MONOTONIC) return __real_clock_gettime(clock, now);
    const uint64_t ns = current->world->now_ns;
    *now = (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    return 0;
}

/* The library yields for 20 ms before it sleeps. */
int __wrap_sched_yield(void)
{
    if (current == NULL) return __real_sched_yield();
    fuzz_turn(1000 * 1000);
    return 0;
}

/* A sleep of 50 us is one of 5 ms: a wait of seconds then takes hundreds of turns, not tens of thousands. A longer one
 * is as long as it says. */
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (current == NULL) return __real_nanosleep(time, left);
    fuzz_turn((uint64_t)time->tv_nsec * (time->tv_nsec < 1000 * 1000 ? 100 : 1));
    return 0;
}

int __real_xep_group_sleep(xep_group_t *group, uint32_t rank, uint64_t ns);
int __wrap_xep_group_sleep(xep_group_t *group, uint32_t rank, uint64_t ns);

/* Who wakes it is another fiber. */
int __wrap_xep_group_sleep(xep_group_t *group, uint32_t rank, uint64_t ns)
{
    if (current == NULL) return __real_xep_group_sleep(group, rank, ns);
    fuzz_turn(ns);
    return atomic_load(xep_group_asleep(group, group->rank)) != rank + 1;
}

/* ---- bootstrap ---- */

/* Whether all have come so far; a rank that gave up leaves what it gave, so that no later exchange is right. */
static int await(fuzz_world_t *world, const uint32_t *count, uint32_t number)
{
    uint64_t deadline_ns = world->now_ns + (uint64_t)world->options->timeout_ms * 1000000;
    while (*count < world->options->nranks && world->exchanges == number && !world->given_up) {
        if (world->now_ns > deadline_ns) world->given_up = 1;
        fuzz_turn(1000 * 1000);
    }
    return !world->given_up;
}

/* The caller's allgather of xep.h. */
static int gather(void *ctx, const void *send, void *recv, size_t bytes)
{
    const fiber_t *fiber = ctx;
    fuzz_world_t *world = fiber->world;
    const fuzz_options_t *options = world->options;
    uint32_t number = world->exchanges;
    if (world->given_up) return 1;
    world->given[fiber->rank] = send;
    world->bytes[fiber->rank] = bytes;
    world->came++;
    if (!await(world, &world->came, number)) return 1;
    for (uint32_t r = 0; r < options->nranks; r++) {
        char *to = (char *)recv + r * bytes;
        if (world->bytes[r] != bytes) world->given_up = 1; /* as a bootstrap does, whoever was told what */
        if (world->given_up) return 1;
        memcpy(to, world->given[r], bytes);
        if (options->tell != NULL && r != fiber->rank) options->tell(options->arg, number, fiber->rank, r, to, bytes);
    }
    world->left++;
    if (world->left < options->nranks) return !await(world, &world->left, number);
    world->came = world->left = 0;
    world->exchanges++;
    return 0;
}

/* ---- ranks ---- */

static xep_status_t open_transport(const xep_config_t *config, xep_transport_t **transport_p)
{
    (void)config;
    *transport_p = fuzz_memory_transport(current->world->memory, current->rank);
    return XEP_OK;
}

xep_status_t __wrap_xep_ucp_transport_open(const xep_config_t *config, xep_transport_t **transport_p);

xep_status_t __wrap_xep_ucp_transport_open(const xep_config_t *config, xep_transport_t **transport_p)
{
    return open_transport(config, transport_p);
}

void fuzz_world_stop(int stopped, int dead)
{
    fuzz_memory_stop(current->world->memory, current->rank, stopped, dead);
}

static void live(fiber_t *fiber)
{
    const fuzz_options_t *options = fiber->world->options;
    if (fiber->rank >= options->nranks) {
        options->run(options->arg, fiber->rank, NULL, XEP_OK);
        return;
    }
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_config_t config;
    xep_group_t *group = NULL;
    xep_boot_t *boot;
    params.allgather = gather;
    params.allgather_ctx = fiber;
    params.rank = fiber->rank;
    params.nranks = options->nranks;
    if (xep_config_read(&config) != XEP_OK) fuzz_fail("%s", xep_last_error());
    xep_status_t status = xep_boot_callback_open(&params, options->timeout_ms, &boot);
    if (status == XEP_OK) status = xep_group_open(&config, options->timeout_ms, boot, open_transport, &group);
    options->run(options->arg, fiber->rank, group, status);
}

static void begin_fiber(void)
{
    fiber_t *fiber = current;
#ifdef HAS_ASAN
    __sanitizer_finish_switch_fiber(NULL, &thread_stack, &thread_stack_bytes);
#endif
    live(fiber);
    fiber->ended = 1;
    switch_to(&fiber->context, &fiber->world->scheduler, thread_stack, thread_stack_bytes, 1);
}

/*
 * Stacks are kept: one is half a megabyte, and an input lives for a millisecond. A sanitizer that knows how long one is
 * takes back at each switch all that it has poisoned there, by a system call or more, and nine tenths of the time go
 * into that: it is not told, and a new fiber's stack is cleaned here.
 */
static void make_fiber(fuzz_world_t *world, uint32_t rank)
{
    static char *stacks[FUZZ_MOST_RANKS];
    fiber_t *fiber = &world->fibers[rank];
    if (stacks[rank] == NULL && (stacks[rank] = malloc(STACK_BYTES)) == NULL) fuzz_fail("no memory");
    fiber->world = world;
    fiber->rank = rank;
    fiber->stack = stacks[rank];
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, begin_fiber, 0);
#ifdef HAS_ASAN
    fiber->context.uc_stack.ss_size = 0;
    ASAN_UNPOISON_MEMORY_REGION(fiber->stack, STACK_BYTES);
#endif
}

void fuzz_world_run(const fuzz_options_t *options)
{
    static fuzz_world_t world;
    uint32_t all = options->nranks + options->joiners, left = all;
    world = (fuzz_world_t){.options = options, .now_ns = 1000000000, .dice = {options->seed}};
    world.memory = fuzz_memory_make(all, options->node, &world.dice);
    for (uint32_t r = 0; r < all; r++) make_fiber(&world, r);
    while (left > 0) {
        fiber_t *fiber = &world.fibers[sim_below(&world.dice, all)];
        if (fiber->ended) continue;
        current = fiber;
        switch_to(&world.scheduler, &fiber->context, fiber->stack, STACK_BYTES, 0);
        current = NULL;
        left -= (uint32_t)fiber->ended;
    }
    fuzz_memory_free(world.memory);
}
