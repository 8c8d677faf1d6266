/* SPDX-License-Identifier: BSD-3-Clause */

/* How a wait rests: it does not sleep while something moves, and its deadline passes all the same. */

#define _GNU_SOURCE
#include <sys/resource.h>

#include "backoff.h"
#include "unit.h"

enum { LONG_NS = 900 * 1000 * 1000, ROUNDS = 20, MANY_ROUNDS = 1000, FEW_MS_NS = 5 * 1000 * 1000 };

/* a wait in which nothing has happened for so long that it sleeps between rounds */
static xep_backoff_t tired(uint64_t deadline_ns)
{
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, deadline_ns);
    assert_int_equal(xep_backoff_wait(&backoff, 0), deadline_ns == UINT64_MAX);
    backoff.begin_ns = backoff.now_ns - LONG_NS;
    return backoff;
}

/* times this thread gave up its core to sleep in as many rounds, with moves going up by step in each */
static long sleeps(xep_backoff_t *backoff, uint32_t step)
{
    struct rusage before, after;
    uint32_t moves = backoff->moves;
    assert_int_equal(getrusage(RUSAGE_THREAD, &before), 0);
    for (int i = 0; i < ROUNDS; i++) assert_int_equal(xep_backoff_wait(backoff, moves += step), 1);
    assert_int_equal(getrusage(RUSAGE_THREAD, &after), 0);
    return after.ru_nvcsw - before.ru_nvcsw;
}

TEST(sleeps_when_nothing_moves)
{
    xep_backoff_t backoff = tired(UINT64_MAX);
    assert_true(sleeps(&backoff, 0) >= ROUNDS);
}

TEST(is_awake_while_something_moves)
{
    xep_backoff_t backoff = tired(UINT64_MAX);
    assert_true(sleeps(&backoff, 1) < ROUNDS / 2);
}

/* a few milliseconds are long where the core may be what the other one needs */
TEST(sleeps_sooner_in_a_crowd)
{
    const xep_backoff_kind_t kinds[] = {XEP_BACKOFF_ALONE, XEP_BACKOFF_OVERSUBSCRIBED};
    for (int i = 0; i < 2; i++) {
        xep_backoff_t backoff = tired(UINT64_MAX);
        backoff.kind = kinds[i];
        backoff.rounds = MANY_ROUNDS * MANY_ROUNDS + 1; /* has spun, and is between two looks at the clock */
        backoff.begin_ns = backoff.now_ns - FEW_MS_NS;
        assert_int_equal(xep_backoff_wait(&backoff, 0), 1);
        assert_int_equal(backoff.now_ns != backoff.begin_ns + FEW_MS_NS, kinds[i] == XEP_BACKOFF_OVERSUBSCRIBED);
    }
}

/* who spins does not look at the clock; a round that yields first does */
TEST(yields_at_once_in_a_crowd)
{
    const xep_backoff_kind_t kinds[] = {XEP_BACKOFF_ALONE, XEP_BACKOFF_OVERSUBSCRIBED};
    for (int i = 0; i < 2; i++) {
        xep_backoff_t backoff;
        xep_backoff_begin(&backoff, kinds[i], UINT64_MAX);
        assert_int_equal(xep_backoff_wait(&backoff, 0), 1);
        assert_int_equal(backoff.begin_ns != 0, kinds[i] == XEP_BACKOFF_OVERSUBSCRIBED);
    }
}

/* what has moved once is no reason to sleep in the next round */
TEST(begins_anew)
{
    xep_backoff_t backoff = tired(UINT64_MAX);
    assert_int_equal(xep_backoff_wait(&backoff, 1), 1);
    assert_true(sleeps(&backoff, 0) < ROUNDS / 2);
}

TEST(deadline_passes_while_something_moves)
{
    xep_backoff_t backoff = tired(1);
    uint32_t rounds = 0;
    while (rounds < MANY_ROUNDS && xep_backoff_wait(&backoff, rounds + 1)) rounds++;
    assert_in_range(rounds, 0, MANY_ROUNDS - 1);
}
