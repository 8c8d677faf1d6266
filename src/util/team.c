/* SPDX-License-Identifier: BSD-3-Clause */

/* One word starts a round and another one ends it; each has a cache line of its own, as threads spin on them. */
#define _GNU_SOURCE
#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backoff.h"
#include "error.h"
#include "process.h"

/*
 * Spinning bridges the gap between the phases of one operation; a team that is idle for longer sleeps on the word and
 * burns no core. If threads share cores, spinning keeps the awaited ones from running.
 */
enum { SPINS_ALONE = 20000, SPINS_OVERSUBSCRIBED = 200 };

typedef struct member {
    xep_team_t *team;
    uint32_t number; /* 1 .. threads-1 */
    pthread_t thread;
} member_t;

/*
 * job: written by the caller (round + 1), read by the other threads; orders fn and arg before the round. busy: the
 * threads count it down, the caller waits for 0. Each has its own cache line, with the number of threads that sleep on
 * it: a thread that changes the word wakes them only if there are any. Both sides are sequentially consistent, so that
 * either the sleeper sees the new word or the waker sees the sleeper.
 */
typedef struct word {
    _Alignas(64) atomic_uint value;
    atomic_uint asleep;
} word_t;

struct xep_team {
    uint32_t threads;
    int spins;
    xep_parallel_fn fn;
    void *arg;
    int quit;
    member_t *members;
    word_t job, busy;
};

static void futex(atomic_uint *value, int op, unsigned argument)
{
    syscall(SYS_futex, value, op | FUTEX_PRIVATE_FLAG, argument, NULL, NULL, 0);
}

/* returns the new value of the word once it differs from seen */
static unsigned wait_change(word_t *word, unsigned seen, int spins)
{
    unsigned value;
    for (int i = 0; i < spins; i++) {
        value = atomic_load_explicit(&word->value, memory_order_acquire);
        if (value != seen) return value;
        xep_cpu_relax();
    }
    atomic_fetch_add(&word->asleep, 1);
    while ((value = atomic_load(&word->value)) == seen) futex(&word->value, FUTEX_WAIT, seen);
    atomic_fetch_sub(&word->asleep, 1);
    return value;
}

static void wake(word_t *word)
{
    if (atomic_load(&word->asleep) != 0) futex(&word->value, FUTEX_WAKE, INT32_MAX);
}

/* fn and arg were written before the job word, which is read with acquire. */
static void *member_main(void *arg)
{
    member_t *member = arg;
    xep_team_t *team = member->team;
    unsigned round = 0;
    for (;;) {
        round = wait_change(&team->job, round, team->spins);
        if (team->quit) return NULL;
        team->fn(team->arg, member->number, team->threads);
        atomic_fetch_sub(&team->busy.value, 1);
        wake(&team->busy);
    }
}

/* busy is set before the job word goes up: a thread may be done before this returns. */
static void start_round(xep_team_t *team)
{
    atomic_store(&team->busy.value, team->threads - 1);
    atomic_fetch_add(&team->job.value, 1);
    wake(&team->job);
}

/* A team of one thread, as most buffers have, needs no words. */
void xep_team_run(xep_team_t *team, xep_parallel_fn fn, void *arg)
{
    if (team->threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    start_round(team);
    fn(arg, 0, team->threads);
    for (unsigned left; (left = atomic_load(&team->busy.value)) != 0;) wait_change(&team->busy, left, team->spins);
}

xep_status_t xep_team_create(uint32_t threads, int oversubscribed, xep_team_t **team_p)
{
    xep_team_t *team = aligned_alloc(64, sizeof *team);
    if (team == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a team of threads");
    *team = (xep_team_t){.threads = 1, .spins = oversubscribed ? SPINS_OVERSUBSCRIBED : SPINS_ALONE};
    team->members = calloc(threads, sizeof *team->members);
    if (team->members == NULL) {
        free(team);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a team of %u threads", threads);
    }
    for (; team->threads < threads; team->threads++) {
        member_t *member = &team->members[team->threads];
        *member = (member_t){.team = team, .number = team->threads};
        if (xep_thread_start(&member->thread, member_main, member) != 0) {
            uint32_t started = team->threads;
            xep_team_destroy(team);
            return xep_fail(XEP_ERR_NO_MEMORY, "could start only %u of %u threads", started, threads);
        }
    }
    *team_p = team;
    return XEP_OK;
}

void xep_team_destroy(xep_team_t *team)
{
    if (team == NULL) return;
    team->quit = 1;
    if (team->threads > 1) start_round(team);
    for (uint32_t i = 1; i < team->threads; i++) pthread_join(team->members[i].thread, NULL);
    free(team->members);
    free(team);
}
