/* SPDX-License-Identifier: BSD-3-Clause */

#include "group_doorbell.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"
#include "error.h"

/** Of one rank; written by it at every mapped rank, read by the owner. */
typedef struct line {
    _Atomic uint64_t ended;    /* a word of group_abort.c; 0: none */
    _Atomic uint64_t left_out; /* 1: it has made a smaller group without the owner */
    uint64_t pad[6];
} line_t;
_Static_assert(sizeof(line_t) == 64, "one writer a cache line");

/** In the heap of the owner. */
typedef struct doorbells {
    _Atomic uint64_t rings; /* counted up by ranks after they have written ended */
    uint64_t pad[7];
    _Atomic uint32_t asleep; /* 1 + the rank that the owner sleeps for; 0: it is awake */
    uint32_t rest[15];
    line_t lines[]; /* [nranks] */
} doorbells_t;
_Static_assert(sizeof(doorbells_t) == 128, "two cache lines: of each one the others are read often");

static doorbells_t *doorbells_of(char *control)
{
    return (doorbells_t *)(void *)control;
}

uint64_t xep_group_doorbells_bytes(uint32_t nranks)
{
    return sizeof(doorbells_t) + nranks * sizeof(line_t);
}

xep_status_t xep_group_find_doorbells(xep_group_t *group)
{
    xep_wire_t *wire = &group->control->wire;
    char **control_of = calloc(group->nranks, sizeof *control_of);
    if (control_of == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (r != group->rank && group->peers[r].mapped) control_of[r] = wire->ops->map(wire, r);
    group->control_of = control_of;
    return XEP_OK;
}

void xep_group_ring(const xep_group_t *group, uint64_t word)
{
    for (uint32_t r = 0; group->control_of != NULL && r < group->nranks; r++) {
        if (group->control_of[r] == NULL) continue;
        doorbells_t *doorbells = doorbells_of(group->control_of[r]);
        atomic_store_explicit(&doorbells->lines[group->rank].ended, word, memory_order_relaxed);
        atomic_fetch_add_explicit(&doorbells->rings, 1, memory_order_release);
    }
}

/* Reads the lines only after a ring, and once for each: a rank that is out may ring for ever. */
uint64_t xep_group_listen(xep_group_t *group, uint32_t *from_p)
{
    if (group->control_of == NULL) return 0;
    doorbells_t *doorbells = doorbells_of(group->control->base);
    uint64_t rings = atomic_load_explicit(&doorbells->rings, memory_order_acquire), word = 0;
    if (rings == atomic_load_explicit(&group->heard, memory_order_relaxed)) return 0;
    for (uint32_t r = 0; r < group->nranks; r++) {
        uint64_t said = atomic_load_explicit(&doorbells->lines[r].ended, memory_order_relaxed);
        if (said >> 32 <= word >> 32 || xep_group_is_out(group, r)) continue; /* the reason that matters most */
        *from_p = r;
        word = said;
    }
    atomic_store_explicit(&group->heard, rings, memory_order_relaxed);
    return word;
}

void xep_group_ring_out(const xep_group_t *group, uint32_t rank)
{
    if (group->control_of[rank] == NULL) return;
    atomic_store_explicit(&doorbells_of(group->control_of[rank])->lines[group->rank].left_out, 1, memory_order_release);
}

int xep_group_is_rung_out(const xep_group_t *group)
{
    const doorbells_t *doorbells = doorbells_of(group->control->base);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (atomic_load_explicit(&doorbells->lines[r].left_out, memory_order_acquire) != 0) return 1;
    return 0;
}

/* ---- sleeping ---- */

/*
 * Each rank has one word in its control heap: 0, or 1 + the rank that it waits for. Its owner writes it, and the waker
 * sets it to 0. The owner writes the word, then checks what it waits for, then sleeps if the word is unchanged; the
 * waker stores its message, then checks the word. Both have a fence between store and check, so one of them sees the
 * other. A peer that writes nonsense there can delay a rank, or keep it awake, but only briefly: sleeps are short.
 */

_Atomic uint32_t *xep_group_asleep(const xep_group_t *group, uint32_t rank)
{
    if (rank == group->rank) return &doorbells_of(group->control->base)->asleep;
    return group->control_of[rank] == NULL ? NULL : &doorbells_of(group->control_of[rank])->asleep;
}

int xep_group_sleeps(const xep_group_t *group)
{
    return group->backoff == XEP_BACKOFF_OVERSUBSCRIBED && group->nnodes == 1 && group->progress_thread == NULL;
}

int xep_group_prepare_wait(xep_group_t *group, uint32_t rank)
{
    uint32_t awake = 0;
    if (!atomic_compare_exchange_strong(xep_group_asleep(group, group->rank), &awake, rank + 1)) return 0;
    atomic_thread_fence(memory_order_seq_cst);
    return 1;
}

/*
 * The kernel compares the word again, so the rank does not sleep if the waker was faster. The futex is not private,
 * here and in wake(): the waker is another process, which has the word at another address.
 */
int xep_group_sleep(xep_group_t *group, uint32_t rank, uint64_t ns)
{
    const struct timespec most = {.tv_nsec = (long)ns};
    _Atomic uint32_t *asleep = xep_group_asleep(group, group->rank);
    syscall(SYS_futex, asleep, FUTEX_WAIT, rank + 1, &most, NULL, 0);
    return atomic_load_explicit(asleep, memory_order_relaxed) != rank + 1;
}

/* Relaxed: the word publishes nothing. A waker that has just read it makes a system call for nothing. */
void xep_group_finish_wait(xep_group_t *group)
{
    atomic_store_explicit(xep_group_asleep(group, group->rank), 0, memory_order_relaxed);
}

static void wake(_Atomic uint32_t *asleep)
{
    syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/*
 * The rank may be awake by now, or sleep again for another one: so the word is exchanged only if it is still as seen.
 * It is read first, as nearly always there is no sleeper, and an exchange would take the line from its owner each time.
 */
void xep_group_wake(const xep_group_t *group, uint32_t rank)
{
    _Atomic uint32_t *asleep = xep_group_asleep(group, rank);
    uint32_t for_me = group->rank + 1;
    if (asleep == NULL) return;
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(asleep, memory_order_relaxed) != for_me) return;
    if (atomic_compare_exchange_strong(asleep, &for_me, 0)) wake(asleep);
}

void xep_group_wake_idle(const xep_group_t *group)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t r = 0; r < group->nranks; r++) {
        _Atomic uint32_t *asleep = xep_group_asleep(group, r);
        uint32_t idle = XEP_ANY_RANK + 1;
        if (asleep == NULL || atomic_load_explicit(asleep, memory_order_relaxed) != idle) continue;
        if (atomic_compare_exchange_strong(asleep, &idle, 0)) wake(asleep);
    }
}

