/* SPDX-License-Identifier: BSD-3-Clause */

#include "backoff.h"

#include <sched.h>
#include <time.h>

/*
 * A peer that computes is away for milliseconds: from then on a sleep costs at most one part in 400 of the wait, and
 * leaves the core to other ranks. Sleeping earlier costs more than that: waking took 35 to 70 us where flags took 0.1
 * us (2 cores, virtual machine). If ranks share cores, the rank that is waited for may need this one, and sleeping
 * costs less than the others gain by it.
 *
 * In that case the loop also yields at once: 20 looks first took a quarter of the processor time of a dispatch of one
 * token. 8 ranks on two cores, rows of 2,048 elements, in us, with 20 looks and with one: 1 token, dispatch 37, 30,
 * combine 26, 22; 16 tokens, 54, 48 and 45, 39. Beside four programs that compute it made no difference.
 *
 * A rank that yields counts as one that computes: the kernel leaves two that do compute on the other processor. The
 * tests of both modes on 3 and 4 ranks, two cores: 15.3 s of processor time if ranks yield for 2 ms before they sleep,
 * 13.5 after 0.5 ms, 10.7 after 0.1. xep_perf on 8 ranks of two nodes, drawn by force, took the same time with each.
 *
 * While the transport moves bytes, the loop does not sleep: a round moves some 64 KB, and with a sleep after each, 58
 * MB over TCP loopback each way took 100 to 270 ms, without it 70.
 */
enum {
    SLEEP_NS = 50 * 1000,
    LONG_SLEEP_NS = 1000 * 1000,
    SLEEP_PART = 400, /* of the wait so far */
    SLOW_NS = 100 * 1000 * 1000,
    CLOCK_EVERY = 64 /* rounds of yielding to one look at the clock, which costs 20 to 50 ns */
};

static const struct {
    uint32_t spins;    /* rounds to spin before the first yield */
    uint32_t yield_ns; /* to yield before the first sleep */
} kinds[] = {
    [XEP_BACKOFF_ALONE] = {2000, 20 * 1000 * 1000},
    [XEP_BACKOFF_OVERSUBSCRIBED] = {0, 200 * 1000},
    [XEP_BACKOFF_RARE] = {0, 200 * 1000},
};

/* Monotonic, and read without a system call where the kernel has a vDSO: waits call it often. */
uint64_t xep_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t xep_deadline_from(uint64_t now_ns, int32_t timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : now_ns + (uint64_t)timeout_ms * 1000000u;
}

uint64_t xep_deadline(int32_t timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : xep_deadline_from(xep_clock_ns(), timeout_ms);
}

void xep_backoff_begin(xep_backoff_t *backoff, xep_backoff_kind_t kind, uint64_t deadline_ns)
{
    *backoff = (xep_backoff_t){.deadline_ns = deadline_ns, .kind = kind};
}

static void nap(uint64_t waited)
{
    uint64_t ns = waited / SLEEP_PART;
    struct timespec t = {0, ns < SLEEP_NS ? SLEEP_NS : ns < LONG_SLEEP_NS ? (long)ns : LONG_SLEEP_NS};
    nanosleep(&t, NULL);
}

/*
 * The deadline is checked only together with the clock, so up to CLOCK_EVERY rounds late: microseconds while the loop
 * yields, and every round once it sleeps.
 */
static int look_at_clock(xep_backoff_t *backoff)
{
    backoff->now_ns = xep_clock_ns();
    if (backoff->begin_ns == 0) backoff->begin_ns = backoff->now_ns;
    return backoff->now_ns < backoff->deadline_ns;
}

/* Cheap rounds first: the clock is read now and then until the loop sleeps, and every round from then on. */
int xep_backoff_wait(xep_backoff_t *backoff, uint32_t moves)
{
    uint32_t round = backoff->rounds++;
    if (moves != backoff->moves) {
        backoff->moves = moves;
        backoff->begin_ns = 0;
        return round % CLOCK_EVERY != 0 || look_at_clock(backoff);
    }
    if (round < kinds[backoff->kind].spins) {
        xep_cpu_relax();
        return 1;
    }
    uint64_t waited = backoff->begin_ns == 0 ? 0 : backoff->now_ns - backoff->begin_ns;
    if (waited < kinds[backoff->kind].yield_ns) {
        sched_yield();
        if (round % CLOCK_EVERY != 0 && backoff->begin_ns != 0) return 1;
    } else {
        nap(waited);
    }
    return look_at_clock(backoff);
}

int xep_backoff_slept(xep_backoff_t *backoff)
{
    backoff->rounds++;
    return look_at_clock(backoff);
}

int xep_backoff_is_slow(xep_backoff_t *backoff)
{
    if (backoff->now_ns - backoff->slow_ns < SLOW_NS || backoff->begin_ns == 0) return 0;
    int first = backoff->slow_ns == 0; /* the first slow check is not due yet */
    backoff->slow_ns = backoff->now_ns;
    return !first;
}
