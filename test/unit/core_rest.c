/* SPDX-License-Identifier: BSD-3-Clause */

/* How a wait rests: it does not sleep while something moves, and its deadline passes all the same. */

#define _GNU_SOURCE
#include <sys/resource.h>

#include "rest.h"
#include "unit.h"

enum { LONG_NS = 900 * 1000 * 1000, ROUNDS = 20, MANY_ROUNDS = 1000, FEW_MS_NS = 5 * 1000 * 1000 };

/* a wait in which nothing has happened for so long that it sleeps between rounds */
static xep_rest_t tired(uint64_t deadline_ns)
{
    xep_rest_t rest;
    xep_rest_begin(&rest, XEP_REST_RARE, deadline_ns);
    assert_int_equal(xep_rest_round(&rest, 0), deadline_ns == UINT64_MAX);
    rest.begin_ns = rest.now_ns - LONG_NS;
    return rest;
}

/* times this thread gave up its core to sleep in as many rounds, with moves going up by step in each */
static long sleeps(xep_rest_t *rest, uint32_t step)
{
    struct rusage before, after;
    uint32_t moves = rest->moves;
    assert_int_equal(getrusage(RUSAGE_THREAD, &before), 0);
    for (int i = 0; i < ROUNDS; i++) assert_int_equal(xep_rest_round(rest, moves += step), 1);
    assert_int_equal(getrusage(RUSAGE_THREAD, &after), 0);
    return after.ru_nvcsw - before.ru_nvcsw;
}

TEST(sleeps_when_nothing_moves)
{
    xep_rest_t rest = tired(UINT64_MAX);
    assert_true(sleeps(&rest, 0) >= ROUNDS);
}

TEST(is_awake_while_something_moves)
{
    xep_rest_t rest = tired(UINT64_MAX);
    assert_true(sleeps(&rest, 1) < ROUNDS / 2);
}

/* a few milliseconds are long where the core may be what the other one needs */
TEST(sleeps_sooner_in_a_crowd)
{
    const xep_rest_kind_t kinds[] = {XEP_REST_ALONE, XEP_REST_CROWDED};
    for (int i = 0; i < 2; i++) {
        xep_rest_t rest = tired(UINT64_MAX);
        rest.kind = kinds[i];
        rest.rounds = MANY_ROUNDS * MANY_ROUNDS + 1; /* has spun, and is between two looks at the clock */
        rest.begin_ns = rest.now_ns - FEW_MS_NS;
        assert_int_equal(xep_rest_round(&rest, 0), 1);
        assert_int_equal(rest.now_ns != rest.begin_ns + FEW_MS_NS, kinds[i] == XEP_REST_CROWDED);
    }
}

/* who spins does not look at the clock; a round that yields first does */
TEST(yields_at_once_in_a_crowd)
{
    const xep_rest_kind_t kinds[] = {XEP_REST_ALONE, XEP_REST_CROWDED};
    for (int i = 0; i < 2; i++) {
        xep_rest_t rest;
        xep_rest_begin(&rest, kinds[i], UINT64_MAX);
        assert_int_equal(xep_rest_round(&rest, 0), 1);
        assert_int_equal(rest.begin_ns != 0, kinds[i] == XEP_REST_CROWDED);
    }
}

/* what has moved once is no reason to sleep in the next round */
TEST(begins_anew)
{
    xep_rest_t rest = tired(UINT64_MAX);
    assert_int_equal(xep_rest_round(&rest, 1), 1);
    assert_true(sleeps(&rest, 0) < ROUNDS / 2);
}

TEST(deadline_passes_while_something_moves)
{
    xep_rest_t rest = tired(1);
    uint32_t rounds = 0;
    while (rounds < MANY_ROUNDS && xep_rest_round(&rest, rounds + 1)) rounds++;
    assert_in_range(rounds, 0, MANY_ROUNDS - 1);
}