void xep_group_wake_all(const xep_group_t *group)
{
    for (uint32_t r = 0; r < group->nranks && group->control_of != NULL; r++) {
        _Atomic uint32_t *asleep = xep_group_asleep(group, r);
        if (asleep != NULL && atomic_exchange(asleep, 0) != 0) wake(asleep);
    }
}

/*
 * A rank that sleeps early leaves more to other programs, and is woken more often. 32 ranks on two cores with nothing
 * else there, T=128, H=2048, a dispatch: 4.1 ms if they sleep after some rounds, 4.9 after 0.5 ms, 5.4 after 2, 3.7
 * after 4, and 2.9 to 4.1 if they yield alone; 16 ranks 1.7 to 2.5, 2.4, 2.0 after 2 ms, and 1.6 to 1.9. Beside four
 * programs that compute 16 ranks take 9.1 ms, 10.8, 11.8, and 14 to 19, of processor time 4.4, 8.9, 12 and 15 to 22.
 */
static uint64_t awake_ns(uint32_t ranks_a_processor)
{
    enum { FEW = 4, EACH_NS = 250 * 1000 };
    return ranks_a_processor <= FEW ? 0 : (uint64_t)ranks_a_processor * EACH_NS;
}

/* Launchers may have bound ranks to processors of their own: only those of all together count. */
xep_status_t xep_group_find_oversubscription(xep_group_t *group)
{
    int32_t *pids = calloc(group->nranks, sizeof *pids);
    if (pids == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->peers[r].host == group->peers[group->rank].host) pids[group->here++] = group->peers[r].pid;
    group->processors = xep_cpu_count(pids, group->here);
    group->backoff = group->here > group->processors ? XEP_BACKOFF_OVERSUBSCRIBED : XEP_BACKOFF_ALONE;
    group->awake_ns = awake_ns((group->here + group->processors - 1) / group->processors);
    free(pids);
    return XEP_OK;
}
